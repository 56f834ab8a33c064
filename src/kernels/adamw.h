// AdamW over a run of parameters, in one pass. Elements are independent of each other: a run may be cut anywhere. Twins:
// reference/layers.h.
#ifndef RAFFIA_KERNELS_ADAMW_H_
#define RAFFIA_KERNELS_ADAMW_H_

#include <span>

#include "core/adamw_factors.h"
#include "core/sibling_api.h"

namespace raffia::internal {

struct AdamwRun {
  std::span<float> parameters;
  std::span<const float> gradients;  // all four are as long
  std::span<float> mean, square;
};
RAFFIA_SIBLING_API void adamw(const AdamwRun& run, const AdamwFactors& factors);

// In fp32 over up to 1024 values, and these sums in double.
RAFFIA_SIBLING_API double sum_of_squares(std::span<const float> values);

}  // namespace raffia::internal

#endif  // RAFFIA_KERNELS_ADAMW_H_
