// The commands and flags of a program as data: the source of shell completions and of the manual page.
//
//   {"name": "generate", "description": ..., "example": ..., "options": [...], "commands": [...]}
//   an option: {"names": ["--top-k"], "value": "N", "description": ..., "default": "0", "choices": [...], "required": false}
//
// An option without "value" takes none; one whose name does not begin with a dash is an argument.
#ifndef RAFFIA_CLI_SHARED_APP_TREE_H_
#define RAFFIA_CLI_SHARED_APP_TREE_H_

#include <filesystem>
#include <string>
#include <string_view>

#include "cli/shared/command.h"

namespace raffia::internal::cli {

// Begins the name of the validator that holds the values of a flag, joined by commas. It accepts any value, and --help does not
// show it.
inline constexpr std::string_view kChoices = "choices:";

// The tree of `app` and its subcommands, without hidden commands.
Json tree_of(const CLI::App& app);

// Replaces commands of `tree` by those of the same name in `other`, and adds the rest.
void merge_trees(Json& tree, const Json& other);

// The path of raffia-train: in the directory of this program.
std::filesystem::path raffia_train_path();

// The tree of raffia, with what raffia-train adds if it is installed. `command`: any command of raffia.
Json whole_tree(const CommandLine& command);

// "raffia bench attention".
std::string full_name(const CLI::App& app);

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_APP_TREE_H_
