// raffia completion bash|zsh|fish: a script that completes commands, flags, named values, and file names.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/shared/app_tree.h"
#include "cli/shared/command.h"
#include "cli/shared/flags.h"

namespace raffia::internal::cli {
namespace {

using Visit = std::function<void(const Json& command, const std::string& path)>;

// Every command with its full name: "raffia", "raffia bench", "raffia bench attention", ..
void for_each_command(const Json& tree, const Visit& visit, const std::string& before = "") {
  const std::string path = before + tree["name"].get<std::string>();
  visit(tree, path);
  for (const Json& command : tree["commands"]) for_each_command(command, visit, path + " ");
}

std::vector<std::string> paths_of(const Json& tree) {
  std::vector<std::string> paths;
  for_each_command(tree, [&paths](const Json&, const std::string& path) { paths.push_back(path); });
  return paths;
}

bool is_flag(const Json& option) { return option["names"][0].get<std::string>().starts_with('-'); }
bool has_choices(const Json& option) { return option.contains("choices") && !option["choices"].empty(); }

std::vector<std::string> strings_of(const Json& array) { return array.get<std::vector<std::string>>(); }

// In single quotes. Only fish treats a backslash in them as special.
std::string in_single_quotes(std::string_view text, std::string_view quote, bool escapes_backslash = false) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'') {
      result += quote;
    } else {
      if (escapes_backslash && c == '\\') result += c;
      result += c;
    }
  }
  return result + "'";
}

// Only the first part: a menu line has no room for more.
std::string brief(const Json& entry) {
  const std::string text = entry["description"].get<std::string>();
  return text.substr(0, std::min(text.find(" ("), text.find_first_of(":;\n")));
}

// bash and zsh: the lines of `case "$where"`, what comes after each command, and the choices of its flags.
std::string cases(const Json& tree) {
  std::string text;
  for_each_command(tree, [&text](const Json& command, const std::string& path) {
    std::vector<std::string> names, flags, arms;
    for (const Json& below : command["commands"]) names.push_back(below["name"].get<std::string>());
    for (const Json& option : command["options"]) {
      if (!is_flag(option)) {
        // Of an argument: the shells of `raffia completion`.
        for (const std::string& choice : strings_of(option.value("choices", Json::array()))) names.push_back(choice);
        continue;
      }
      const std::vector<std::string> spellings = strings_of(option["names"]);
      flags.insert(flags.end(), spellings.begin(), spellings.end());
      if (!option.contains("value")) continue;
      arms.push_back(fmt::format("        {}) {} ;;\n", fmt::join(spellings, "|"),
                                 has_choices(option) ? fmt::format("values='{}'", fmt::join(strings_of(option["choices"]), " "))
                                                     : std::string("files=1")));
    }
    names.insert(names.end(), flags.begin(), flags.end());
    text += fmt::format("    '{}')\n      names='{}'\n", path, fmt::join(names, " "));
    if (!arms.empty()) text += fmt::format("      case \"$previous\" in\n{}      esac\n", fmt::join(arms, ""));
    text += "      ;;\n";
  });
  return text;
}

// bash and zsh: follows the words before the cursor down the tree. `words_before`: the array that holds them.
std::string walk(const Json& tree, std::string_view words_before) {
  std::vector<std::string> quoted;
  for (const std::string& path : paths_of(tree)) quoted.push_back("'" + path + "'");
  return fmt::format(
      "  for word in {}; do\n"
      "    case \"$where $word\" in\n"
      "      {}) where=\"$where $word\" ;;\n"
      "    esac\n"
      "  done\n",
      words_before, fmt::join(quoted, " | "));
}

std::string bash_script(const Json& tree) {
  return fmt::format(
      "# bash completion for raffia, as `raffia completion bash` prints it.\n"
      "_raffia() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}}\n"
      "  local where=raffia word names='' values='' files=''\n"
      "  COMPREPLY=()\n"
      "{}"
      "  case \"$where\" in\n"
      "{}"
      "  esac\n"
      "  if [[ -n $values ]]; then  # perhaps the last of a list\n"
      "    mapfile -t COMPREPLY < <(compgen -P \"${{current%\"${{current##*,}}\"}}\" -W \"$values\" -- \"${{current##*,}}\")\n"
      "  elif [[ -z $files && ($current == -* || $names == [a-z]*) ]]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"$names\" -- \"$current\")\n"
      "  fi  # no reply: names of files\n"
      "}}\n"
      "complete -o bashdefault -o default -F _raffia raffia\n",
      walk(tree, "\"${COMP_WORDS[@]:1:COMP_CWORD - 1}\""), cases(tree));
}

std::string zsh_script(const Json& tree) {
  return fmt::format(
      "#compdef raffia\n"
      "# zsh completion for raffia, as `raffia completion zsh` prints it.\n"
      "_raffia() {{\n"
      "  local current=${{words[CURRENT]}} previous=${{words[CURRENT-1]}}\n"
      "  local -a before=(\"${{(@)words[2,CURRENT-1]}}\")\n"
      "  local where=raffia word names='' values='' files=''\n"
      "{}"
      "  case \"$where\" in\n"
      "{}"
      "  esac\n"
      "  if [[ -n $values ]]; then\n"
      "    compset -P '*,'  # perhaps the last of a list\n"
      "    compadd -- ${{(s: :)values}}\n"
      "  elif [[ -n $files || $current != -* && $names != [a-z]* ]]; then\n"
      "    _files\n"
      "  else\n"
      "    compadd -- ${{(s: :)names}}\n"
      "  fi\n"
      "}}\n"
      "if [[ $funcstack[1] == _raffia ]]; then\n"
      "  _raffia \"$@\"\n"
      "else\n"
      "  compdef _raffia raffia\n"
      "fi\n",
      walk(tree, "\"${before[@]}\""), cases(tree));
}

std::string fish_script(const Json& tree) {
  std::vector<std::string> quoted;
  for (const std::string& path : paths_of(tree)) quoted.push_back("'" + path + "'");
  std::string text = fmt::format(
      "# fish completion for raffia, as `raffia completion fish` prints it.\n"
      "function __raffia_is_at\n"
      "    set -l place raffia\n"
      "    for word in (commandline -opc)\n"
      "        if contains -- \"$place $word\" {}\n"
      "            set place \"$place $word\"\n"
      "        end\n"
      "    end\n"
      "    test \"$place\" = \"$argv\"\n"
      "end\n",
      fmt::join(quoted, " "));
  const auto quote = [](std::string_view words) { return in_single_quotes(words, "\\'", true); };
  for_each_command(tree, [&](const Json& command, const std::string& path) {
    const std::string begin = fmt::format("complete -c raffia -n '__raffia_is_at {}'", path);
    for (const Json& below : command["commands"]) {
      text += fmt::format("{} -f -a {} -d {}\n", begin, below["name"].get<std::string>(), quote(brief(below)));
    }
    for (const Json& option : command["options"]) {
      std::string line = begin;
      for (const std::string& each : strings_of(option["names"])) {
        if (each.starts_with("--")) line += " -l " + each.substr(2);
        if (each.starts_with('-') && !each.starts_with("--")) line += " -s " + each.substr(1);
      }
      if (is_flag(option) && option.contains("value")) line += has_choices(option) ? " -x" : " -r";
      if (has_choices(option)) line += fmt::format(" -a '{}'", fmt::join(strings_of(option["choices"]), " "));
      if (is_flag(option) || has_choices(option)) text += fmt::format("{} -d {}\n", line, quote(brief(option)));
    }
  });
  return text;
}

using Writer = std::string (*)(const Json& tree);
constexpr Named<Writer> kShells[] = {{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}};

}  // namespace

Run add_completion(CommandLine& command) {
  const auto writer = std::make_shared<Writer>(bash_script);
  add_name(command, "shell", kShells, *writer, "bash, zsh or fish").required().default_text("");
  return [command, writer] { std::cout << (*writer)(whole_tree(command)); };
}

}  // namespace raffia::internal::cli
