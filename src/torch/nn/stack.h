// A stack of pre-norm transformer layers: the encoder or the decoder of a model.
#ifndef RAFFIA_TORCH_NN_STACK_H_
#define RAFFIA_TORCH_NN_STACK_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "model/plan.h"
#include "raffia/torch/nn.h"
#include "torch/libtorch.h"
#include "torch/nn/pieces.h"

namespace raffia::internal::nn {

using ModelState = std::vector<AttentionState>;  // one per causal attention, in order; empty: empty memory

// What a layer reads besides its input.
struct Surroundings {
  Tensor padding = {};          // [B, T] bool, True: padding; undefined: no padding
  Tensor context = {};          // [B, S, E], of cross attention
  Tensor context_padding = {};  // [B, S] bool
};

class LayerImpl : public torch::nn::Module {
 public:
  LayerImpl(const LayerPlan& plan, const StackPlan& stack);
  void forward(Residual& x, const Surroundings& around, AttentionState* state);

 private:
  Tensor feed_forward(const Tensor& x);

  double dropout_;
  Norm attention_norm_, cross_norm_ = nullptr, ffn_norm_ = nullptr;
  Attention attention_, cross_;
  torch::nn::Linear ffn_up_ = nullptr, ffn_down_ = nullptr, ffn_gate_ = nullptr;
};
TORCH_MODULE(Layer);

class StackImpl : public torch::nn::Module {
 public:
  explicit StackImpl(const StackPlan& plan);

  // x [B, T, E], embedded tokens -> [B, T, E] after the last norm. `state`: of the causal attentions, initially empty.
  Tensor forward(Tensor x, const Surroundings& around, ModelState* state = nullptr);

  void split_sequence(std::shared_ptr<SequenceSplit> split) { split_ = std::move(split); }

 private:
  double dropout_;
  torch::nn::Embedding positions_ = nullptr;
  std::vector<Layer> layers_;
  Norm norm_;
  std::shared_ptr<SequenceSplit> split_;  // where this process's tokens begin
};
TORCH_MODULE(Stack);

}  // namespace raffia::internal::nn

#endif  // RAFFIA_TORCH_NN_STACK_H_
