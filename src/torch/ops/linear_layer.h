// Linear layers over Raffia's own products, which are as fast as a tuned BLAS whichever BLAS torch was built with.
#ifndef RAFFIA_TORCH_OPS_LINEAR_LAYER_H_
#define RAFFIA_TORCH_OPS_LINEAR_LAYER_H_

#include "torch/ops/tensors.h"

namespace raffia::internal::ops {

enum class Activation : uint8_t { none, gelu };

// activation(x weight^T + bias): x [.., in], weight [out, in], bias [out] or undefined -> [.., out]. fp32 on the CPU and on Meta
// goes to torch.ops.raffia.linear_layer, everything else, autocast included, to torch's own operators.
Tensor linear_layer(const Tensor& x, const Tensor& weight, const Tensor& bias, Activation activation = Activation::none);

}  // namespace raffia::internal::ops

#endif  // RAFFIA_TORCH_OPS_LINEAR_LAYER_H_
