#include "cli/shared/sampling_flags.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "cli/shared/flags.h"

namespace raffia::internal::cli {
namespace {

constexpr double kHighest = 1e6;  // of temperatures and penalties: far above any use

// A flag that sets a field to what parse(flag, text) returns.
template <typename Field, typename Parse>
Flag add(CommandLine& command, SamplingFlags& flags, const std::string& flag, Field SamplingOptions::*field, const Parse& parse,
         const std::string& description) {
  return command
      .add_parsed(
          flag,
          [&flags, flag, field, parse](const std::string& text) {
            flags.given.emplace_back([field, value = parse(flag, text)](SamplingOptions& options) { options.*field = value; });
          },
          description)
      .type_name(std::is_floating_point_v<Field> ? "X" : "N")
      .default_text(fmt::format("{}", SamplingOptions{}.*field));
}

auto number(double min, double max) {
  return [min, max](const std::string& flag, std::string_view text) { return parse_number(flag, text, min, max); };
}

auto count(int64_t max) {
  return [max](const std::string& flag, std::string_view text) { return parse_count(flag, text, max); };
}

}  // namespace

double parse_temperature(const std::string& flag, std::string_view text) { return parse_number(flag, text, 0, kHighest); }

void add_sampling_flags(CommandLine& command, SamplingFlags& flags) {
  using Options = SamplingOptions;
  const Flag greedy = command.add_switch(
      "--greedy", [&flags] { flags.given.emplace_back([](Options& options) { options.temperature = 0; }); },
      "Always choose the most likely token, the same as --temperature 0");
  add(command, flags, "--temperature", &Options::temperature, parse_temperature,
      "Below 1: less random; above 1: more random; 0: greedy")
      .excludes(greedy);
  add(command, flags, "--top-k", &Options::top_k, count(kLargestInteger), "Sample from the K most likely tokens only; 0: all");
  add(command, flags, "--top-p", &Options::top_p, number(1e-9, 1),
      "Sample from the most likely tokens whose probabilities sum to this");
  add(command, flags, "--min-p", &Options::min_p, number(0, 1),
      "Sample from tokens at least this likely, relative to the most likely one");
  add(command, flags, "--repetition-penalty", &Options::repetition_penalty, number(1e-6, kHighest),
      "Above 1: recent tokens become less likely");
  add(command, flags, "--repetition-window", &Options::repetition_window, count(Options::kMaxRepetitionWindow),
      "Number of recent tokens that the repetition penalty applies to");
  add(command, flags, "--seed", &Options::seed, parse_seed, "Seed of the random draws");
}

}  // namespace raffia::internal::cli
