// EVA without learned parameters: exact keys in a window, and one virtual key and value per chunk elsewhere, in one softmax.
//
//   logits {q . k_m : own window} and {q . kbar_c + log|P_c| : chunks outside of it},  values v_m and
//   beta_c = softmax_m(w_c . k_m - |k_m|^2 / 2) v_m over the chunk,  w_c = qbar_c + kbar_c      (logits scaled to q . k)
//
// Causal: only chunks of earlier windows are seen. The last `summaries` of them are kept; older ones are folded into R random
// features in log space, with a constant decay. Memory is of constant size, and the recent past is exact.
//
// Shapes, layouts, element types, threads and `record` are as in attention.h. Self attention only: as many queries as keys.
#ifndef RAFFIA_EVA_H_
#define RAFFIA_EVA_H_

#include <cstdint>
#include <optional>
#include <span>

#include "raffia/api.h"
#include "raffia/attention.h"
#include "raffia/lara.h"
#include "raffia/random.h"
#include "raffia/window_state.h"

namespace raffia {

struct EvaOptions {
  int64_t samples = 64;             // maximum number of chunks in a sequence; a chunk is ceil(length / samples) tokens
  int64_t window = 32;              // tokens seen exactly; rounded up to whole chunks
  std::optional<float> scale = {};  // of logits; default: 1 / sqrt(D)
  Layout layout = {};
  RunOptions run = {};  // threads and executor
};

// Cost O(T (samples + window)) per head, where the window is at least one chunk of T / samples; memory O(T + samples) rows. A
// sequence ends at its last valid key. Masked tokens have an output, but no gradient.
RAFFIA_API void eva_attention(View4 q, View4 k, View4 v, MutView4 out, const EvaOptions& options = {},
                              std::span<float> record = {});
RAFFIA_API int64_t eva_record_size(View4 q, View4 k, View4 v, const EvaOptions& options = {});
RAFFIA_API void eva_attention_backward(View4 q, View4 k, View4 v, View4 out, std::span<const float> record, View4 dout,
                                       const QkvGradients& gradients, const EvaOptions& options = {});

struct CausalEvaOptions {
  int64_t window = 32;  // tokens per window
  int64_t chunk = 8;    // tokens per summary, a divisor of the window
  // How many summaries are kept, a multiple of window / chunk; older ones are folded. 0: all are kept, and no state is possible.
  int64_t summaries = 256;
  int64_t features = 64;  // R, random features of the folded past
  float decay = 1;        // factor of the folded past whenever a window is folded, in (0, 1]
  Draws draws = Draws::orthogonal;
  uint64_t seed = 0;
  uint32_t layer = 0;
  uint32_t draw = 0;
  std::optional<float> scale = {};
  Layout layout = {};
  RunOptions run = {};  // threads and executor
};

// Throws InvalidArgument if options.summaries is 0: such a state would grow without bound.
RAFFIA_API WindowStateShape causal_eva_state_shape(int64_t batch, int64_t query_heads, int64_t heads, int64_t dim,
                                                   int64_t value_dim, const CausalEvaOptions& options = {});

// `state` is the memory of earlier calls; it is read and updated. Without it, a call starts empty and keeps nothing. The backward
// pass treats the state before the forward pass as a constant (`initial`, or none). A call needs O(T / chunk (D + V) + R (D +
// V)) floats per head, for one sequence at a time (backward: O(T (D + V)) more; forward with a single head: O(T / window R V)).
RAFFIA_API void causal_eva_attention(View4 q, View4 k, View4 v, WindowState& state, MutView4 out,
                                     const CausalEvaOptions& options = {}, std::span<float> record = {});
RAFFIA_API void causal_eva_attention(View4 q, View4 k, View4 v, MutView4 out, const CausalEvaOptions& options = {},
                                     std::span<float> record = {});
RAFFIA_API int64_t causal_eva_record_size(View4 q, View4 k, View4 v, const WindowState& initial,
                                          const CausalEvaOptions& options = {});
RAFFIA_API int64_t causal_eva_record_size(View4 q, View4 k, View4 v, const CausalEvaOptions& options = {});
RAFFIA_API void causal_eva_attention_backward(View4 q, View4 k, View4 v, const WindowState& initial, View4 out,
                                              std::span<const float> record, View4 dout, const QkvGradients& gradients,
                                              const CausalEvaOptions& options = {});
RAFFIA_API void causal_eva_attention_backward(View4 q, View4 k, View4 v, View4 out, std::span<const float> record, View4 dout,
                                              const QkvGradients& gradients, const CausalEvaOptions& options = {});

// One token for each of B sessions: q [B, H, D], k [B, G, D], v [B, G, V], out [B, H, V].
RAFFIA_API void causal_eva_step(View3 q, View3 k, View3 v, WindowState& state, MutView3 out,
                                const CausalEvaOptions& options = {});
RAFFIA_API void causal_eva_step(View3 q, View3 k, View3 v, std::span<WindowState* const> sessions, MutView3 out,
                                const CausalEvaOptions& options = {});

}  // namespace raffia

#endif  // RAFFIA_EVA_H_
