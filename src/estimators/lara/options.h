// The options of the operations that correspond to an Estimator. Scale, layout and threads keep their defaults.
#ifndef RAFFIA_ESTIMATORS_LARA_OPTIONS_H_
#define RAFFIA_ESTIMATORS_LARA_OPTIONS_H_

#include "raffia/estimator.h"

namespace raffia {

// If the estimator does not set `mean`, this is for evaluation: training sets mean = false before.
LaraOptions lara_options(const Estimator& estimator);
CausalLaraOptions causal_lara_options(const Estimator& estimator);

}  // namespace raffia

#endif  // RAFFIA_ESTIMATORS_LARA_OPTIONS_H_
