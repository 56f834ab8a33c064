#include "cli/shared/command_flags.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "cli/shared/app_tree.h"

namespace raffia::internal::cli {

Flag Flag::type_name(const std::string& name) const {
  option_->type_name(name);
  return *this;
}

Flag Flag::default_text(const std::string& text) const {
  option_->default_str(text);
  return *this;
}

Flag Flag::choices(const std::string& joined) const {
  option_->check(CLI::Validator([](std::string&) { return std::string(); }, "", std::string(kChoices) + joined));
  return *this;
}

Flag Flag::required() const {
  option_->required();
  return *this;
}

Flag Flag::file_name() const {
  option_->check(CLI::Validator(
      [](std::string& name) { return name.empty() ? "is empty, expected the name of a file" : std::string(); }, ""));
  return *this;
}

Flag Flag::excludes(Flag other) const {
  option_->excludes(other.option_);
  return *this;
}

Flag Flag::excludes(const std::string& other) const {
  option_->excludes(other);
  return *this;
}

Flag Flag::needs(Flag other) const {
  option_->needs(other.option_);
  return *this;
}

Flag CommandLine::add(const std::string& name, std::string& target, const std::string& description) const {
  return Flag(app_->add_option(name, target, description));
}

Flag CommandLine::add(const std::string& name, std::filesystem::path& target, const std::string& description) const {
  return add_parsed(
      name, [&target](const std::string& text) { target = text; }, description);
}

Flag CommandLine::add_values(const std::string& name, std::vector<std::string>& target, int max,
                             const std::string& description) const {
  return Flag(app_->add_option(name, target, description)->expected(1, max));
}

Flag CommandLine::add_parsed(const std::string& name, Parse parse, const std::string& description) const {
  return Flag(app_->add_option_function<std::string>(name, std::move(parse), description));
}

Flag CommandLine::add_repeated(const std::string& name, Parse parse, const std::string& description) const {
  const auto parse_all = [parse = std::move(parse)](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) parse(text);
  };
  return Flag(app_->add_option_function<std::vector<std::string>>(name, parse_all, description)->expected(1)->take_all());
}

Flag CommandLine::add_switch(const std::string& name, bool& target, const std::string& description) const {
  return Flag(app_->add_flag(name, target, description));
}

Flag CommandLine::add_switch(const std::string& name, std::function<void()> given, const std::string& description) const {
  return Flag(app_->add_flag_callback(name, std::move(given), description));
}

void CommandLine::hide() const { app_->group(""); }

}  // namespace raffia::internal::cli
