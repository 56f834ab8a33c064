#include "cli/shared/model_commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "model/model_directory.h"
#include "raffia/error.h"

namespace raffia::internal::cli {
namespace {

std::string_view command_for(Task task) {
  switch (task) {
    case Task::lm:
      return "raffia generate";
    case Task::translate:
      return "raffia translate";
    case Task::classify:
    case Task::image:
      return "raffia classify";
  }
  return "";
}

}  // namespace

void add_model(CommandLine& command, ModelToRun& flags) {
  command.add("model", flags.directory, "Directory of the model").type_name("DIR").required();
  add_no_mmap(command, flags.no_mmap);
}

void add_no_mmap(CommandLine& command, bool& target) {
  command.add_switch("--no-mmap", target,
                     "Copy the weights into memory instead of mapping them: their file may change while the command runs");
}

std::shared_ptr<const Model> load_model(const ModelToRun& flags, std::initializer_list<Task> tasks) {
  const std::filesystem::path& directory = flags.directory;
  // The configuration is enough: the weights are not loaded.
  const Task task = load_model_config(directory / kConfigFile).task;
  if (std::ranges::find(tasks, task) == tasks.end()) {
    std::vector<std::string_view> expected;
    for (const Task each : tasks) expected.push_back(name_of(each));
    throw Error(fmt::format("{}: is a model for {}, expected {} (use {})", directory.string(), name_of(task),
                            fmt::join(expected, " or "), command_for(task)));
  }
  return Model::load(directory, {.map = !flags.no_mmap});
}

std::string fingerprint_text(uint64_t fingerprint) { return fmt::format("{:016x}", fingerprint); }

void require_place_for_state(std::string_view name, const std::filesystem::path& file, const std::filesystem::path& model,
                             const std::filesystem::path& prompt) {
  if (is_file_of_model(file, model)) {
    throw UsageError(
        fmt::format("{}: {} is a file of a model, which a state would replace: expected another name", name, file.string()));
  }
  if (is_same_file(file, prompt)) {
    throw UsageError(
        fmt::format("{}: {} is the prompt, which a state would replace: expected another name", name, file.string()));
  }
  const std::filesystem::path directory = file.has_parent_path() ? file.parent_path() : ".";
  if (std::filesystem::is_directory(file)) throw IoError(fmt::format("{}: cannot write: is a directory", file.string()));
  if (std::filesystem::exists(file) && !std::filesystem::is_regular_file(file)) {
    throw IoError(fmt::format("{}: cannot write: not a regular file", file.string()));
  }
  if (::access(directory.c_str(), W_OK | X_OK) != 0) {
    throw IoError(fmt::format("{}: cannot write there: {}", file.string(), std::strerror(errno)));
  }
}

}  // namespace raffia::internal::cli
