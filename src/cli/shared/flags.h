// Flags whose values are checked as they are parsed, with errors such as
//   --lengths: 'abc' is not a positive integer
#ifndef RAFFIA_CLI_SHARED_FLAGS_H_
#define RAFFIA_CLI_SHARED_FLAGS_H_

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/format.h"
#include "cli/shared/command_flags.h"
#include "core/named.h"

namespace raffia::internal::cli {

inline constexpr int64_t kMaxThreads = 1024;  // more is probably a typing error
// More than any size that fits in memory, and small enough that products of two do not overflow.
inline constexpr int64_t kLargestInteger = 1'000'000'000;

// Parses the text of one value. Throws FlagError, whose message starts with `flag`.
int64_t parse_integer(const std::string& flag, std::string_view text);
int64_t parse_positive(const std::string& flag, std::string_view text, int64_t max = kLargestInteger);
int64_t parse_count(const std::string& flag, std::string_view text, int64_t max = kLargestInteger);  // 0 or more
uint64_t parse_seed(const std::string& flag, std::string_view text);

// "a,b,c" split at commas; duplicates are removed. An empty list or value is an error.
std::vector<std::string> split_list(const std::string& flag, const std::string& text);

// A flag with one value, or with a comma-separated list of values. The value of the target is the default.
Flag add_positive(CommandLine& command, const std::string& flag, int64_t& target, const std::string& description,
                  int64_t max = kLargestInteger);
Flag add_positive(CommandLine& command, const std::string& flag, std::optional<int64_t>& target, const std::string& description);
Flag add_count(CommandLine& command, const std::string& flag, int64_t& target, const std::string& description);  // 0 or more
Flag add_seed(CommandLine& command, const std::string& flag, uint64_t& target, const std::string& description);
Flag add_threads(CommandLine& command, int& target);  // --threads of one run; 0, the default: one per CPU

// A number from `min` to `max`.
double parse_number(const std::string& flag, std::string_view text, double min, double max);
Flag add_number(CommandLine& command, const std::string& flag, double& target, double min, double max,
                const std::string& description);
Flag add_positives(CommandLine& command, const std::string& flag, std::vector<int64_t>& target, const std::string& description,
                   int64_t max = kLargestInteger);
Flag add_counts(CommandLine& command, const std::string& flag, std::vector<int64_t>& target, const std::string& description);
Flag add_integers(CommandLine& command, const std::string& flag, std::vector<int64_t>& target, const std::string& description);

// --json, --csv, --md: how records are printed.
struct FormatFlags {
  bool json = false, csv = false, markdown = false;

  bench::Format format() const { return json ? bench::Format::json : csv ? bench::Format::csv : bench::Format::markdown; }
};
void add_format_flags(CommandLine& command, FormatFlags& target);

// A flag that accepts the names of a table.
template <typename Value, size_t kCount>
Value parse_name(const std::string& flag, const std::string& text, const Names<Value, kCount>& names) {
  std::vector<std::string_view> known;
  for (const auto& [name, value] : names) {
    if (name == text) return value;
    known.push_back(name);
  }
  throw FlagError(flag, fmt::format("'{}' is unknown, expected one of {}", text, fmt::join(known, ", ")));
}

template <typename Value, size_t kCount>
std::string joined_names(const Names<Value, kCount>& names) {
  std::vector<std::string_view> known;
  for (const auto& [name, value] : names) known.push_back(name);
  return fmt::format("{}", fmt::join(known, ","));
}

template <typename Value, size_t kCount>
Flag add_name(CommandLine& command, const std::string& flag, const Names<Value, kCount>& names, Value& target,
              const std::string& description) {
  return command
      .add_parsed(
          flag, [&target, &names, flag](const std::string& text) { target = parse_name(flag, text, names); }, description)
      .type_name("NAME")
      .choices(joined_names(names))
      .default_text(std::string(name_in(names, target)));
}

template <typename Value, size_t kCount>
Flag add_names(CommandLine& command, const std::string& flag, const Names<Value, kCount>& names, std::vector<Value>& target,
               const std::string& description) {
  std::vector<std::string_view> defaults;
  for (const Value value : target) defaults.push_back(name_in(names, value));
  return command
      .add_parsed(
          flag,
          [&target, &names, flag](const std::string& text) {
            target.clear();
            for (const std::string& name : split_list(flag, text)) target.push_back(parse_name(flag, name, names));
          },
          description)
      .type_name("LIST")
      .choices(joined_names(names))
      .default_text(fmt::format("{}", fmt::join(defaults, ",")));
}

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_FLAGS_H_
