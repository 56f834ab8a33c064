// Norms of layers with the addition to the residual stream before them.
#ifndef RAFFIA_TORCH_OPS_NORM_H_
#define RAFFIA_TORCH_OPS_NORM_H_

#include "torch/ops/tensors.h"

namespace raffia::internal::ops {

struct Normed {
  Tensor y;    // the norm of `sum`
  Tensor sum;  // x + added, or x
};

// x, added [.., E], weight [E]; `added` may be undefined. Layer norm with `bias` [E] defined, RMS norm otherwise. fp32 on the CPU
// and on Meta goes to torch.ops.raffia.norm, everything else, autocast included, to torch's own operators.
Normed norm(const Tensor& x, const Tensor& added, const Tensor& weight, const Tensor& bias, double eps);

// x [.., d] over the root of its mean square over d, times a weight that broadcasts: [d], or [H, d] for heads. By torch's
// operators.
Tensor rms_norm_of_torch(const Tensor& x, const Tensor& weight, double eps);

}  // namespace raffia::internal::ops

#endif  // RAFFIA_TORCH_OPS_NORM_H_
