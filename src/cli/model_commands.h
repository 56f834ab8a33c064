// What the commands that run models share.
#ifndef RAFFIA_CLI_MODEL_COMMANDS_H_
#define RAFFIA_CLI_MODEL_COMMANDS_H_

#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "cli/command.h"
#include "raffia/model.h"

namespace raffia::cli {

// The model that a command runs: its directory, and --no-mmap.
struct ModelToRun {
  std::filesystem::path directory;
  bool no_mmap = false;
};
void add_model(CLI::App& app, ModelToRun& flags);

// Refuses models that were made for something else, and names the command that runs them.
std::shared_ptr<const Model> load_model(const ModelToRun& flags, std::initializer_list<Task> tasks);

// A fingerprint as all commands print it.
std::string fingerprint_text(uint64_t fingerprint);

// Throws IoError where a state file of this name cannot be made: better before an hour of work than after. Throws UsageError,
// naming the flag or argument, where it would replace a file of the model or the prompt that is read.
void require_place_for_state(std::string_view name, const std::filesystem::path& file, const std::filesystem::path& model,
                             const std::filesystem::path& prompt);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_MODEL_COMMANDS_H_
