#include "cli/shared/flags.h"

#include <algorithm>
#include <charconv>
#include <functional>

#include "core/split.h"

namespace raffia::internal::cli {
namespace {

template <typename Number>
bool parse_whole(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

void require_at_most(const std::string& flag, std::string_view text, int64_t value, int64_t max) {
  if (value > max) throw FlagError(flag, fmt::format("'{}' is too large, expected at most {}", text, max));
}

using Parser = std::function<int64_t(const std::string& flag, std::string_view text)>;

Flag add_list(CommandLine& command, const std::string& flag, std::vector<int64_t>& target, const std::string& description,
              const Parser& parse) {
  return command
      .add_parsed(
          flag,
          [&target, flag, parse](const std::string& text) {
            target.clear();
            for (const std::string& value : split_list(flag, text)) target.push_back(parse(flag, value));
          },
          description)
      .type_name("LIST")
      .default_text(fmt::format("{}", fmt::join(target, ",")));
}

}  // namespace

int64_t parse_integer(const std::string& flag, std::string_view text) {
  int64_t value = 0;
  if (!parse_whole(text, value)) throw FlagError(flag, fmt::format("'{}' is not an integer", text));
  if (value > kLargestInteger || value < -kLargestInteger) {
    throw FlagError(flag, fmt::format("'{}' is too large, expected at most {}", text, kLargestInteger));
  }
  return value;
}

int64_t parse_positive(const std::string& flag, std::string_view text, int64_t max) {
  int64_t value = 0;
  if (!parse_whole(text, value) || value < 1) {
    throw FlagError(flag, fmt::format("'{}' is not a positive integer", text));
  }
  require_at_most(flag, text, value, max);
  return value;
}

int64_t parse_count(const std::string& flag, std::string_view text, int64_t max) {
  int64_t value = 0;
  if (!parse_whole(text, value) || value < 0) {
    throw FlagError(flag, fmt::format("'{}' is not an integer of 0 or more", text));
  }
  require_at_most(flag, text, value, max);
  return value;
}

uint64_t parse_seed(const std::string& flag, std::string_view text) {
  uint64_t seed = 0;
  if (!parse_whole(text, seed)) {
    throw FlagError(flag, fmt::format("'{}' is not an integer from 0 to 2^64 - 1", text));
  }
  return seed;
}

double parse_number(const std::string& flag, std::string_view text, double min, double max) {
  double value = 0;
  if (!parse_whole(text, value) || !(value >= min && value <= max)) {
    const std::string range = max < kLargestInteger ? fmt::format("{} to {}", min, max) : fmt::format("{} on", min);
    throw FlagError(flag, fmt::format("'{}' is not a number from {}", text, range));
  }
  return value;
}

std::vector<std::string> split_list(const std::string& flag, const std::string& text) {
  std::vector<std::string> values;
  for (const std::string_view value : split(text, ',')) {
    if (value.empty()) throw FlagError(flag, fmt::format("'{}' contains an empty value", text));
    if (std::find(values.begin(), values.end(), value) == values.end()) values.emplace_back(value);
  }
  return values;
}

Flag add_positive(CommandLine& command, const std::string& flag, int64_t& target, const std::string& description, int64_t max) {
  return command
      .add_parsed(
          flag, [&target, flag, max](const std::string& text) { target = parse_positive(flag, text, max); }, description)
      .type_name("N")
      .default_text(target > 0 ? fmt::format("{}", target) : "");
}

Flag add_positive(CommandLine& command, const std::string& flag, std::optional<int64_t>& target, const std::string& description) {
  return command
      .add_parsed(
          flag, [&target, flag](const std::string& text) { target = parse_positive(flag, text); }, description)
      .type_name("N");
}

Flag add_seed(CommandLine& command, const std::string& flag, uint64_t& target, const std::string& description) {
  return command
      .add_parsed(
          flag, [&target, flag](const std::string& text) { target = parse_seed(flag, text); }, description)
      .type_name("N")
      .default_text(fmt::format("{}", target));
}

Flag add_count(CommandLine& command, const std::string& flag, int64_t& target, const std::string& description) {
  return command
      .add_parsed(
          flag, [&target, flag](const std::string& text) { target = parse_count(flag, text); }, description)
      .type_name("N")
      .default_text(fmt::format("{}", target));
}

Flag add_threads(CommandLine& command, int& target) {
  return command
      .add_parsed(
          "--threads",
          [&target](const std::string& text) { target = static_cast<int>(parse_positive("--threads", text, kMaxThreads)); },
          "Threads (default: one per CPU)")
      .type_name("N");
}

Flag add_number(CommandLine& command, const std::string& flag, double& target, double min, double max,
                const std::string& description) {
  return command
      .add_parsed(
          flag, [&target, flag, min, max](const std::string& text) { target = parse_number(flag, text, min, max); }, description)
      .type_name("X")
      .default_text(fmt::format("{}", target));
}

Flag add_positives(CommandLine& command, const std::string& flag, std::vector<int64_t>& target, const std::string& description,
                   int64_t max) {
  return add_list(command, flag, target, description,
                  [max](const std::string& name, std::string_view text) { return parse_positive(name, text, max); });
}

Flag add_counts(CommandLine& command, const std::string& flag, std::vector<int64_t>& target, const std::string& description) {
  return add_list(command, flag, target, description,
                  [](const std::string& name, std::string_view text) { return parse_count(name, text); });
}

Flag add_integers(CommandLine& command, const std::string& flag, std::vector<int64_t>& target, const std::string& description) {
  return add_list(command, flag, target, description, parse_integer);
}

void add_format_flags(CommandLine& command, FormatFlags& target) {
  const Flag json = command.add_switch("--json", target.json, "Print JSON, an array of records");
  const Flag csv = command.add_switch("--csv", target.csv, "Print CSV").excludes(json);
  command.add_switch("--md", target.markdown, "Print a Markdown table (default)").excludes(json).excludes(csv);
}

}  // namespace raffia::internal::cli
