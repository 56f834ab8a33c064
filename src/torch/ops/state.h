// States of linear attention as tensors [B, G, F * (V + 1) + 2].
#ifndef RAFFIA_TORCH_OPS_STATE_H_
#define RAFFIA_TORCH_OPS_STATE_H_

#include "raffia/reference.h"
#include "raffia/state.h"
#include "torch/ops/tensors.h"

namespace raffia::internal::ops {

std::vector<int64_t> tensor_shape(const StateShape& shape);

// Empty memory if the tensor is undefined. The tensor has the type of `Memory`: fp32 for State, double for reference::Memory.
State load_state(const Tensor& tensor, const StateShape& shape);
reference::Memory load_memory(const Tensor& tensor, const StateShape& shape);

Tensor store_state(State& state);
Tensor store_memory(reference::Memory& memory);

}  // namespace raffia::internal::ops

#endif  // RAFFIA_TORCH_OPS_STATE_H_
