// Samples over a past that grows window by window: each has the log of a weight and a mean value.
//
// Each window gives every sample a partial (its softmax over the window); the state at a boundary is the merge of all partials
// before it:  l = log(exp(l1) + exp(l2)),  f = exp(l1 - l) f1 + exp(l2 - l) f2.
#ifndef RAFFIA_ESTIMATORS_SHARED_SAMPLE_STATES_H_
#define RAFFIA_ESTIMATORS_SHARED_SAMPLE_STATES_H_

#include <limits>

#include "estimators/shared/sequences.h"
#include "raffia/views.h"

namespace raffia::internal {

inline constexpr float kNone = -std::numeric_limits<float>::infinity();  // the log of no weight

// Row-major. Weights may be shared by a group of heads that have values of their own; V may be 0. A sample with a weight of -inf
// takes no part, and its value is not used.
struct SampleStates {
  MutView3 log_weights;  // [N, S, G]
  MutView4 values;       // [N, S, H, V]
};

// states [N + 1, ..]: entry 0 is given, and entry n + 1 is the merge of entry n, its log weights moved by `log_decay`, and
// partial n. `partials` [N, ..] may be entries 1.. of the states.
void merge_windows(const SampleStates& partials, float log_decay, const SampleStates& states, const Workers& workers);

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_SHARED_SAMPLE_STATES_H_
