// The options of an op that correspond to an Estimator. Scale, layout and threads keep their defaults.
#ifndef RAFFIA_ESTIMATORS_ESTIMATOR_OPTIONS_H_
#define RAFFIA_ESTIMATORS_ESTIMATOR_OPTIONS_H_

#include "raffia/estimator.h"

namespace raffia {

SoftmaxOptions softmax_options(const Estimator& estimator, bool causal);  // softmax, window
// lara; rfa in log space, whose proposals do not depend on the tokens. If the estimator does not set `mean`, this is for
// evaluation: training sets mean = false before.
LaraOptions lara_options(const Estimator& estimator);
CausalLaraOptions causal_lara_options(const Estimator& estimator);
EvaOptions eva_options(const Estimator& estimator);
CausalEvaOptions causal_eva_options(const Estimator& estimator);
RaOptions ra_options(const Estimator& estimator, bool causal);
HybridOptions hybrid_options(const Estimator& estimator);

}  // namespace raffia

#endif  // RAFFIA_ESTIMATORS_ESTIMATOR_OPTIONS_H_
