// The loss of language models: products with the output matrix and the cross entropy over the vocabulary as one op.
#ifndef RAFFIA_TORCH_OPS_CROSS_ENTROPY_H_
#define RAFFIA_TORCH_OPS_CROSS_ENTROPY_H_

#include "torch/ops/tensors.h"

namespace raffia::internal::ops {

constexpr int64_t kIgnoredTarget = -100;  // the default ignore_index of torch's cross entropy

struct CrossEntropy {
  Tensor sum;     // over all targets, scalar, differentiable
  Tensor losses;  // [T], constants
};

// The cross entropy of the logits hidden weight^T: hidden [T, E], weight [V, E], targets [T] int64, of which those that are
// kIgnoredTarget are left out. fp32 on the CPU and on Meta goes to torch.ops.raffia.cross_entropy, which never holds more than a
// block of the logits; everything else, autocast included, to torch's own operators.
CrossEntropy cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& targets, double smoothing = 0);

}  // namespace raffia::internal::ops

#endif  // RAFFIA_TORCH_OPS_CROSS_ENTROPY_H_
