// The gate of feed-forward layers.
#ifndef RAFFIA_TORCH_OPS_SWIGLU_H_
#define RAFFIA_TORCH_OPS_SWIGLU_H_

#include "torch/ops/tensors.h"

namespace raffia::internal::ops {

// silu(gate) up, [.., F]. fp32 on the CPU and on Meta goes to torch.ops.raffia.swiglu, everything else, autocast included, to
// torch's own operators.
Tensor swiglu(const Tensor& gate, const Tensor& up);

}  // namespace raffia::internal::ops

#endif  // RAFFIA_TORCH_OPS_SWIGLU_H_
