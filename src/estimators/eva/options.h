// The options of the operations that correspond to an Estimator. Scale, layout and threads keep their defaults.
#ifndef RAFFIA_ESTIMATORS_EVA_OPTIONS_H_
#define RAFFIA_ESTIMATORS_EVA_OPTIONS_H_

#include "core/sibling_api.h"
#include "raffia/estimator.h"

namespace raffia::internal {

RAFFIA_SIBLING_API EvaOptions eva_options(const Estimator& estimator);
RAFFIA_SIBLING_API CausalEvaOptions causal_eva_options(const Estimator& estimator);

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_EVA_OPTIONS_H_
