// States of windowed ops as tensors [B, N], fp32: the parts of an entry in order, then its number of tokens as two floats (the
// low 24 bits, and the rest). They are constants for gradients.
#ifndef RAFFIA_TORCH_OPS_WINDOW_STATE_H_
#define RAFFIA_TORCH_OPS_WINDOW_STATE_H_

#include "raffia/window_state.h"
#include "torch/ops/tensors.h"

namespace raffia::internal::ops {

std::vector<int64_t> tensor_shape(const WindowStateShape& shape);

// Throws InvalidArgument, which names `op`, unless `tensor` is undefined or such a state.
void require_state(const char* op, const Tensor& tensor, const WindowStateShape& shape);

WindowState load_state(const Tensor& tensor, const WindowStateShape& shape);  // empty if the tensor is undefined
Tensor store_state(const WindowState& state);

}  // namespace raffia::internal::ops

#endif  // RAFFIA_TORCH_OPS_WINDOW_STATE_H_
