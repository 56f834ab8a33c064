// FLOP of attention by formula, so that fractions of the peak can be compared between estimators, whatever they execute.
//
// A token and query head meets TokenWork::keys keys (samples and summaries count as keys), each of which costs 2 (d + dv) forward
// and 6 d + 4 dv backward. Keys that are only drawn cost 2 d in either pass. With a map: 4 F (dv + 1), plus 4 d D for projections
// where the map is inside; backward 10 F (dv + 1), projections left out. Grouped key/value heads fold less often than query heads
// read. Not counted: means and proposals, S x S weights, summaries and their folding, everything linear in d only.
#ifndef RAFFIA_ESTIMATORS_WORK_H_
#define RAFFIA_ESTIMATORS_WORK_H_

#include <cstdint>

#include "estimators/registry.h"

namespace raffia::internal {

enum class Pass : uint8_t { forward, backward, forward_backward };

struct WorkSizes {
  int64_t batch = 1, heads = 1, kv_heads = 1, head_dim = 0, value_dim = 0;
  const FeatureMap* map = nullptr;  // of estimators that have one
  bool has_features = false;        // phi(q) and phi(k) are given: no projections
};

// Of a pass over whole sequences of `length` tokens, and of one token for each sequence after `depth` others.
double attention_flops(const Estimator& estimator, const WorkSizes& sizes, bool causal, Pass pass, int64_t length);
double step_flops(const Estimator& estimator, const WorkSizes& sizes, int64_t depth);

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_WORK_H_
