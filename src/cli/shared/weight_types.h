// Storage types of weights, by the names that flags use.
#ifndef RAFFIA_CLI_SHARED_WEIGHT_TYPES_H_
#define RAFFIA_CLI_SHARED_WEIGHT_TYPES_H_

#include "cli/shared/flags.h"
#include "core/weight_matrix.h"

namespace raffia::internal::cli {

constexpr Named<WeightType> kWeightTypes[] = {{"f32", WeightType::f32}, {"bf16", WeightType::bf16}, {"int8", WeightType::int8}};

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_WEIGHT_TYPES_H_
