// Shared by the forward and backward halves of the linear ops: checked shapes, and one LinearProblem per sequence and kv head.
#ifndef RAFFIA_ESTIMATORS_RFA_PLAN_H_
#define RAFFIA_ESTIMATORS_RFA_PLAN_H_

#include <optional>
#include <vector>

#include "estimators/shared/sequences.h"
#include "kernels/linear.h"
#include "raffia/attention.h"

namespace raffia::internal {

// The views of one op; nullopt if the op has no such argument. All others are checked, including views without elements.
struct LinearViews {
  std::optional<View4> q, k, v;
  std::optional<View3> gate_logits;
  std::optional<MutView4> out;
  std::optional<View4> forward_out, dout;  // backward
};

enum class Reach : uint8_t { causal, everything };

// The sizes of an op.
struct LinearSizes {
  int64_t batch, queries, heads, keys, groups, value_dim;
};

// Throws if shapes, element types or options are wrong.
LinearSizes check_linear(const char* function, Reach reach, const LinearViews& views, const FeatureMap& map,
                         const AttentionOptions& options);

// An op divided into problems. Built once per call; the kernels only read it.
class LinearPlan : public LinearSizes {
 public:
  LinearPlan(const char* function, Reach reach, const LinearViews& views, const FeatureMap& map, const AttentionOptions& options,
             std::span<float> record = {});

  // Sets where gradients are written, and the record of the forward pass.
  void attach(const AttentionGradients& gradients, std::span<const float> record);

  // Sets outputs outside of all sequences to zero. Called after all checks: a call that throws InvalidArgument writes nothing.
  void fill_padding(MutView4 out) const;
  void fill_padding(const AttentionGradients& gradients) const;

  size_t size() const { return problems.size(); }  // sequences x kv heads
  const LinearProblem& operator[](size_t i) const { return problems[i]; }
  int64_t sequence_of(size_t i) const { return static_cast<int64_t>(i) / groups; }
  int64_t head_of(size_t i) const { return static_cast<int64_t>(i) % groups; }

  // Where the record holds a problem's states: one per kBlock tokens and the last (causal), or one.
  size_t record_states_offset(size_t i) const { return state_offsets[i]; }  // i = size(): the end
  size_t record_floats() const { return state_offsets.back(); }

  const char* function;
  Reach reach;
  bool packed_sequences;  // cu_seqlens: every token belongs to a sequence
  std::vector<Sequence> sequences;
  std::vector<LinearProblem> problems;
  size_t scratch_floats = 0;  // maximum over all problems

 private:
  std::vector<QueryHead> query_heads;
  std::vector<size_t> denominator_offsets;  // of query head i in the record
  std::vector<size_t> state_offsets;        // of problem i in the record, and the end
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

// Part of a problem.
struct Segment {
  size_t problem;
  size_t begin, end;
  bool first, last;
};

// How sequences are divided into tasks: only by shapes and options, so that results do not depend on the number of threads.
std::vector<Segment> causal_segments(const LinearPlan& plan, const AttentionOptions& options);
std::vector<Segment> fold_segments(const LinearPlan& plan);  // keys that are only folded
std::vector<Segment> read_segments(const LinearPlan& plan);  // queries that only read

// Segments [first, end) that one task processes together, block by block: heads of one sequence are adjacent in memory, and rows
// of several heads share pages and DRAM bursts. Only the order of work depends on the number of workers, not the results.
struct Bundle {
  size_t first, end;
};
std::vector<Bundle> bundle_heads(const LinearPlan& plan, const std::vector<Segment>& segments, int workers);

// The counters of all tasks of a call.
Report total(const std::vector<ClampCount>& counts);

// Conversions between problem i of a plan and its part of a State.
void require_state(const LinearPlan& plan, const FeatureMap& map, const char* argument, const StateShape& found);
void load_state(const LinearPlan& plan, size_t i, const State& state, PackedState& packed);
void save_state(const LinearPlan& plan, size_t i, const PackedState& packed, State& state);

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_RFA_PLAN_H_
