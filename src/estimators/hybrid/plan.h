// Shared by the passes of hybrid attention: checked shapes, the tokens held by a state, and the order of reading and folding.
//
// Block b of W tokens is read when the state holds blocks 0 .. b - 2; when it is complete, block b - 1 is folded. A call may
// begin anywhere in a block: tokens of the last two blocks come from the state then, and are put in front of the first new ones.
#ifndef RAFFIA_ESTIMATORS_HYBRID_PLAN_H_
#define RAFFIA_ESTIMATORS_HYBRID_PLAN_H_

#include <algorithm>
#include <optional>
#include <vector>

#include "estimators/rfa/plan.h"
#include "estimators/shared/softmax_part.h"
#include "kernels/hybrid.h"
#include "raffia/hybrid.h"

namespace raffia::internal {

// Throws if shapes or element types are wrong. The linear plan, for which the inputs are returned, checks the folded part.
LinearViews check_hybrid(const char* function, const HybridInputs& inputs, const FeatureMap& map, View4 out,
                         const HybridOptions& options);

// Throws unless `state` (entries: sequences) is what hybrid_state_shape() says.
void require_hybrid_state(const char* function, const WindowStateShape& found, int64_t batch, const HybridInputs& inputs,
                          const FeatureMap& map, const HybridOptions& options);

// Tokens of one block.
struct TokenRange {
  size_t begin, end;
  size_t size() const { return end - begin; }
};

// One sequence of a call, in blocks.
struct Blocks {
  size_t window = 1;  // W
  size_t before = 0;  // tokens seen before the call
  size_t length = 0;  // tokens of the call

  size_t held_first() const {
    return before / window == 0 ? 0 : (before / window - 1) * window;
  }                                                      // position of the first token held
  size_t held() const { return before - held_first(); }  // number of tokens held by the state
  size_t first_block() const { return before / window; }
  size_t end_block() const { return length == 0 ? first_block() : (before + length - 1) / window + 1; }
  bool completes(size_t b) const { return (b + 1) * window <= before + length; }
  bool folds_after(size_t b) const { return b >= 1 && completes(b); }  // block b - 1

  // The new tokens of a block, and the held tokens of a block.
  TokenRange fresh(size_t b) const {
    return {clamp(b * window, before, before + length) - before, clamp((b + 1) * window, before, before + length) - before};
  }
  TokenRange old(size_t b) const {
    return {clamp(b * window, held_first(), before) - held_first(), clamp((b + 1) * window, held_first(), before) - held_first()};
  }

 private:
  static size_t clamp(size_t x, size_t low, size_t high) { return std::min(std::max(x, low), high); }
};

class HybridPlan {
 public:
  // `initial` may be null. `out` is that of either pass.
  HybridPlan(const char* function, const HybridInputs& inputs, const FeatureMap& map, const WindowState* initial, View4 out,
             const HybridOptions& options);

  size_t size() const { return linear.size(); }  // sequences x kv heads
  const Blocks& blocks(size_t i) const { return blocks_[static_cast<size_t>(linear.sequence_of(i))]; }
  int64_t record_floats() const { return 2 * linear.batch * linear.queries * linear.heads; }

  // The problem of the new tokens, and of those held by the state. Query heads of the former are `heads` and can be changed.
  LinearProblem fresh(size_t i) const;
  LinearProblem old(size_t i) const;
  QueryHead* heads(size_t i) { return heads_.data() + i * static_cast<size_t>(linear.heads / linear.groups); }
  FarHead* far(size_t i) { return far_.data() + i * static_cast<size_t>(linear.heads / linear.groups); }

  void load(size_t i, const WindowState* initial, PackedState& state) const;
  void save(size_t i, const PackedState& packed, WindowState& state) const;

  // e_t of the new tokens of a problem.
  void fill_reach(size_t i, float* reach) const;

  // The exact part: new tokens whose keys are all in the caller's views, and those that see tokens held by the state.
  SoftmaxPart direct_part(const HybridInputs& inputs, const Workers& workers) const;
  std::optional<PartSequence> direct_sequence(size_t n) const;  // of sequence n; nullopt if all of its tokens see old ones
  SoftmaxPart head_part(const HybridInputs& inputs, const Workers& workers) const;  // without sequences if the state holds none
  size_t head_rows(size_t n) const;  // number of new tokens of sequence n in the head part
  int64_t head_key(size_t n) const;  // row of the first of them in its keys
  View4 head_keys() const { return {head_k_.data(), {linear.batch, head_length_, linear.groups, exact_dim_}}; }
  View4 head_values() const { return {head_v_.data(), {linear.batch, head_length_, linear.groups, linear.value_dim}}; }

  // Queries and keys of the folded part.
  static View4 far_queries(const HybridInputs& inputs) { return inputs.q_far.absent() ? inputs.q : inputs.q_far; }
  static View4 far_keys(const HybridInputs& inputs) { return inputs.k_far.absent() ? inputs.k : inputs.k_far; }

  LinearPlan linear;

 private:
  void bring(const HybridInputs& inputs, const WindowState& initial, const Layout& layout);

  float scale_;
  int64_t exact_dim_, far_dim_;
  View2 valid_;
  std::vector<Blocks> blocks_;
  std::vector<QueryHead> heads_;
  std::vector<FarHead> far_;
  // Tokens held by the state, oldest first, then the new ones that see them: rows [B, head_length_, G, ..].
  int64_t head_length_ = 0;
  std::vector<int64_t> head_offset_;  // of each sequence
  std::vector<float> head_k_, head_far_k_, head_v_, head_gates_;
  std::vector<uint8_t> head_valid_;
};

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_HYBRID_PLAN_H_
