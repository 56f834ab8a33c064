// The options of the operations that correspond to an Estimator. Scale, layout and threads keep their defaults.
#ifndef RAFFIA_ESTIMATORS_RFA_OPTIONS_H_
#define RAFFIA_ESTIMATORS_RFA_OPTIONS_H_

#include "raffia/estimator.h"

namespace raffia {

LaraOptions log_rfa_options(const Estimator& estimator);  // log=true: LARA whose proposals do not depend on the tokens

}  // namespace raffia

#endif  // RAFFIA_ESTIMATORS_RFA_OPTIONS_H_
