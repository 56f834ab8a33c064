// The raffia command: a table of subcommands. Exit code 0 on success, 2 on bad usage, 1 on failure.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "raffia/version.h"

namespace raffia::cli {
namespace {

constexpr int kSuccess = 0;
constexpr int kFailure = 1;
constexpr int kBadUsage = 2;

struct Command {
  const char* group;  // the command it belongs to; null at the top
  const char* name;
  const char* description;
  const char* example;
  Run (*add)(CLI::App& app);
};

constexpr Command kCommands[] = {
    {"bench", "attention", "Time attention over whole sequences, forward and backward",
     "raffia bench attention --causal --ops softmax,rfa,rfa_gate --lengths 512,2048,8192 --threads 1,2 --json",
     add_bench_attention},
    {"bench", "decode", "Time one decoding step at a given depth",
     "raffia bench decode --ops softmax,rfa_gate --input features,qk --lengths 512,2048,8192 --json", add_bench_decode},
    {nullptr, "approx", "Measure how far estimators are from exact attention, and how fast",
     "raffia approx --data walk --scale 1,2 --estimators rfa:log=true,lara,eva,ra --samples 16,64,256 --plot error.svg",
     add_approx},
    {nullptr, "info", "Show version, instruction sets, threads, caches and compiler", "raffia info --json", add_info},
};

struct Group {
  const char* name;
  const char* description;
  const char* example;
};

constexpr Group kGroups[] = {
    {"bench", "Measure speed on this machine", "raffia bench attention --causal --lengths 512,2048"},
};

constexpr const char* kExample = "raffia bench attention --causal --lengths 512,2048,8192";

std::string footer(const char* example) { return fmt::format("Example:\n  {}", example); }

// The innermost subcommand that was named, whose help fits an error best.
const CLI::App& innermost(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : innermost(*chosen.front());
}

std::string full_name(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : full_name(*app.get_parent()) + " " + app.get_name();
}

// The first word that should name a subcommand of `app` and does not; CLI11 would only say that one is missing.
std::optional<std::string> unknown_command(const CLI::App& app, std::span<char* const> arguments) {
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  if (commands.empty() || arguments.empty() || arguments[0][0] == '-') return std::nullopt;
  std::vector<std::string> names;
  for (const CLI::App* command : commands) {
    if (command->get_name() == arguments[0]) return unknown_command(*command, arguments.subspan(1));
    names.push_back(command->get_name());
  }
  return fmt::format("'{}' is not a command, expected one of {}", arguments[0], fmt::join(names, ", "));
}

int bad_usage(const CLI::App& app, const std::string& message) {
  const std::string name = full_name(innermost(app));
  fmt::print(stderr, "{}: {}\nSee '{} --help'.\n", name, message, name);
  return kBadUsage;
}

int run(int argc, char** argv) {
  CLI::App app{"Random Feature Attention: linear-time attention with a state of constant size", "raffia"};
  app.set_version_flag("--version", raffia::version());
  app.require_subcommand(1);
  app.footer(footer(kExample));
  for (const Group& group : kGroups) {
    app.add_subcommand(group.name, group.description)->require_subcommand(1)->footer(footer(group.example));
  }
  std::vector<std::pair<const CLI::App*, Run>> commands;
  for (const Command& command : kCommands) {
    CLI::App& parent = command.group == nullptr ? app : *app.get_subcommand(command.group);
    CLI::App& subcommand = *parent.add_subcommand(command.name, command.description);
    subcommand.footer(footer(command.example));
    commands.emplace_back(&subcommand, command.add(subcommand));
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
    return bad_usage(app, error.what());
  } catch (const UsageError& error) {
    return bad_usage(app, error.what());
  }
  std::cout.flush();
  if (!std::cout) {
    fmt::print(stderr, "raffia: stdout could not be written\n");
    return kFailure;
  }
  return kSuccess;
}

}  // namespace
}  // namespace raffia::cli

int main(int argc, char** argv) {
  try {
    return raffia::cli::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "raffia: {}\n", error.what());
    return raffia::cli::kFailure;
  }
}
