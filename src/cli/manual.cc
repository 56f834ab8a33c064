// raffia man: the manual page in man(7) format, from the same commands and flags as --help.
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/shared/app_tree.h"
#include "cli/shared/command.h"
#include "raffia/version.h"

namespace raffia::internal::cli {
namespace {

// Escapes text: dashes that can be copied, backslashes, and no dot or quote at the start of a line.
std::string plain_text(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (result.empty() || result.back() == '\n')) result += "\\&";
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
  }
  return result;
}

std::string text_of(const Json& tree, const char* field) { return plain_text(tree[field].get<std::string>()); }

bool is_flag(const Json& option) { return option["names"][0].get<std::string>().starts_with('-'); }

std::string synopsis_of(const Json& command, const std::string& path) {
  std::string line = fmt::format(".B {}\n", plain_text(path));
  if (!command["commands"].empty()) return line + ".I COMMAND\n";
  if (std::ranges::any_of(command["options"], is_flag)) line += "[\\fIOPTIONS\\fR]\n";
  for (const Json& option : command["options"]) {
    if (is_flag(option)) continue;
    const bool is_required = option["required"].get<bool>();
    line += fmt::format("{}\\fI{}\\fR{}\n", is_required ? "" : "[", plain_text(option["names"][0].get<std::string>()),
                        is_required ? "" : "]");
  }
  return line;
}

std::string option_text(const Json& option) {
  std::vector<std::string> names;
  for (const Json& name : option["names"]) {
    names.push_back(fmt::format("\\f{}{}\\fR", is_flag(option) ? 'B' : 'I', plain_text(name.get<std::string>())));
  }
  std::string text = fmt::format(".TP\n{}", fmt::join(names, ", "));
  const std::string value = option.value("value", "");
  if (is_flag(option) && !value.empty()) text += fmt::format(" \\fI{}\\fR", plain_text(value));
  text += "\n" + text_of(option, "description");
  if (const auto choices = option.value("choices", std::vector<std::string>()); !choices.empty()) {
    text += plain_text(fmt::format("\n(one of {})", fmt::join(choices, ", ")));
  }
  if (const std::string usual = option.value("default", ""); !usual.empty()) {
    text += plain_text(fmt::format("\n[default: {}]", usual));
  }
  return text + "\n";
}

void add_command(const Json& command, const std::string& path, std::string& page) {
  if (command["commands"].empty()) {
    page += fmt::format(".SS {}\n{}.PP\n{}.\n", plain_text(path), synopsis_of(command, path), text_of(command, "description"));
    for (const Json& option : command["options"]) {
      if (option["names"].back() != "--help") page += option_text(option);
    }
    page += fmt::format(".PP\nExample:\n.PP\n.nf\n{}\n.fi\n", text_of(command, "example"));
  }
  for (const Json& below : command["commands"]) add_command(below, path + " " + below["name"].get<std::string>(), page);
}

std::string manual_of(const Json& tree) {
  const std::string name = tree["name"].get<std::string>();
  std::string page = fmt::format(".\\\" Made by `raffia man`.\n.TH RAFFIA 1 \"\" \"raffia {}\" \"User Commands\"\n", version());
  page += fmt::format(".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n{}", name, text_of(tree, "description"), synopsis_of(tree, name));
  page +=
      "[\\fIOPTIONS\\fR]\n"
      ".SH DESCRIPTION\n"
      "Results are printed to standard output, progress and messages to standard error.\n"
      "\\fBraffia\\fR \\fICOMMAND\\fR \\fB\\-\\-help\\fR lists the flags of a command.\n"
      "Values of type \\fILIST\\fR are separated by commas.\n"
      ".SH COMMANDS\n";
  add_command(tree, name, page);
  page +=
      ".SH ENVIRONMENT\n"
      ".TP\n\\fBRAFFIA_MAX_ISA\\fR\n"
      "The highest instruction set that is used: scalar, sse4, avx2, avx512 or neon.\n"
      "In a list separated by commas, an item \\fIKERNEL\\fR=\\fIISA\\fR sets the one of that kernel alone; an unknown name "
      "prints all.\n"
      ".TP\n\\fBRAFFIA_VERBOSE\\fR\n"
      "1: print operation, shape, instruction set and time of every operation to standard error.\n"
      ".TP\n\\fBCOLUMNS\\fR\n"
      "Width of progress bars if the width of the terminal is unknown.\n"
      ".SH EXIT STATUS\n"
      ".TP\n\\fB0\\fR\nSuccess.\n"
      ".TP\n\\fB1\\fR\nFailure, for example a file that cannot be read or standard output that cannot be written.\n"
      ".TP\n\\fB2\\fR\nBad usage: an unknown command or flag, or a value that does not fit.\n"
      ".TP\n\\fB129\\fR, \\fB130\\fR, \\fB143\\fR\nInterrupted by SIGHUP (a closed terminal), Ctrl\\-C (SIGINT) or SIGTERM.\n";
  return page;
}

}  // namespace

Run add_man(CommandLine& command) {
  return [command] { std::cout << manual_of(whole_tree(command)); };
}

}  // namespace raffia::internal::cli
