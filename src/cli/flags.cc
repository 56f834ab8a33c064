#include "cli/flags.h"

#include <charconv>

#include "core/split.h"

namespace raffia::cli {
namespace {

// Far above any size that fits in memory, and low enough that products of two do not overflow.
constexpr int64_t kLargest = 1'000'000'000;

template <typename Integer>
bool parse_whole(std::string_view text, Integer& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

using Parser = int64_t (*)(const std::string& flag, std::string_view text);

CLI::Option* add_list(CLI::App& app, const std::string& flag, std::vector<int64_t>& target, const std::string& description,
                      Parser parse) {
  return app
      .add_option_function<std::string>(
          flag,
          [&target, flag, parse](const std::string& text) {
            target.clear();
            for (const std::string& value : split_list(flag, text)) target.push_back(parse(flag, value));
          },
          description)
      ->type_name("LIST")
      ->default_str(fmt::format("{}", fmt::join(target, ",")));
}

}  // namespace

int64_t parse_integer(const std::string& flag, std::string_view text) {
  int64_t value = 0;
  if (!parse_whole(text, value)) throw CLI::ValidationError(flag, fmt::format("'{}' is not an integer", text));
  if (value > kLargest || value < -kLargest) {
    throw CLI::ValidationError(flag, fmt::format("'{}' is too large, expected at most {}", text, kLargest));
  }
  return value;
}

int64_t parse_positive(const std::string& flag, std::string_view text) {
  int64_t value = 0;
  if (!parse_whole(text, value) || value < 1) {
    throw CLI::ValidationError(flag, fmt::format("'{}' is not a positive integer", text));
  }
  return parse_integer(flag, text);
}

std::vector<std::string> split_list(const std::string& flag, const std::string& text) {
  std::vector<std::string> values;
  for (const std::string_view value : split(text, ',')) {
    if (value.empty()) throw CLI::ValidationError(flag, fmt::format("'{}' holds an empty value", text));
    if (std::find(values.begin(), values.end(), value) == values.end()) values.emplace_back(value);
  }
  return values;
}

CLI::Option* add_positive(CLI::App& app, const std::string& flag, int64_t& target, const std::string& description) {
  return app
      .add_option_function<std::string>(
          flag, [&target, flag](const std::string& text) { target = parse_positive(flag, text); }, description)
      ->type_name("N")
      ->default_str(target > 0 ? fmt::format("{}", target) : "");
}

CLI::Option* add_positive(CLI::App& app, const std::string& flag, std::optional<int64_t>& target,
                          const std::string& description) {
  return app
      .add_option_function<std::string>(
          flag, [&target, flag](const std::string& text) { target = parse_positive(flag, text); }, description)
      ->type_name("N");
}

CLI::Option* add_seed(CLI::App& app, const std::string& flag, uint64_t& target, const std::string& description) {
  return app
      .add_option_function<std::string>(
          flag,
          [&target, flag](const std::string& text) {
            if (!parse_whole(text, target)) {
              throw CLI::ValidationError(flag, fmt::format("'{}' is not an integer from 0 to 2^64 - 1", text));
            }
          },
          description)
      ->type_name("N")
      ->default_str(fmt::format("{}", target));
}

CLI::Option* add_positives(CLI::App& app, const std::string& flag, std::vector<int64_t>& target, const std::string& description) {
  return add_list(app, flag, target, description, parse_positive);
}

CLI::Option* add_integers(CLI::App& app, const std::string& flag, std::vector<int64_t>& target, const std::string& description) {
  return add_list(app, flag, target, description, parse_integer);
}

void add_format_flags(CLI::App& app, FormatFlags& target) {
  CLI::Option* json = app.add_flag("--json", target.json, "Print JSON, an array of records");
  CLI::Option* csv = app.add_flag("--csv", target.csv, "Print CSV")->excludes(json);
  app.add_flag("--md", target.markdown, "Print a Markdown table (default)")->excludes(json)->excludes(csv);
}

}  // namespace raffia::cli
