// A command line program as a table of subcommands. Exit code 0 on success, 2 on bad usage, 1 on failure, 128 plus
// the signal number if interrupted.
#ifndef RAFFIA_CLI_SHARED_PROGRAM_H_
#define RAFFIA_CLI_SHARED_PROGRAM_H_

#include <span>

#include "cli/shared/command.h"

namespace raffia::internal::cli {

struct Command {
  const char* group;  // the command it belongs to; null at the top
  const char* name;
  const char* description;
  const char* example;
  Run (*add)(CommandLine& command);
};

struct Group {
  const char* name;
  const char* description;
  const char* example;
};

struct Program {
  const char* name;
  const char* description;
  const char* example;
  std::span<const Group> groups;
  std::span<const Command> commands;
};

int run_program(const Program& program, int argc, char** argv);

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_PROGRAM_H_
