// The folded part of hybrid attention for one sequence and one key/value head: queries read a gated state that lags behind them,
// and their result is merged with the exact part.
//
//   y_t = e_t phi(q_t)^T [S, z],   e_t: all gates from the last key in S up to t
//   out_t = (exp(l_t) o_t + exp(c) y_t[0:V]) / (exp(l_t) + exp(c) y_t[V])         o_t, l_t: output and logsumexp of the exact
//   part
//
// Keys are folded by fold() of linear.h. Its gradient is that of linear attention with dY_t = exp(c - L_t) (dO_t, -dO_t . out_t),
// L_t the logsumexp of the whole: denominators of linear.h are exp(L_t - c), 0 where y was dropped.
#ifndef RAFFIA_KERNELS_HYBRID_H_
#define RAFFIA_KERNELS_HYBRID_H_

#include "kernels/linear.h"

namespace raffia::internal {

// What a query head has besides its QueryHead.
struct FarHead {
  float log_scale = 0;  // c
  MutRows logsumexp;    // [T, 1]; in: of the exact part, out: of the whole
};

// What follows a read: rows to prefetch.
struct AfterRead {
  size_t keys_begin = 0, keys_end = 0;        // to be folded
  size_t queries_begin = 0, queries_end = 0;  // to read next
};

// Queries [begin, end) of all heads read `state` and merge: out holds the exact part and then the whole. `reach` [T]: e_t.
// Denominators are written where heads have a place for them. Tokens that are not valid give 0.
void far_read(const LinearProblem& problem, const FarHead* far, size_t begin, size_t end, const float* reach,
              const AfterRead& after, const PackedState& state, float* scratch, ClampCount& clamps);

// Gradient of the queries of far_read. `h` [T] receives phi(q_t) . dphi(q_t) summed over heads; summed over tokens it is what
// `dlog_scale` [group] grows by.
void far_read_backward(const LinearProblem& problem, size_t begin, size_t end, const float* reach, const PackedState& state,
                       float* h, double* dlog_scale, float* scratch);

// What far_read of queries [begin, end) adds to the gradient of the state, after that is scaled by `decay`.
void far_read_gradient(const LinearProblem& problem, size_t begin, size_t end, const float* reach, float decay,
                       PackedState& gradient, float* scratch);

// Gradient of the keys [begin, end) of fold(). `gradient`, times `decay`, is that of the state after them; `decay` is left so
// that the same holds for the state before them. `r` [T] receives phi(k_t) . dphi(k_t).
void far_fold_backward(const LinearProblem& problem, size_t begin, size_t end, const PackedState& gradient, float& decay,
                       float* r, float* scratch);

size_t far_scratch_floats(const LinearProblem& problem);           // of far_read
size_t far_backward_scratch_floats(const LinearProblem& problem);  // of the others

// reach [heads] times the gates of the tokens [begin, end): their logits are rows [.., heads]; `present` is 0 for tokens that
// take no part. `scratch` has room for the gates.
void multiply_gates(const float* logits, size_t heads, const float* present, size_t begin, size_t end, float* reach,
                    float* scratch);

// One token of one session: `out` and `logsumexp` hold the exact part.
struct FarStep {
  MapParams map;
  size_t value_dim = 0;
  size_t group = 1;                   // query heads
  const float* log_scale = nullptr;   // [group]
  Rows q;                             // [group, d]
  float reach = 1;                    // e_t
  const float* sums = nullptr;        // [F, V], as in State
  const float* normaliser = nullptr;  // [F]
  const float* logsumexp = nullptr;   // [group]
  MutRows out;                        // [group, V], fp32
};

size_t far_step_scratch_floats(const FarStep& task);
void far_step(const FarStep& task, float* scratch, ClampCount& clamps);

}  // namespace raffia::internal

#endif  // RAFFIA_KERNELS_HYBRID_H_
