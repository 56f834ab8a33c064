// Flags with estimators as values: "rfa_gate;lara:samples=64,mean=true;softmax". Names without settings may be separated by
// commas.
#ifndef RAFFIA_CLI_SHARED_ESTIMATOR_FLAGS_H_
#define RAFFIA_CLI_SHARED_ESTIMATOR_FLAGS_H_

#include <string>
#include <vector>

#include "cli/shared/flags.h"
#include "raffia/estimator.h"

namespace raffia::internal::cli {

// Splits at semicolons, and at the commas between estimators: a setting belongs to the estimator before it. Throws FlagError.
std::vector<std::string> split_estimators(const std::string& flag, const std::string& text);

// parse_estimator, with errors that name the flag.
Estimator parse_estimator_of(const std::string& flag, const std::string& spec, const Estimator& defaults = {});

// A flag that takes such lists and may be repeated; the first one given replaces the defaults in `target`. `extra`: names that
// are accepted besides estimators.
Flag add_estimators(CommandLine& command, const std::string& flag, std::vector<std::string>& target,
                    const std::string& description, const std::vector<std::string>& extra = {});

// "softmax, window, .."
std::string names_of_estimators();

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_ESTIMATOR_FLAGS_H_
