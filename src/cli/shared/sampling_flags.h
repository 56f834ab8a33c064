// --temperature and related flags: how the next token is chosen.
#ifndef RAFFIA_CLI_SHARED_SAMPLING_FLAGS_H_
#define RAFFIA_CLI_SHARED_SAMPLING_FLAGS_H_

#include <functional>
#include <vector>

#include "cli/shared/command.h"
#include "raffia/session.h"

namespace raffia::internal::cli {

// The flags that were given. They override the defaults, or the options of a state file.
struct SamplingFlags {
  std::vector<std::function<void(SamplingOptions&)>> given;

  SamplingOptions over(SamplingOptions options) const {
    for (const auto& set : given) set(options);
    return options;
  }
};

void add_sampling_flags(CommandLine& command, SamplingFlags& flags);

// Range checks shared by flags and the commands of a conversation. Throw FlagError.
double parse_temperature(const std::string& flag, std::string_view text);

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_SAMPLING_FLAGS_H_
