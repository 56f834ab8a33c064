// Attention by importance sampling: Randomized Attention (RA), LARA, and RFA with positive features as their special case.
//
// With q and k scaled so that logits are q . k, and xi(x, w) = exp(w . x - |x|^2 / 2), softmax attention is an expectation of
//   f(w) = sum_m xi(k_m, w) v_m / z(w),   z(w) = sum_m xi(k_m, w)
// over w. RA draws w from the exact distribution of each query: unbiased, quadratic. LARA shares S samples among all queries,
// drawn around means of chunks and weighted by importance: linear, consistent, biased for finite S. With proposals N(0, I) it is
// RFA with positive features. Every exponential is part of a softmax: no overflow, no eps, outputs in the convex hull of V.
//
// Shapes, layouts, element types, threads and `record` are as in attention.h. Random numbers are shared by all entries of a
// batch, so that the output of a sequence does not depend on the others.
#ifndef RAFFIA_LARA_H_
#define RAFFIA_LARA_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "raffia/api.h"
#include "raffia/attention.h"
#include "raffia/random.h"
#include "raffia/threads.h"
#include "raffia/views.h"
#include "raffia/window_state.h"

namespace raffia {

// Where the samples of LARA are drawn: w_s = mu_c + e_s, e_s ~ N(0, I), in units where logits are q . k.
enum class Proposals : uint8_t {
  chunk_mean,  // mu_c = mean(q) + mean(k) of chunk c
  qk_mixed,    // mu_c = mean(q) of chunk c + softmax attention of that mean over the key means of all chunks
  standard,    // mu_c = 0: RFA with positive features, in log space
};

enum class SampleWeights : uint8_t {
  balance,  // balance heuristic: consistent, numerator and denominator unbiased
  mis_opt,  // as in the authors' code, for comparison: forward only, and not in the blocked kernel
};

RAFFIA_API std::string_view name_of(Proposals proposals);
RAFFIA_API std::string_view name_of(SampleWeights weights);
RAFFIA_API Proposals parse_proposals(std::string_view name);           // throws InvalidArgument and lists the names
RAFFIA_API SampleWeights parse_sample_weights(std::string_view name);  // the same

struct LaraOptions {
  int64_t samples = 64;              // S, the total
  int64_t samples_per_proposal = 1;  // divides samples; there are samples / samples_per_proposal chunks
  Proposals proposals = Proposals::chunk_mean;
  SampleWeights weights = SampleWeights::balance;
  float mis_opt_strength = 1;  // eta of mis_opt
  // Samples are the means of their proposals, not draws around them. Evaluation uses this (Estimator::mean), since the error is
  // smaller unless there are many samples. Training draws.
  bool mean = false;
  Draws draws = Draws::orthogonal;
  uint64_t seed = 0;
  uint32_t layer = 0;
  uint32_t draw = 0;                // which draw of the pool
  std::optional<float> scale = {};  // of logits; default: 1 / sqrt(D)
  Layout layout = {};
  RunOptions run = {};  // threads and executor
};

// Views are overwritten. Absent views are not computed.
struct QkvGradients {
  MutView4 q = {}, k = {}, v = {};
};

// Self and cross attention. Chunks are equal shares of the tokens that take part, so padding and masked tokens change nothing.
// (If Tq = Tk, queries of masked keys are left out of all means, and have an output but no gradient.) Cost O((Tq + Tk) S + S C),
// memory O(Tq + Tk + S) rows per head.
RAFFIA_API void lara_attention(View4 q, View4 k, View4 v, MutView4 out, const LaraOptions& options = {},
                               std::span<float> record = {});
RAFFIA_API int64_t lara_record_size(View4 q, View4 k, View4 v, const LaraOptions& options = {});
RAFFIA_API void lara_attention_backward(View4 q, View4 k, View4 v, View4 out, std::span<const float> record, View4 dout,
                                        const QkvGradients& gradients, const LaraOptions& options = {});

struct RaOptions {
  int64_t draws = 1;    // per query, averaged
  bool causal = false;  // query t of Tq sees keys up to t + Tk - Tq
  uint64_t seed = 0;
  uint32_t layer = 0;
  uint32_t draw = 0;
  int64_t first_query = 0;          // query i of a sequence takes the random numbers of query first_query + i: for steps
  std::optional<float> scale = {};  // of logits; default: 1 / sqrt(D)
  Layout layout = {};
  RunOptions run = {};  // threads and executor
};

// Randomized Attention: per draw a key m ~ softmax(q_n . k_m), w = q_n + k_m + e, output f(w). Unbiased. Each draw costs as much
// as softmax attention. Memory: that of one draw, plus one number per query and draw. If Tq = Tk, queries
// of masked keys have no gradient; their output is 0 if causal, otherwise that of any other query.
RAFFIA_API void ra_attention(View4 q, View4 k, View4 v, MutView4 out, const RaOptions& options = {});

// The drawn m and e are constants here. They are drawn again, so no record is needed.
RAFFIA_API void ra_attention_backward(View4 q, View4 k, View4 v, View4 dout, const QkvGradients& gradients,
                                      const RaOptions& options = {});

// Causal LARA: exact logits within the query's window and samples for all earlier windows, in one softmax.
struct CausalLaraOptions {
  int64_t window = 32;               // tokens per window
  int64_t chunk = 8;                 // tokens per proposal, a divisor of the window
  int64_t samples = 128;             // maximum; later windows add their keys to these samples and draw no new ones
  int64_t samples_per_proposal = 1;  // each window adds window / chunk * samples_per_proposal samples
  // true: a window's keys are added to the samples of its own and earlier windows only and never read again: constant state.
  // false: new samples read all past keys again, for comparison; no state can be carried.
  bool streaming = true;
  Draws draws = Draws::orthogonal;
  uint64_t seed = 0;
  uint32_t layer = 0;
  uint32_t draw = 0;
  std::optional<float> scale = {};
  Layout layout = {};
  RunOptions run = {};  // threads and executor
};

RAFFIA_API WindowStateShape causal_lara_state_shape(int64_t batch, int64_t query_heads, int64_t heads, int64_t dim,
                                                    int64_t value_dim, const CausalLaraOptions& options = {});

// `state` is the memory of earlier calls; it is read and updated. Without it, a call starts empty and keeps nothing. The backward
// pass treats the state before the forward pass as a constant (`initial`, or none). A call needs O(T + S (D + V)) floats per head
// (backward: O(T (D + V) + T / window S + S (D + V)); forward with a single head or without streaming: O(T / window S V)), for
// one sequence at a time.
RAFFIA_API void causal_lara_attention(View4 q, View4 k, View4 v, WindowState& state, MutView4 out,
                                      const CausalLaraOptions& options = {}, std::span<float> record = {});
RAFFIA_API void causal_lara_attention(View4 q, View4 k, View4 v, MutView4 out, const CausalLaraOptions& options = {},
                                      std::span<float> record = {});
RAFFIA_API int64_t causal_lara_record_size(View4 q, View4 k, View4 v, const WindowState& initial,
                                           const CausalLaraOptions& options = {});
RAFFIA_API int64_t causal_lara_record_size(View4 q, View4 k, View4 v, const CausalLaraOptions& options = {});
RAFFIA_API void causal_lara_attention_backward(View4 q, View4 k, View4 v, const WindowState& initial, View4 out,
                                               std::span<const float> record, View4 dout, const QkvGradients& gradients,
                                               const CausalLaraOptions& options = {});
RAFFIA_API void causal_lara_attention_backward(View4 q, View4 k, View4 v, View4 out, std::span<const float> record, View4 dout,
                                               const QkvGradients& gradients, const CausalLaraOptions& options = {});

// One token for each of B sessions: q [B, H, D], k [B, G, D], v [B, G, V], out [B, H, V].
RAFFIA_API void causal_lara_step(View3 q, View3 k, View3 v, WindowState& state, MutView3 out,
                                 const CausalLaraOptions& options = {});
RAFFIA_API void causal_lara_step(View3 q, View3 k, View3 v, std::span<WindowState* const> sessions, MutView3 out,
                                 const CausalLaraOptions& options = {});

}  // namespace raffia

#endif  // RAFFIA_LARA_H_
