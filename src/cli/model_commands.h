// What the commands that run models share.
#ifndef RAFFIA_CLI_MODEL_COMMANDS_H_
#define RAFFIA_CLI_MODEL_COMMANDS_H_

#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>

#include "cli/command.h"
#include "raffia/model.h"

namespace raffia::cli {

CLI::Option* add_model(CLI::App& app, std::filesystem::path& directory);

// Refuses models that were made for something else, and names the command that runs them.
std::shared_ptr<const Model> load_model(const std::filesystem::path& directory, std::initializer_list<Task> tasks);

// A fingerprint as all commands print it.
std::string fingerprint_text(uint64_t fingerprint);

// Throws IoError where a file of this name cannot be made: better before an hour of work than after.
void require_place_for(const std::filesystem::path& file);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_MODEL_COMMANDS_H_
