#include "cli/shared/estimator_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "cli/shared/command_flags.h"
#include "core/message.h"
#include "core/split.h"
#include "raffia/error.h"

namespace raffia::internal::cli {
namespace {

// Throws FlagError; an unknown kind may have been meant as one of the other names.
void require_estimator(const std::string& flag, const std::string& spec, const std::vector<std::string>& others) {
  try {
    (void)parse_estimator(spec);
  } catch (const InvalidArgument& error) {
    const std::string_view kind = split(spec, ':').front();
    const auto kinds = estimator_kinds();
    const bool is_kind = std::ranges::any_of(kinds, [kind](EstimatorKind one) { return name_of(one) == kind; });
    const std::string message = without_origin(error.what());
    throw FlagError(flag, others.empty() || is_kind ? message : fmt::format("{}, {}", message, fmt::join(others, ", ")));
  }
}

}  // namespace

std::vector<std::string> split_estimators(const std::string& flag, const std::string& text) {
  std::vector<std::string> specs;
  for (const std::string_view group : split(text, ';')) {
    bool is_first = true;
    for (const std::string_view part : split(group, ',')) {
      if (part.empty()) throw FlagError(flag, fmt::format("'{}' contains an empty value", text));
      const bool is_setting = part.find('=') != std::string_view::npos && part.find(':') == std::string_view::npos;
      if (is_setting && !is_first) {
        specs.back().append(",").append(part);
      } else {
        specs.emplace_back(part);
      }
      is_first = false;
    }
  }
  return specs;
}

Estimator parse_estimator_of(const std::string& flag, const std::string& spec, const Estimator& defaults) {
  try {
    return parse_estimator(spec, defaults);
  } catch (const InvalidArgument& error) {
    throw FlagError(flag, without_origin(error.what()));
  }
}

std::string names_of_estimators() {
  std::vector<std::string_view> names;
  for (const EstimatorKind kind : estimator_kinds()) names.push_back(name_of(kind));
  return fmt::format("{}", fmt::join(names, ", "));
}

Flag add_estimators(CommandLine& command, const std::string& flag, std::vector<std::string>& target,
                    const std::string& description, const std::vector<std::string>& extra) {
  const auto given = std::make_shared<bool>(false);
  const std::string defaults = fmt::format("{}", fmt::join(target, ","));
  std::vector<std::string> choices;
  for (const EstimatorKind kind : estimator_kinds()) choices.emplace_back(name_of(kind));
  choices.insert(choices.end(), extra.begin(), extra.end());
  return command
      .add_repeated(
          flag,
          [&target, flag, extra, given](const std::string& text) {
            if (!std::exchange(*given, true)) target.clear();
            for (const std::string& spec : split_estimators(flag, text)) {
              if (std::ranges::find(extra, spec) == extra.end()) require_estimator(flag, spec, extra);
              if (std::ranges::find(target, spec) == target.end()) target.push_back(spec);
            }
          },
          description)
      .type_name("LIST")
      .choices(fmt::format("{}", fmt::join(choices, ",")))
      .default_text(defaults);
}

}  // namespace raffia::internal::cli
