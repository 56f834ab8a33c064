// Flags with estimators as values: "rfa_gate,lara:samples=64,mean=true,softmax".
#ifndef RAFFIA_CLI_SHARED_ESTIMATOR_FLAGS_H_
#define RAFFIA_CLI_SHARED_ESTIMATOR_FLAGS_H_

#include <string>
#include <vector>

#include "raffia/estimator.h"

namespace raffia::cli {

// Splits at the commas between estimators: a setting belongs to the estimator before it. Throws FlagError.
std::vector<std::string> split_estimators(const std::string& flag, const std::string& text);

// parse_estimator, with errors that name the flag.
Estimator parse_estimator_of(const std::string& flag, const std::string& spec);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_SHARED_ESTIMATOR_FLAGS_H_
