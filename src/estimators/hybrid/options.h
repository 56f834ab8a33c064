// The options of the operations that correspond to an Estimator. Scale, layout and threads keep their defaults.
#ifndef RAFFIA_ESTIMATORS_HYBRID_OPTIONS_H_
#define RAFFIA_ESTIMATORS_HYBRID_OPTIONS_H_

#include "core/sibling_api.h"
#include "raffia/estimator.h"

namespace raffia::internal {

RAFFIA_SIBLING_API HybridOptions hybrid_options(const Estimator& estimator);

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_HYBRID_OPTIONS_H_
