// A stack of pre-norm transformer layers: the encoder or the decoder of a model.
#ifndef RAFFIA_TORCH_NN_STACK_H_
#define RAFFIA_TORCH_NN_STACK_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "raffia/model_config.h"
#include "raffia/torch/nn.h"
#include "torch/libtorch.h"
#include "torch/nn/pieces.h"

namespace raffia::nn {

using ModelState = std::vector<AttentionState>;  // one per causal attention, in order; empty: empty memory

struct StackOptions {
  bool causal = false;
  bool cross = false;             // layers also attend to a context, with config.cross
  int64_t learned_positions = 0;  // 0: none
  uint32_t first_layer = 0;       // number of the first attention within the model: selects its random stream
};

// What a layer reads besides its input.
struct Surroundings {
  Tensor padding = {};          // [B, T] bool, True: padding; undefined: no padding
  Tensor context = {};          // [B, S, E], of cross attention
  Tensor context_padding = {};  // [B, S] bool
};

class LayerImpl : public torch::nn::Module {
 public:
  LayerImpl(const ModelConfig& config, const Estimator& estimator, const StackOptions& options, uint32_t layer);
  Tensor forward(Tensor x, const Surroundings& around, AttentionState* state);

 private:
  Tensor feed_forward(const Tensor& x);

  double dropout_;
  Norm attention_norm_, cross_norm_ = nullptr, ffn_norm_;
  Attention attention_, cross_;
  torch::nn::Linear ffn_up_ = nullptr, ffn_down_ = nullptr, ffn_gate_ = nullptr;
};
TORCH_MODULE(Layer);

class StackImpl : public torch::nn::Module {
 public:
  StackImpl(const ModelConfig& config, const StackOptions& options);

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

}  // namespace raffia::nn

#endif  // RAFFIA_TORCH_NN_STACK_H_
