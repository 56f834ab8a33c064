// Shared by the forward and backward halves of the linear ops: checked shapes, and one LinearProblem per sequence and kv head.
#ifndef RAFFIA_ESTIMATORS_RFA_H_
#define RAFFIA_ESTIMATORS_RFA_H_

#include <vector>

#include "estimators/sequences.h"
#include "kernels/linear.h"
#include "raffia/attention.h"

namespace raffia {

// The views of one op; absent where the op has none.
struct LinearViews {
  View4 q, k, v;
  View3 gate_logits;
  bool gated = false;  // gate_logits must be there
  MutView4 out;
  View4 forward_out, dout;  // backward
};

enum class Reach : uint8_t { causal, everything };

// An op cut into problems. Built once per call; the kernels only read it.
class LinearPlan {
 public:
  LinearPlan(const char* function, Reach reach, const LinearViews& views, const FeatureMap& map, const AttentionOptions& options);

  // Adds gradients: rows of q, k, v, gate and sums of the map's parameters.
  void attach(const AttentionGradients& gradients, std::span<const float> record);

  size_t size() const { return problems.size(); }  // sequences x kv heads
  const LinearProblem& operator[](size_t i) const { return problems[i]; }
  int64_t sequence_of(size_t i) const { return static_cast<int64_t>(i) / groups; }
  int64_t head_of(size_t i) const { return static_cast<int64_t>(i) % groups; }

  // Where the record holds a problem's states, and how many: one per kBlock tokens (causal), or one.
  size_t record_states_offset(size_t i) const { return state_offsets[i]; }
  size_t record_floats() const { return state_offsets.back(); }

  // Adds the map's parameter gradients of all problems, in their order.
  void reduce_map_gradients(const FeatureMap& map, const MapGradients& gradients) const;

  const char* function;
  Reach reach;
  int64_t batch, queries, heads, keys, groups, value_dim;
  std::vector<Sequence> sequences;
  std::vector<LinearProblem> problems;
  size_t scratch_floats = 0;  // the most that any problem needs

 private:
  std::vector<QueryHead> query_heads;
  std::vector<size_t> denominator_offsets;  // of query head i in the record
  std::vector<size_t> state_offsets;        // of problem i in the record, and the end
  std::vector<float> map_sums;
};

// States in the kernels' layout, one per slot.
class StateSlots {
 public:
  StateSlots(const LinearPlan& plan, size_t slots);
  std::vector<PackedState> all(const LinearPlan& plan) const;

 private:
  size_t slots_, floats_;
  Scratch memory_;
};

}  // namespace raffia

#endif  // RAFFIA_ESTIMATORS_RFA_H_
