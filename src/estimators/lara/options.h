// The options of the operations that correspond to an Estimator. Scale, layout and threads keep their defaults.
#ifndef RAFFIA_ESTIMATORS_LARA_OPTIONS_H_
#define RAFFIA_ESTIMATORS_LARA_OPTIONS_H_

#include "core/sibling_api.h"
#include "raffia/estimator.h"

namespace raffia::internal {

// If the estimator does not set `mean`, this is for evaluation: training sets mean = false before.
RAFFIA_SIBLING_API LaraOptions lara_options(const Estimator& estimator);
RAFFIA_SIBLING_API CausalLaraOptions causal_lara_options(const Estimator& estimator);

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_LARA_OPTIONS_H_
