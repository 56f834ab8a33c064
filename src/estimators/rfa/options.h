// The options of the operations that correspond to an Estimator. Scale, layout and threads keep their defaults.
#ifndef RAFFIA_ESTIMATORS_RFA_OPTIONS_H_
#define RAFFIA_ESTIMATORS_RFA_OPTIONS_H_

#include "core/sibling_api.h"
#include "raffia/estimator.h"

namespace raffia::internal {

RAFFIA_SIBLING_API LaraOptions
log_rfa_options(const Estimator& estimator);  // log=true: LARA whose proposals do not depend on the tokens

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_RFA_OPTIONS_H_
