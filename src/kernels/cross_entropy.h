// The cross entropy of rows of logits, in fp32. Rows are independent of each other: callers may cut them into tasks for threads.
// Twin: reference/layers.h.
#ifndef RAFFIA_KERNELS_CROSS_ENTROPY_H_
#define RAFFIA_KERNELS_CROSS_ENTROPY_H_

#include <cstdint>
#include <span>

#include "core/sibling_api.h"
#include "raffia/views.h"

namespace raffia::internal {

struct CrossEntropyTargets {
  std::span<const int64_t> ids;  // the column that a row should have chosen
  int64_t ignored = -1;          // rows with this id are left out: loss and gradient are 0
  double smoothing = 0;          // s, the share of the target that is spread over all columns
};

// With lse = log sum_v e^z_v over a row z of `logits` [T, V]:
//
//   losses[t] = lse - (1 - s) z_target - s mean(z)
//
// The rows are left holding d losses[t] / d z = e^(z - lse) - (1 - s) [v = target] - s / V if `gradients` says so, and are
// unchanged otherwise. An ignored row has loss 0 and gradient 0, whatever it holds. Columns are contiguous. Throws
// InvalidArgument if shapes do not match or an id is no column.
RAFFIA_SIBLING_API void cross_entropy(MutView2 logits, const CrossEntropyTargets& targets, bool gradients,
                                      std::span<float> losses);

}  // namespace raffia::internal

#endif  // RAFFIA_KERNELS_CROSS_ENTROPY_H_
