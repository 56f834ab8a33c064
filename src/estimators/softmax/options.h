// The options of the operations that correspond to an Estimator. Scale, layout and threads keep their defaults.
#ifndef RAFFIA_ESTIMATORS_SOFTMAX_OPTIONS_H_
#define RAFFIA_ESTIMATORS_SOFTMAX_OPTIONS_H_

#include "core/sibling_api.h"
#include "raffia/estimator.h"

namespace raffia::internal {

RAFFIA_SIBLING_API SoftmaxOptions softmax_options(const Estimator& estimator, bool causal);  // softmax, window

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_SOFTMAX_OPTIONS_H_
