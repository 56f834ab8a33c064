// Golden models with a vocabulary beside them, and the built command to run them with.
#ifndef RAFFIA_TESTS_CLI_MODEL_CASE_H_
#define RAFFIA_TESTS_CLI_MODEL_CASE_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/command_line.h"
#include "support/temporary_directory.h"

class ModelCommand : public testing::Test {
 protected:
  ModelCommand() : directory_("raffia_model_command") {}

  // A copy of a golden model, in quotes for the shell. Its vocabulary is the end of a line, a space, a to i, and one character of
  // two bytes.
  std::string model(const std::string& golden) const {
    const std::filesystem::path copy = directory_.path() / golden;
    if (!std::filesystem::exists(copy)) {
      std::filesystem::create_directory(copy);
      for (const char* file : {"config.json", "model.safetensors"})
        std::filesystem::copy_file(raffia::internal::golden_directory() / golden / file, copy / file);
      directory_.write(golden + "/tokenizer.json", R"({"kind": "char", "version": 1, "characters": "\n abcdefghi\u00e9"})");
    }
    return "'" + copy.string() + "'";
  }

  std::string file(const std::string& name) const { return "'" + (directory_.path() / name).string() + "'"; }

  // `before` comes before the command: variables, or "printf abc |".
  Result raffia(const std::string& arguments, const std::string& before = "") const {
    return run_raffia(directory_.path(), arguments + (before.ends_with('|') ? "" : " </dev/null"), before);
  }

  nlohmann::json json_of(const std::string& arguments, const std::string& before = "") const {
    const Result result = raffia(arguments + " --json", before);
    EXPECT_EQ(result.exit_code, 0) << arguments << "\nsaid: " << result.err;
    return nlohmann::json::parse(result.out, nullptr, false);
  }

  // Nothing on stdout; on stderr one line that holds `message`, and with exit code 2 where to find help.
  void expect_refused(int exit_code, const std::string& arguments, const std::string& message,
                      const std::string& before = "") const {
    const Result result = raffia(arguments, before);
    EXPECT_EQ(result.exit_code, exit_code) << arguments << "\nsaid: " << result.err;
    EXPECT_EQ(result.out, "") << arguments;
    EXPECT_NE(result.err.find(message), std::string::npos) << arguments << "\nsaid: " << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), exit_code) << arguments << "\nsaid: " << result.err;
  }

  raffia::internal::TemporaryDirectory directory_;
};

#endif  // RAFFIA_TESTS_CLI_MODEL_CASE_H_
