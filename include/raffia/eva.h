// EVA without parameters: a window of exact keys, and one virtual key and value per chunk of all others, in one softmax.
//
//   logits {q . k_m : own window} and {q . kbar_c + log|P_c| : chunks outside of it},  values v_m and
//   beta_c = softmax_m(w_c . k_m - |k_m|^2 / 2) v_m over the chunk,  w_c = qbar_c + kbar_c      (logits scaled to q . k)
//
// Causal: chunks of strictly earlier windows. Of these the last `summaries` are kept; older ones are folded into R random
// features in log space, with a constant decay: memory of constant size with an exact recent past.
//
// Shapes, layouts, element types and threads as in attention.h. Self attention: there are as many queries as keys.
#ifndef RAFFIA_EVA_H_
#define RAFFIA_EVA_H_

#include <cstdint>
#include <optional>
#include <span>

#include "raffia/attention.h"
#include "raffia/lara.h"
#include "raffia/random.h"
#include "raffia/window_state.h"

namespace raffia {

struct EvaOptions {
  int64_t samples = 64;             // chunks of a sequence, at most; a chunk is ceil(length / samples) tokens
  int64_t window = 32;              // tokens seen exactly; rounded up to whole chunks
  std::optional<float> scale = {};  // of logits; 1 / sqrt(D) by default
  Layout layout = {};
  int threads = 0;               // at most this many; 0: as many as the executor has
  Executor* executor = nullptr;  // default_executor() if null
  std::span<float> record = {};  // filled for the backward pass; eva_record_size() floats
};

// Cost O(T (samples + window)) per head, memory O(T + samples) rows. The length of a sequence counts up to its last valid key.
// Masked tokens have an output, but no gradient.
void eva_attention(View4 q, View4 k, View4 v, MutView4 out, const EvaOptions& options = {});
int64_t eva_record_size(View4 q, View4 k, View4 v, const EvaOptions& options = {});
void eva_attention_backward(View4 q, View4 k, View4 v, View4 out, std::span<const float> record, View4 dout,
                            const QkvGradients& gradients, const EvaOptions& options = {});

struct CausalEvaOptions {
  int64_t window = 32;  // tokens per window
  int64_t chunk = 8;    // tokens per summary, a divisor of the window
  int64_t summaries =
      256;                // kept, a multiple of window / chunk; older ones are folded. 0: all are kept (and no state is constant)
  int64_t features = 64;  // R, random features of the folded past
  float decay = 1;        // what the folded past keeps when a window is folded, in (0, 1]
  Draws draws = Draws::orthogonal;
  uint64_t seed = 0;
  uint32_t layer = 0;
  uint32_t draw = 0;
  std::optional<float> scale = {};
  Layout layout = {};
  int threads = 0;
  Executor* executor = nullptr;
  std::span<float> record = {};  // causal_eva_record_size() floats
};

// Throws InvalidArgument where options.summaries is 0: such a state has no size.
WindowStateShape causal_eva_state_shape(int64_t batch, int64_t query_heads, int64_t heads, int64_t dim, int64_t value_dim,
                                        const CausalEvaOptions& options = {});

// `state` is read as the past and left as the past of the next call; null: starts empty and forgets. The backward pass takes what
// the state held before as a constant (`initial`, null: empty). A call needs O(T / chunk (D + V) + T / window R V) floats per
// head, for one sequence at a time.
void causal_eva_attention(View4 q, View4 k, View4 v, WindowState* state, MutView4 out, const CausalEvaOptions& options = {});
int64_t causal_eva_record_size(View4 q, View4 k, View4 v, const WindowState* initial, const CausalEvaOptions& options = {});
void causal_eva_attention_backward(View4 q, View4 k, View4 v, const WindowState* initial, View4 out,
                                   std::span<const float> record, View4 dout, const QkvGradients& gradients,
                                   const CausalEvaOptions& options = {});

// One token for each of B sessions: q [B, H, D], k [B, G, D], v [B, G, V], out [B, H, V].
void causal_eva_step(View3 q, View3 k, View3 v, WindowState& state, MutView3 out, const CausalEvaOptions& options = {});
void causal_eva_step(View3 q, View3 k, View3 v, std::span<WindowState* const> sessions, MutView3 out,
                     const CausalEvaOptions& options = {});

}  // namespace raffia

#endif  // RAFFIA_EVA_H_
