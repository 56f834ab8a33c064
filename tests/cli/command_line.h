// The built command, run from a test through the shell.
#ifndef RAFFIA_TESTS_CLI_COMMAND_LINE_H_
#define RAFFIA_TESTS_CLI_COMMAND_LINE_H_

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "support/paths.h"

struct Result {
  int exit_code = -1;
  std::string out, err;
};

inline std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// `arguments` go through the shell; `environment` is put before the command. What it prints passes through files of `directory`.
inline Result run_raffia(const std::filesystem::path& directory, const std::string& arguments, const std::string& environment) {
  const std::filesystem::path out = directory / "out", err = directory / "err";
  const std::string line = environment + " '" + raffia::internal::raffia_command() + "' " + arguments + " >'" + out.string() +
                           "' 2>'" + err.string() + "'";
  const int status = std::system(line.c_str());
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1, .out = contents(out), .err = contents(err)};
}

#endif  // RAFFIA_TESTS_CLI_COMMAND_LINE_H_
