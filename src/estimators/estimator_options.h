// The options of an op that say what an Estimator says. Scale, layout and threads stay as they are by default.
#ifndef RAFFIA_ESTIMATORS_ESTIMATOR_OPTIONS_H_
#define RAFFIA_ESTIMATORS_ESTIMATOR_OPTIONS_H_

#include "raffia/estimator.h"

namespace raffia {

SoftmaxOptions softmax_options(const Estimator& estimator, bool causal);  // softmax, window
LaraOptions lara_options(const Estimator& estimator);  // lara; rfa in log space, whose proposals know nothing of the tokens
CausalLaraOptions causal_lara_options(const Estimator& estimator);
EvaOptions eva_options(const Estimator& estimator);
CausalEvaOptions causal_eva_options(const Estimator& estimator);
RaOptions ra_options(const Estimator& estimator, bool causal);
HybridOptions hybrid_options(const Estimator& estimator);

}  // namespace raffia

#endif  // RAFFIA_ESTIMATORS_ESTIMATOR_OPTIONS_H_
