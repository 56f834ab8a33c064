// Common to the commands that run models.
#ifndef RAFFIA_CLI_SHARED_MODEL_COMMANDS_H_
#define RAFFIA_CLI_SHARED_MODEL_COMMANDS_H_

#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "cli/shared/command.h"
#include "raffia/model.h"

namespace raffia::internal::cli {

// The model that a command runs: its directory, and --no-mmap.
struct ModelToRun {
  std::filesystem::path directory;
  bool no_mmap = false;
};
void add_model(CommandLine& command, ModelToRun& flags);
void add_no_mmap(CommandLine& command, bool& target);

// Throws for models of another task, with the name of the command for them.
std::shared_ptr<const Model> load_model(const ModelToRun& flags, std::initializer_list<Task> tasks);

// A fingerprint as all commands print it.
std::string fingerprint_text(uint64_t fingerprint);

// Throws IoError if the state file cannot be written; called before the work starts, not after an hour. Throws UsageError, which
// names the flag or argument, if it would replace a file of a model or the prompt.
void require_place_for_state(std::string_view name, const std::filesystem::path& file, const std::filesystem::path& model,
                             const std::filesystem::path& prompt);

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_MODEL_COMMANDS_H_
