#include "cli/shared/app_tree.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/shared/command.h"
#include "cli/shared/flags.h"
#include "core/split.h"
#include "io/formats/json_fields.h"

namespace raffia::internal::cli {
namespace {

constexpr std::string_view kExample = "Example:\n  ";

Json choices_of(CLI::Option& option) {
  Json found = Json::array();
  try {
    for (int i = 0;; ++i) {
      const std::string& name = option.get_validator(i)->get_name();
      if (!name.starts_with(kChoices)) continue;
      for (const std::string_view choice : split(std::string_view(name).substr(kChoices.size()), ',')) found.push_back(choice);
    }
  } catch (const CLI::OptionNotFound&) {  // there are no more validators, and no other way to know
    return found;
  }
}

Json option_of(CLI::Option& option) {
  Json names = Json::array();
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  if (names.empty()) names.push_back(option.get_name(true));
  Json tree = {{"names", names}, {"description", option.get_description()}};
  if (option.get_items_expected_max() > 0) {
    tree["value"] = option.get_type_name();
    tree["default"] = option.get_default_str();
    tree["choices"] = choices_of(option);
  }
  tree["required"] = option.get_required();
  return tree;
}

const CLI::App& root_of(const CLI::App& app) { return app.get_parent() == nullptr ? app : root_of(*app.get_parent()); }

// The description printed by raffia-train; null if it is not installed or cannot run.
Json tree_of_raffia_train() {
  const std::filesystem::path path = raffia_train_path();
  if (::access(path.c_str(), X_OK) != 0) return nullptr;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return nullptr;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::string program = path.string(), word = "describe";
  const std::array<char*, 3> arguments = {program.data(), word.data(), nullptr};
  pid_t child = -1;
  const bool runs = ::posix_spawn(&child, program.c_str(), &actions, nullptr, arguments.data(), environ) == 0;
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> bytes;
  for (ssize_t count; (count = ::read(ends[0], bytes.data(), bytes.size())) > 0;) {
    text.append(bytes.data(), static_cast<size_t>(count));
  }
  ::close(ends[0]);
  if (runs) ::waitpid(child, nullptr, 0);
  const Json tree = Json::parse(text, nullptr, false);
  return tree.is_object() ? tree : Json(nullptr);
}

}  // namespace

Json tree_of(const CLI::App& app) {
  const std::string footer = app.get_footer();
  Json tree = {{"name", app.get_name()},
               {"description", app.get_description()},
               {"example", footer.starts_with(kExample) ? footer.substr(kExample.size()) : ""},
               {"options", Json::array()},
               {"commands", Json::array()}};
  // CLI11 finds validators of options that may be changed, and nothing is changed here.
  for (CLI::Option* option : const_cast<CLI::App&>(app).get_options()) {
    if (!option->get_group().empty()) tree["options"].push_back(option_of(*option));
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) tree["commands"].push_back(tree_of(*command));
  }
  return tree;
}

void merge_trees(Json& tree, const Json& other) {
  for (const Json& command : other["commands"]) {
    Json& commands = tree["commands"];
    const auto same = std::ranges::find_if(commands, [&](const Json& known) { return known["name"] == command["name"]; });
    if (same == commands.end()) {
      commands.push_back(command);
    } else if ((*same)["commands"].empty() || command["commands"].empty()) {
      *same = command;
    } else {
      merge_trees(*same, command);
    }
  }
}

std::filesystem::path raffia_train_path() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() / "raffia-train";
}

Json whole_tree(const CommandLine& command) {
  Json tree = tree_of(root_of(command.app()));
  if (const Json other = tree_of_raffia_train(); !other.is_null()) merge_trees(tree, other);
  return tree;
}

std::string full_name(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : full_name(*app.get_parent()) + " " + app.get_name();
}

Run add_describe(CommandLine& command) {
  command.hide();  // used by raffia itself
  return [command] { std::cout << json_text(tree_of(root_of(command.app()))) << '\n'; };
}

}  // namespace raffia::internal::cli
