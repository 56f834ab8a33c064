#include "cli/shared/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <exception>
#include <iostream>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/error.h"
#include "cli/shared/app_tree.h"
#include "cli/shared/interrupt.h"
#include "core/message.h"
#include "core/suggest.h"
#include "io/formats/mapped_file.h"
#include "raffia/version.h"

namespace raffia::internal::cli {
namespace {

constexpr int kSuccess = 0;
constexpr int kFailure = 1;
constexpr int kBadUsage = 2;
constexpr int kSignal = 128;  // and its number

std::string footer(const char* example) { return fmt::format("Example:\n  {}", example); }

// The innermost subcommand that was named, whose help fits an error best.
const CLI::App& innermost(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : innermost(*chosen.front());
}

// The first word that should be a subcommand of `app` but is not; CLI11 would only report that one is missing.
std::optional<std::string> unknown_command(const CLI::App& app, std::span<char* const> arguments) {
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  if (commands.empty() || arguments.empty() || arguments[0][0] == '-') return std::nullopt;
  std::vector<std::string> names;
  for (const CLI::App* command : commands) {
    if (command->get_name() == arguments[0]) return unknown_command(*command, arguments.subspan(1));
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  const std::string meant = suggestion(arguments[0], names);
  return fmt::format("unknown command '{}'{}", arguments[0],
                     meant.empty() ? fmt::format(", expected one of {}", fmt::join(names, ", ")) : meant);
}

// The first word that looks like an option but is not one. Checked before other errors, which it may cause: the value of a
// misspelled option is taken for a file.
std::optional<std::string> unknown_option(const CLI::App& app) {
  const auto words = app.remaining(true);
  const auto found = std::ranges::find_if(words, [](const std::string& word) { return word.starts_with('-') && word != "-"; });
  if (found == words.end()) return std::nullopt;
  const std::string option = found->substr(0, found->find('='));
  std::vector<std::string> names;
  for (const CLI::Option* known : innermost(app).get_options()) {
    for (const std::string& name : known->get_lnames()) names.push_back("--" + name);
  }
  return fmt::format("unknown option '{}'{}", option, suggestion(option, names));
}

int bad_usage(const CLI::App& app, const std::string& message) {
  const std::string name = full_name(innermost(app));
  say("{}: {}\nSee '{} --help'.", name, one_line(message), name);
  return kBadUsage;
}

// If the caller closed a standard stream, the next opened file would take its place. Here stdin is empty then, and writing to the
// others fails.
void fill_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) == -1 && errno == EBADF) (void)::open("/dev/null", O_RDONLY);
  }
}

int run(const Program& program, int argc, char** argv) {
  CLI::App app{program.description, program.name};
  app.set_version_flag("--version", raffia::version());
  app.require_subcommand(1);
  app.footer(footer(program.example));
  for (const Group& group : program.groups) {
    app.add_subcommand(group.name, group.description)->require_subcommand(1)->footer(footer(group.example));
  }
  std::vector<std::pair<const CLI::App*, Run>> commands;
  for (const Command& command : program.commands) {
    CLI::App& parent = command.group == nullptr ? app : *app.get_subcommand(command.group);
    CLI::App& subcommand = *parent.add_subcommand(command.name, command.description);
    subcommand.footer(footer(command.example));
    CommandLine flags(subcommand);
    commands.emplace_back(&subcommand, command.add(flags));
  }

  try {
    if (const auto message = unknown_command(app, std::span(argv, static_cast<size_t>(argc)).subspan(1)))
      throw UsageError(*message);
    app.parse(argc, argv);
    for (const auto& [subcommand, run_command] : commands) {
      if (subcommand->parsed()) run_command();
    }
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::Error& error) {
    return bad_usage(app, unknown_option(app).value_or(error.what()));
  } catch (const FlagError& error) {
    return bad_usage(app, unknown_option(app).value_or(error.what()));
  } catch (const UsageError& error) {
    return bad_usage(app, error.what());
  } catch (const bench::OptionError& error) {
    return bad_usage(app, error.what());
  }
  return kSuccess;
}

bool is_stdout_written() {
  std::cout.flush();
  return std::cout.good();
}

}  // namespace

int run_program(const Program& program, int argc, char** argv) {
  fill_standard_streams();
  // If the reader of stdout or stderr is gone, a command must still be able to save its results. Writing to stdout then fails.
  std::signal(SIGPIPE, SIG_IGN);
  end_first_process_on_signals();  // commands that do more on a signal replace these handlers
  exit_where_mapped_files_are_cut(program.name);
  try {
    const int code = run(program, argc, argv);
    if (code != kSuccess || is_stdout_written()) return code;
    say("{}: stdout could not be written", program.name);
  } catch (const Interrupted& interrupted) {
    say("{}: {}", program.name, one_line(interrupted.what()));
    return kSignal + interrupted.signal;
  } catch (const std::bad_alloc&) {
    say("{}: not enough memory", program.name);
  } catch (const std::exception& error) {
    say("{}: {}", program.name, one_line(error.what()));
  }
  return kFailure;
}

}  // namespace raffia::internal::cli
