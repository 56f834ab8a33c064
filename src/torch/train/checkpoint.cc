#include "torch/train/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "io/formats/file.h"
#include "io/formats/json_fields.h"
#include "io/formats/text.h"
#include "raffia/error.h"
#include "torch/train/fingerprint.h"

namespace raffia::internal::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kUnfinished = ".unfinished-";
constexpr std::string_view kFacts = "trainer.json";

void sync_directory(const fs::path& path) { File(path, O_RDONLY | O_DIRECTORY, "open to sync").sync(); }

void move(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) throw IoError(fmt::format("{}: cannot move {} to it: {}", to.string(), from.string(), error.message()));
}

// At once where the file system can: a process that is killed in between leaves one of both.
void exchange(const fs::path& newer, const fs::path& older, const fs::path& aside) {
  if (::renameat2(AT_FDCWD, newer.c_str(), AT_FDCWD, older.c_str(), RENAME_EXCHANGE) == 0) return;
  move(older, aside);
  move(newer, older);
}

void make_directory(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw IoError(fmt::format("{}: cannot create: {}", path.string(), error.message()));
}

}  // namespace

uint64_t file_checksum(const fs::path& path) {
  File file = File::open_to_read(path);
  Fingerprint fingerprint;
  std::vector<std::byte> block(1 << 20);
  for (size_t size = 0; (size = file.read(block)) > 0;) fingerprint.add(std::span(block).first(size));
  return fingerprint.value();
}

CheckpointStore::CheckpointStore(fs::path directory) : directory_(std::move(directory)) {}

fs::path CheckpointStore::path(int64_t step) const { return directory_ / fmt::format("{}{:08}", kPrefix, step); }

void CheckpointStore::write(int64_t step, const std::function<void(const fs::path&)>& write_files, nlohmann::ordered_json facts) {
  make_directory(directory_);
  const fs::path unfinished = directory_ / fmt::format("{}{:08}", kUnfinished, step);
  const fs::path replaced = directory_ / fmt::format("{}replaced-{:08}", kUnfinished, step);
  remove_unfinished();
  try {
    make_directory(unfinished);
    write_files(unfinished);
    auto& files = facts["files"] = nlohmann::ordered_json::object();
    std::vector<fs::path> written(fs::directory_iterator(unfinished), {});
    std::sort(written.begin(), written.end());
    for (const fs::path& file : written) {
      files[file.filename().string()] = {{"bytes", fs::file_size(file)}, {"xxh3", fmt::format("{:016x}", file_checksum(file))}};
    }
    // Options have names of files, which may not be UTF-8.
    write_file(unfinished / kFacts, json_text(facts, 2) + "\n");
    // A damaged checkpoint of the same step is replaced, and one before an evaluation that has now been made.
    if (fs::exists(path(step))) {
      exchange(unfinished, path(step), replaced);
    } else {
      move(unfinished, path(step));
    }
    sync_directory(directory_);
  } catch (...) {
    remove_unfinished();
    throw;
  }
  remove_unfinished();
}

std::vector<int64_t> CheckpointStore::steps() const {
  std::vector<int64_t> all;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory_, ignored)) {
    const std::string name = entry.path().filename().string();
    int64_t step = 0;
    if (!name.starts_with(kPrefix)) continue;
    const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
    if (error == std::errc() && end == name.data() + name.size()) all.push_back(step);
  }
  std::sort(all.begin(), all.end(), std::greater<>());
  return all;
}

nlohmann::ordered_json CheckpointStore::verify(int64_t step) const {
  const fs::path facts_path = path(step) / kFacts;
  nlohmann::ordered_json facts = parse_ordered_json(read_file(facts_path, kMaxBytesOfRunJson), facts_path.string());
  JsonFields files = JsonFields::of(facts, facts_path.string()).object("files");
  for (const auto& [name, entry] : facts["files"].items()) {
    JsonFields file = files.object(name);
    const fs::path file_path = path(step) / name;
    const uint64_t bytes = file.unsigned_integer("bytes");
    if (const uint64_t found = File::open_to_read(file_path).size(); found != bytes) {
      throw FormatError(fmt::format("{}: {} bytes, expected {}: the file is damaged", file_path.string(), found, bytes));
    }
    const std::string expected = file.string("xxh3");
    if (const auto found = fmt::format("{:016x}", file_checksum(file_path)); found != expected) {
      throw FormatError(fmt::format("{}: checksum {}, expected {}: the file is damaged", file_path.string(), found, expected));
    }
  }
  return facts;
}

void CheckpointStore::remove_all_but(int64_t newest) const {
  const std::vector<int64_t> all = steps();
  for (size_t i = static_cast<size_t>(newest); i < all.size(); ++i) {
    // Renamed first: a partly removed checkpoint must not look like a complete one.
    const fs::path leaving = directory_ / fmt::format("{}old-{:08}", kUnfinished, all[i]);
    move(path(all[i]), leaving);
    std::error_code ignored;
    fs::remove_all(leaving, ignored);
  }
}

void CheckpointStore::remove_unfinished() const {
  std::error_code ignored;
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(directory_, ignored)) {
    if (entry.path().filename().string().starts_with(kUnfinished)) leftovers.push_back(entry.path());
  }
  for (const fs::path& leftover : leftovers) fs::remove_all(leftover, ignored);
}

}  // namespace raffia::internal::train
