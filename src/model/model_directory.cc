#include "model/model_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "io/data/datasets.h"
#include "io/formats/image.h"
#include "io/formats/safetensors.h"
#include "model/config_fields.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

namespace fs = std::filesystem;

bool is_session_file(const fs::path& path) {
  File file = File::open_to_read(path);
  std::string first(kSessionImage.magic.size(), '\0');
  first.resize(file.read(std::as_writable_bytes(std::span(first))));
  return first == kSessionImage.magic;
}

// All files that a model directory may have: those that a new model does not have are removed with the old one.
constexpr const char* kModelFiles[] = {kConfigFile, kWeightsFile, kTokenizerFile, "tokenizer.model", kClassesFile.data()};

bool is_name_of_model_file(const fs::path& path) {
  return std::ranges::find(kModelFiles, path.filename()) != std::end(kModelFiles);
}

// Where `path` is after all links are followed, as writing to it does.
bool is_file_of_other_model(const fs::path& path) {
  std::error_code ignored;
  const fs::path place = fs::weakly_canonical(path, ignored), directory = place.parent_path();
  if (ignored) return false;
  const auto has = [&ignored](const fs::path& file) { return fs::exists(file, ignored); };
  if (is_name_of_model_file(place) && has(directory / kConfigFile)) return true;
  const bool is_of_run = has(directory / "trainer" / "options.json") || has(directory / "trainer.json") ||
                         (directory.filename() == "trainer" && has(directory / "options.json"));
  return is_of_run && fs::is_regular_file(place, ignored) && !is_session_file(place);
}

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

// Throws if the target cannot be written.
fs::path require_target(const fs::path& target, const NewModelDirectory::Options& options) {
  if (fs::exists(target) && !fs::is_directory(target)) {
    throw IoError(fmt::format("{}: is a file, expected a directory or nothing", target.string()));
  }
  if (fs::exists(target / "trainer")) {
    throw IoError(
        fmt::format("{}: contains a training run, which is never overwritten: expected another directory", target.string()));
  }
  for (const char* name : kModelFiles) {
    if (fs::exists(target / name) && !options.replace) {
      throw IoError(fmt::format("{}: already contains a model (--force replaces it): {}", target.string(), name));
    }
  }
  return target;
}

// A place from which files can be moved: in the existing directory, or beside the new one.
std::pair<fs::path, std::string> place_aside(const fs::path& target) {
  if (fs::exists(target)) return {target, ""};
  return {target.parent_path(), target.filename().string()};
}

constexpr const char* kConfigSeal = "config";
constexpr const char* kTokenizerSeal = "tokenizer";

std::string seal_of(const ModelConfig& config) {
  const std::string text = identity_text(config);
  return hexadecimal(data_checksum(std::as_bytes(std::span(text))));
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
    throw FormatError(
        fmt::format("{}: {} has the checksum {}, expected {} (metadata of {}): it is damaged, or belongs to another model",
                    directory, file, found, expected->second, kWeightsFile));
  };
  check(kConfigSeal, seal_of(config), kConfigFile);
  if (tokenizer != 0) check(kTokenizerSeal, hexadecimal(tokenizer), "the tokenizer");
}

bool is_same_file(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return fs::equivalent(a, b, ignored);
}

bool is_file_of_model(const fs::path& path, const fs::path& directory) {
  const fs::path parent = path.has_parent_path() ? path.parent_path() : ".";
  if (is_same_file(parent, directory) && is_name_of_model_file(path)) return true;
  if (is_file_of_other_model(path)) return true;
  // Also other files: those of a training run, and links.
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored) || is_session_file(path)) return false;
  for (fs::recursive_directory_iterator entry(directory, ignored), end; !ignored && entry != end; entry.increment(ignored)) {
    if (is_same_file(entry->path(), path)) return true;
  }
  return false;
}

NewModelDirectory::NewModelDirectory(fs::path target, const Options& options)
    : target_(require_target(without_slash(std::move(target)), options)),
      aside_(place_aside(target_).first, TemporaryEntry::Kind::directory, place_aside(target_).second) {}

void NewModelDirectory::commit() {
  const fs::path parent = target_.has_parent_path() ? target_.parent_path() : ".";
  if (!fs::exists(target_)) {
    aside_.move_to(target_);
    sync_names(parent);
    return;
  }
  // Each file replaces its older version. If this is interrupted, the checksums in the weight file show that the files do not
  // belong together. Nothing is removed before all files are in place.
  std::vector<fs::path> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(aside_.path())) names.push_back(entry.path().filename());
  for (const fs::path& name : names) move_to(aside_.path() / name, target_ / name);
  for (const char* name : kModelFiles) {
    if (std::ranges::find(names, name) != names.end()) continue;
    std::error_code error;
    fs::remove(target_ / name, error);
    if (error) throw_io(target_ / name, "remove", error);
  }
  sync_names(target_);
}

}  // namespace raffia::internal
