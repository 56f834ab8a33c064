#include "cli/shared/estimator_flags.h"

#include <fmt/format.h>

#include "cli/shared/command_flags.h"
#include "core/message.h"
#include "core/split.h"
#include "raffia/error.h"

namespace raffia::cli {

std::vector<std::string> split_estimators(const std::string& flag, const std::string& text) {
  std::vector<std::string> specs;
  for (const std::string_view part : split(text, ',')) {
    if (part.empty()) throw FlagError(flag, fmt::format("'{}' contains an empty value", text));
    const bool is_setting = part.find('=') != std::string_view::npos && part.find(':') == std::string_view::npos;
    if (is_setting && !specs.empty()) {
      specs.back().append(",").append(part);
    } else {
      specs.emplace_back(part);
    }
  }
  return specs;
}

Estimator parse_estimator_of(const std::string& flag, const std::string& spec) {
  try {
    return parse_estimator(spec);
  } catch (const InvalidArgument& error) {
    throw FlagError(flag, without_origin(error.what()));
  }
}

}  // namespace raffia::cli
