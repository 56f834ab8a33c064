// Gradients of layer norm and RMS norm (layer_ops.h), in fp32. Rows of dx are independent of each other; sums over rows go on
// from what dweight and dbias hold, one row after the other. Twins: reference/layers.h.
#ifndef RAFFIA_KERNELS_NORM_BACKWARD_H_
#define RAFFIA_KERNELS_NORM_BACKWARD_H_

#include <span>

#include "core/sibling_api.h"
#include "raffia/views.h"

namespace raffia::internal {

struct NormGradients {
  View2 x;                        // [T, E]
  std::span<const float> weight;  // [E]
  float eps = 0;
  View2 dy;
  View2 added = {};             // a second gradient of x, as from the residual stream; absent: none
  MutView2 dx;                  // may be dy or added
  std::span<float> dweight;     // [E], +=
  std::span<float> dbias = {};  // [E], +=; empty: none
};

// Columns are contiguous. Throws InvalidArgument if shapes do not match.
RAFFIA_SIBLING_API void layer_norm_backward(const NormGradients& of);
RAFFIA_SIBLING_API void rms_norm_backward(const NormGradients& of);

}  // namespace raffia::internal

#endif  // RAFFIA_KERNELS_NORM_BACKWARD_H_
