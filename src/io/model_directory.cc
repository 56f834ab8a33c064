#include "io/model_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include "io/datasets.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "raffia/error.h"

namespace raffia {
namespace {

namespace fs = std::filesystem;

// A name without a separator at its end, so that its parent is the directory that holds it.
fs::path without_slash(fs::path path) { return path.has_filename() || !path.has_parent_path() ? path : path.parent_path(); }

[[noreturn]] void throw_io(const fs::path& path, std::string_view action, const std::error_code& error) {
  throw IoError(fmt::format("{}: cannot {}: {}", path.string(), action, error.message()));
}

void move_to(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) throw_io(to, fmt::format("move {} to it", from.string()), error);
}

// New names are on disk only once their directory is.
void sync_names(const fs::path& directory) { File(directory, O_RDONLY | O_DIRECTORY, "open to sync").sync(); }

// All that a model directory may hold: what a new model does not bring goes with the old one.
constexpr const char* kModelFiles[] = {kConfigFile, kWeightsFile, kTokenizerFile, "tokenizer.model", kClassesFile.data()};

constexpr const char* kConfigSeal = "config";
constexpr const char* kTokenizerSeal = "tokenizer";

std::string seal_of(const ModelConfig& config) {
  const std::string json = to_json(config);
  return hexadecimal(data_checksum(std::as_bytes(std::span(json))));
}

}  // namespace

std::map<std::string, std::string> seals_of(const ModelConfig& config, uint64_t tokenizer) {
  std::map<std::string, std::string> seals = {{"format", "raffia"}, {kConfigSeal, seal_of(config)}};
  if (tokenizer != 0) seals[kTokenizerSeal] = hexadecimal(tokenizer);
  return seals;
}

void require_seals(const std::map<std::string, std::string>& metadata, const ModelConfig& config, uint64_t tokenizer,
                   std::string_view directory) {
  const auto check = [&](const char* seal, const std::string& found, std::string_view file) {
    const auto expected = metadata.find(seal);
    if (expected == metadata.end() || expected->second == found) return;
    throw FormatError(fmt::format("{}: {} has the checksum {}, expected {} (metadata of {}): it is damaged, or of another model",
                                  directory, file, found, expected->second, kWeightsFile));
  };
  check(kConfigSeal, seal_of(config), kConfigFile);
  if (tokenizer != 0) check(kTokenizerSeal, hexadecimal(tokenizer), "the tokenizer");
}

NewModelDirectory::NewModelDirectory(fs::path target, const Options& options) : target_(without_slash(std::move(target))) {
  const bool exists = fs::exists(target_);
  if (exists && !fs::is_directory(target_)) {
    throw IoError(fmt::format("{}: is a file, expected a directory or nothing", target_.string()));
  }
  if (fs::exists(target_ / "trainer")) {
    throw IoError(
        fmt::format("{}: holds a training run, which is never written over: expected another directory", target_.string()));
  }
  for (const char* name : kModelFiles) {
    if (fs::exists(target_ / name) && !options.replace) {
      throw IoError(fmt::format("{}: holds a model already (--force replaces it): {}", target_.string(), name));
    }
  }
  // Where files can be moved to their places: in the directory that is there, or beside the one that will be.
  fs::path aside = exists ? target_ / fmt::format(".raffia-{}.tmp", ::getpid())
                          : target_.parent_path() / fmt::format(".{}.raffia-{}.tmp", target_.filename().string(), ::getpid());
  std::error_code error;
  if (!fs::create_directory(aside, error)) {
    throw_io(aside, "create", error ? error : std::make_error_code(std::errc::file_exists));
  }
  aside_ = std::move(aside);
}

NewModelDirectory::~NewModelDirectory() {
  std::error_code ignored;
  if (!aside_.empty()) fs::remove_all(aside_, ignored);
}

void NewModelDirectory::commit() {
  const fs::path parent = target_.has_parent_path() ? target_.parent_path() : ".";
  if (!fs::exists(target_)) {
    move_to(aside_, target_);
    aside_.clear();
    sync_names(parent);
    return;
  }
  // Each file replaces its older one. Between these moves the checksums in the weight file tell that the files do not belong
  // together; nothing is removed before all are in place.
  std::vector<fs::path> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(aside_)) names.push_back(entry.path().filename());
  for (const fs::path& name : names) move_to(aside_ / name, target_ / name);
  for (const char* name : kModelFiles) {
    if (std::ranges::find(names, name) != names.end()) continue;
    std::error_code error;
    fs::remove(target_ / name, error);
    if (error) throw_io(target_ / name, "remove", error);
  }
  sync_names(target_);
}

}  // namespace raffia
