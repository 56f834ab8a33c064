// Attention in linear time with random features, and exact softmax attention.
//
// Shapes everywhere: q [B, Tq, H, D], k [B, Tk, G, D], v [B, Tk, G, V], gate_logits [B, Tk, G], out [B, Tq, H, V]. H is a
// multiple of G; query head h reads key/value head h / (H / G). Feature maps and states have G heads.
// Inputs and outputs are fp32 or bf16, with any strides; sums, states and gradients of parameters are fp32.
// Lengths need not be multiples of a block size. Every op checks shapes first; InvalidArgument names the argument that is wrong.
//
// Causal ops never use a later token: changing one leaves all earlier outputs bitwise the same. (Exception in the linear ops: a
// NaN or infinity may spread to the 15 tokens before it that share its chunk.) Ops are thread-safe for distinct outputs and
// states. Their results are bitwise the same for any number of threads.
#ifndef RAFFIA_ATTENTION_H_
#define RAFFIA_ATTENTION_H_

#include <cstdint>
#include <optional>
#include <span>

#include "raffia/api.h"
#include "raffia/features.h"
#include "raffia/state.h"
#include "raffia/threads.h"
#include "raffia/views.h"

namespace raffia {

// Padding and packing. At most one of `lengths` and `cu_seqlens` may be given.
//
// `valid` masks keys. If each token has a query and a key, the query of a masked token is treated as follows:
//   causal ops (except softmax): its output is 0, and it has no gradient
//   rfa_attention, softmax:      its output and its gradient are those of any other query
//   lara, ra, eva:               its output is that of any other query, but it has no gradient and is left out of all means
struct Layout {
  View2 valid = {};  // [B, Tk] u8: 1 where a key takes part. Masked keys change neither outputs nor state, even if NaN
  std::span<const int64_t> lengths = {};       // [B]: keys of entry b, and queries too where Tq = Tk; the rest is padding
  std::span<const int64_t> cu_seqlens = {};    // [N + 1], from 0 to T: N sequences end to end in one batch entry (B = 1)
  std::span<const int64_t> cu_seqlens_k = {};  // the same for keys, if they differ from the queries
};

struct AttentionOptions {
  std::optional<float> eps = {};  // floor of denominators, relative to the mass; default: map.default_eps()
  Layout layout = {};             // padding and packing
  // Tokens per parallel segment of a causal sequence. 0: chosen from the shape (16 segments for one sequence and head of 8,192
  // tokens or more, none otherwise); < 0: none. Segments let several threads work on one head; on a single thread they cost up
  // to 50% more work.
  int64_t segment = 0;
  RunOptions run = {};  // threads and executor
};

// How many denominators were clamped. A rate above 1% means that there are too few random features for this sigma.
struct Report {
  int64_t rows = 0;     // outputs with a denominator
  int64_t clamped = 0;  // those whose denominator was below the floor
  double clamp_rate() const { return rows == 0 ? 0.0 : static_cast<double>(clamped) / static_cast<double>(rows); }
};

// Bidirectional and cross attention: every query reads all keys of its sequence.
//   out_t = phi(q_t)^T sum_i phi(k_i) v_i^T / phi(q_t)^T sum_i phi(k_i)
// `record`, here and below: filled for the backward pass, record_size() floats; empty: none.
RAFFIA_API Report rfa_attention(View4 q, View4 k, View4 v, const FeatureMap& map, MutView4 out,
                                const AttentionOptions& options = {}, std::span<float> record = {});

// Causal attention: query t reads keys 0..t and the memory in `state`. `state` is read as S_0 and overwritten with S_T; its batch
// is B, or N with cu_seqlens.
RAFFIA_API Report causal_attention(View4 q, View4 k, View4 v, const FeatureMap& map, State& state, MutView4 out,
                                   const AttentionOptions& options = {}, std::span<float> record = {});

// Gated causal attention (RFA-Gate): g_t = sigmoid(gate_logits_t),
//   S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) [v_t, 1]^T,   out_t = phi(q_t)^T S_t / its last column
// Cost O(T F V) per head, in chunks of 16 tokens at GEMM speed; phi is computed chunk by chunk and never stored.
RAFFIA_API Report gated_attention(View4 q, View4 k, View4 v, View3 gate_logits, const FeatureMap& map, State& state, MutView4 out,
                                  const AttentionOptions& options = {}, std::span<float> record = {});

// The two halves of rfa_attention, for keys that are added once and read often (the source of a translation): fold_keys adds keys
// to the state, read_state reads it. With gate_logits the state decays as in gated_attention.
RAFFIA_API void fold_keys(View4 k, View4 v, const FeatureMap& map, State& state, const AttentionOptions& options = {});
RAFFIA_API void fold_keys(View4 k, View4 v, View3 gate_logits, const FeatureMap& map, State& state,
                          const AttentionOptions& options = {});
RAFFIA_API Report read_state(View4 q, const FeatureMap& map, const State& state, MutView4 out,
                             const AttentionOptions& options = {});

// One token for each of B sessions: q [B, H, D], k [B, G, D], v [B, G, V], gate_logits [B, G], out [B, H, V].
// The sessions are the entries of one state, or one state (of batch 1) each.
RAFFIA_API Report causal_step(View3 q, View3 k, View3 v, const FeatureMap& map, State& state, MutView3 out,
                              const AttentionOptions& options = {});
RAFFIA_API Report causal_step(View3 q, View3 k, View3 v, const FeatureMap& map, std::span<State* const> sessions, MutView3 out,
                              const AttentionOptions& options = {});
RAFFIA_API Report gated_step(View3 q, View3 k, View3 v, View2 gate_logits, const FeatureMap& map, State& state, MutView3 out,
                             const AttentionOptions& options = {});
RAFFIA_API Report gated_step(View3 q, View3 k, View3 v, View2 gate_logits, const FeatureMap& map,
                             std::span<State* const> sessions, MutView3 out, const AttentionOptions& options = {});

// Gradients. Views are overwritten, parameter gradients are added to. Absent views are not computed.
struct AttentionGradients {
  MutView4 q = {}, k = {}, v = {};
  MutView3 gate_logits = {};
  MapGradients map = {};
  State* state = nullptr;  // in: gradient of the final state (sums and normaliser); out: of the initial state
};

// Number of floats that a forward pass writes to `record` for the backward pass: denominators, and a state per 128 tokens.
RAFFIA_API int64_t record_size(View4 q, View4 k, View4 v, const FeatureMap& map, const AttentionOptions& options = {});

// `out` and `record` are those of the forward pass with the same inputs and options.
RAFFIA_API void rfa_attention_backward(View4 q, View4 k, View4 v, const FeatureMap& map, View4 out, std::span<const float> record,
                                       View4 dout, const AttentionGradients& gradients, const AttentionOptions& options = {});
RAFFIA_API void causal_attention_backward(View4 q, View4 k, View4 v, const FeatureMap& map, View4 out,
                                          std::span<const float> record, View4 dout, const AttentionGradients& gradients,
                                          const AttentionOptions& options = {});
RAFFIA_API void gated_attention_backward(View4 q, View4 k, View4 v, View3 gate_logits, const FeatureMap& map, View4 out,
                                         std::span<const float> record, View4 dout, const AttentionGradients& gradients,
                                         const AttentionOptions& options = {});

// Exact softmax attention, blocked with an online softmax: memory O(T).
//   out_t = softmax_j(scale q_t . k_j + key_bias_j) v_j
// The output of a query that sees no key is 0. `logsumexp` [B, Tq, H] is filled for the backward pass, unless it is absent: the
// log of the denominators, -inf without keys.
struct SoftmaxOptions {
  bool causal = false;  // query t of Tq sees keys up to t + Tk - Tq
  // Local attention: query t sees only the keys of its own window of this many tokens and of the `before` windows before it
  // (causal only), as many as there are. 0: no window. With a window there must be as many queries as keys.
  int64_t window = 0, before = 0;
  std::optional<float> scale = {};  // default: 1 / sqrt(D)
  View3 key_bias = {};              // [B, Tk, G], added to the logits
  Layout layout = {};               // padding and packing
  RunOptions run = {};              // threads and executor
};

RAFFIA_API void softmax_attention(View4 q, View4 k, View4 v, MutView4 out, const SoftmaxOptions& options = {},
                                  MutView3 logsumexp = {});

struct SoftmaxGradients {
  MutView4 q = {}, k = {}, v = {};
  MutView3 key_bias = {};
};

// `out` is that of the forward pass. If it is bf16, it is computed again in fp32, which costs a forward pass: gradients would
// suffer from its rounding where one key dominates.
RAFFIA_API void softmax_attention_backward(View4 q, View4 k, View4 v, View4 out, View3 logsumexp, View4 dout,
                                           const SoftmaxGradients& gradients, const SoftmaxOptions& options = {});

// One token for each of B sessions: q [B, H, D] -> out [B, H, V]. The caches k [B, capacity, G, D] and v [B, capacity, G, V]
// already hold the token's key and value; the first lengths[b] entries of each are used.
RAFFIA_API void softmax_step(View3 q, View4 k_cache, View4 v_cache, std::span<const int64_t> lengths, MutView3 out,
                             const SoftmaxOptions& options = {}, MutView3 logsumexp = {});

}  // namespace raffia

#endif  // RAFFIA_ATTENTION_H_
