// The flags and arguments of a command, as commands see them. The parser behind them is CLI11, which only the sources that
// implement this include: its header takes several seconds to compile.
#ifndef RAFFIA_CLI_SHARED_COMMAND_FLAGS_H_
#define RAFFIA_CLI_SHARED_COMMAND_FLAGS_H_

#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace raffia::internal::cli {

// The value of a flag is wrong: exit code 2. The message starts with the flag, "--tokens: 'abc' is not a positive integer".
class FlagError : public std::runtime_error {
 public:
  FlagError(const std::string& flag, const std::string& message) : std::runtime_error(flag + ": " + message) {}
};

// A flag or argument that was added. Copies mean the same flag.
class Flag {
 public:
  explicit Flag(CLI::Option* option) : option_(option) {}

  // What --help and completions say of it.
  Flag type_name(const std::string& name) const;
  Flag default_text(const std::string& text) const;
  Flag choices(const std::string& joined) const;  // "f32,bf16,int8": for completions, it checks nothing

  // What the parser checks.
  Flag required() const;
  Flag file_name() const;  // not an empty name, such as an unset shell variable gives
  Flag excludes(Flag other) const;
  Flag excludes(const std::string& other) const;
  Flag needs(Flag other) const;

 private:
  CLI::Option* option_;
};

// What a command adds its flags to. A name that does not begin with a dash is an argument: "model", "file". Targets are
// references, and outlive the parser.
class CommandLine {
 public:
  explicit CommandLine(CLI::App& app) : app_(&app) {}

  Flag add(const std::string& name, std::string& target, const std::string& description) const;
  Flag add(const std::string& name, std::filesystem::path& target, const std::string& description) const;
  // Several values in a row, such as file names.
  static constexpr int kAnyNumber = 1 << 29;  // as CLI11 writes it
  Flag add_values(const std::string& name, std::vector<std::string>& target, int max, const std::string& description) const;
  // `parse` gets the text of the value and throws FlagError if it is wrong.
  using Parse = std::function<void(const std::string& text)>;
  Flag add_parsed(const std::string& name, Parse parse, const std::string& description) const;
  // A flag that may be repeated: parsed once per value.
  Flag add_repeated(const std::string& name, Parse parse, const std::string& description) const;
  // A flag without a value.
  Flag add_switch(const std::string& name, bool& target, const std::string& description) const;
  Flag add_switch(const std::string& name, std::function<void()> given, const std::string& description) const;

  void hide() const;  // from --help and completions

  CLI::App& app() const { return *app_; }

 private:
  CLI::App* app_;
};

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_COMMAND_FLAGS_H_
