// A stack of pre-norm transformer layers: the encoder or the decoder of a model (docs/model-format.md).
#ifndef RAFFIA_RUNTIME_STACK_H_
#define RAFFIA_RUNTIME_STACK_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "model/plan.h"
#include "runtime/attention.h"
#include "runtime/turn.h"
#include "runtime/weights.h"

namespace raffia::internal::runtime {

struct NormWeights {
  std::vector<float> weight, bias;  // [E]; no bias: RMS norm
  float eps = 0;

  void apply(const float* x, int64_t rows, float* y) const;  // [rows, E]
};

class Stack {
 public:
  Stack(const StackPlan& plan, WeightReader& weights);

  Memories empty_memory() const;
  // The size of that after `position` tokens, without allocating it; UINT64_MAX on overflow.
  uint64_t memory_bytes(int64_t position) const;
  // Of one layer.
  std::optional<uint64_t> memory_bytes(size_t layer, int64_t position) const {
    return layers_[layer].attention.memory_bytes(position);
  }
  bool memory_grows(size_t layer) const { return layers_[layer].attention.memory_grows(); }
  Source read_source(const float* encoded, int64_t rows, const RunOptions& run) const;
  int64_t max_positions() const { return max_positions_; }  // 0: any number

  // x [rows, E]: in, embedded tokens; out, the normalised output of the last layer.
  void forward(float* x, const Turn& turn, Workspace& work) const;

 private:
  struct Layer {
    Layer(const LayerPlan& plan, WeightReader& weights);

    NormWeights attention_norm;
    SelfAttention attention;
    std::optional<NormWeights> cross_norm;
    std::optional<CrossAttention> cross;
    NormWeights ffn_norm;
    Linear ffn_up, ffn_down;
    std::optional<Linear> ffn_gate;  // swiglu
  };
  void feed_forward(const Layer& layer, float* x, const Turn& turn, Workspace& work) const;

  int64_t width_, ffn_width_, max_positions_ = 0;
  std::vector<float> positions_;  // [max_positions, E]
  std::vector<Layer> layers_;
  NormWeights norm_;
};

}  // namespace raffia::internal::runtime

#endif  // RAFFIA_RUNTIME_STACK_H_
