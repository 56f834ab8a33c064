// Attention of a trained model: projections, convolution, positions, and the estimator over the memory of a session.
#ifndef RAFFIA_RUNTIME_ATTENTION_H_
#define RAFFIA_RUNTIME_ATTENTION_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "estimators/registry.h"
#include "kernels/layer_ops.h"
#include "model/plan.h"
#include "raffia/estimator.h"
#include "raffia/features.h"
#include "runtime/turn.h"
#include "runtime/weights.h"

namespace raffia::internal::runtime {

// Common to self and cross attention. Query head h reads key head h G / H.
class Heads {
 public:
  Heads(const AttentionPlan& plan, WeightReader& weights);

 protected:
  // read [rows, E], heads concatenated -> out [rows, E].
  void answer(float* read, const Turn& turn, float* out) const;

  // Every query reads all keys: q, out [1, T, H, d], k, v [1, S, G, d].
  void attend_both_ways(View4 q, View4 k, View4 v, const Turn& turn, MutView4 out) const;

  int64_t width() const { return heads_ * dim_; }          // E
  int64_t key_width() const { return key_heads_ * dim_; }  // G d

  const FeatureMap* map() const { return map_ ? &*map_ : nullptr; }

  const EstimatorModule& module_;
  Estimator estimator_;
  int64_t heads_, key_heads_, dim_;
  Linear q_, k_, v_, out_;
  std::vector<float> head_norm_;  // [H, d]; empty: none
  std::optional<FeatureMap> map_;
};

class SelfAttention : public Heads {
 public:
  SelfAttention(const AttentionPlan& plan, WeightReader& weights);

  AttentionMemory empty_memory() const;  // causal
  // The memory of this attention after `position` tokens in bytes, without allocating it; nullopt on overflow.
  std::optional<uint64_t> memory_bytes(int64_t position) const;
  bool memory_grows() const { return !traits_of(estimator_).constant_memory; }  // with the text, as a key cache

  // x [rows, E], normalised -> out [rows, E]. `index`: of this attention in the memory of a session.
  void forward(const float* x, const Turn& turn, size_t index, Workspace& work, float* out) const;

 private:
  // q [rows, H, d], k, v [rows, G, d], gates [rows, G]; q_far, k_far: without positions; absent if they equal q and k.
  struct Inputs {
    View3 q, k, v;
    View2 gates;
    View3 q_far, k_far;
    MutView3 out;  // [rows, H, d]
  };
  void convolve(const Turn& turn, size_t index, Workspace& work) const;
  void attend_whole(const Inputs& in, const Turn& turn) const;
  void attend_sequence(const Inputs& in, const Turn& turn, AttentionMemory& memory) const;
  void attend_step(const Inputs& in, const Turn& turn, size_t index) const;
  AttendInputs op_inputs(const Inputs& in, bool step) const;
  MemorySizes memory_sizes() const;
  size_t tail_size() const;  // floats that the short convolution still needs

  std::optional<Rotary> rotary_;
  int64_t conv_;                  // width of the short convolution; 0: none
  std::vector<float> taps_;       // [conv, C]
  Linear gate_;                   // of gated estimators
  std::vector<float> log_scale_;  // [H], of those that blend
};

class CrossAttention : public Heads {
 public:
  CrossAttention(const AttentionPlan& plan, WeightReader& weights) : Heads(plan, weights) {}

  // encoded [S, E]
  SourceMemory read_source(const float* encoded, int64_t rows, const RunOptions& run) const;
  void forward(const float* x, const Turn& turn, size_t index, Workspace& work, float* out) const;
};

}  // namespace raffia::internal::runtime

#endif  // RAFFIA_RUNTIME_ATTENTION_H_
