// Sequences that are too long for one process: their tokens are split over the ranks of a group, in order.
//
// The state of RFA-Gate after a slice has constant size, and states compose: (g2, M2) . (g1, M1) = (g2 g1, g2 M1 + M2). So each
// rank folds its slice from empty memory, one all-gather sends the states to all ranks, and each composes those before its own
// and runs the ordinary op from there. The backward pass does the same with gradients of states, from the end. Per layer and
// pass, F (V + 1) + 2 floats are sent per head and sequence, for any length; the short convolution sends its last inputs.
#ifndef RAFFIA_TORCH_TRAIN_SEQUENCE_PARALLEL_H_
#define RAFFIA_TORCH_TRAIN_SEQUENCE_PARALLEL_H_

#include <cstdint>

#include "raffia/torch/nn.h"
#include "torch/train/distributed.h"

namespace raffia::internal::train {

// Gradients of parameters of such a model are those of this rank's tokens: their sum over ranks is the gradient.
// All ranks run the same passes in the same order.
class SequenceParallel : public nn::SequenceSplit {
 public:
  // Slices of all ranks have the same length.
  SequenceParallel(Group& group, int64_t slice_length);

  int64_t position() const override { return group_.rank() * slice_length_; }
  Tensor tail_before(const Tensor& tail) override;
  ops::Carried gated(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate_logits, const ops::Map& map) override;

  // This rank's part of [B, T, ..].
  Tensor slice(const Tensor& whole) const { return whole.narrow(1, position(), slice_length_); }

 private:
  Group& group_;
  int64_t slice_length_;
};

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_SEQUENCE_PARALLEL_H_
