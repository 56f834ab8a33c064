// Reference implementations ("twins") of lara.h, eva.h and hybrid.h; see reference.h.
//
// Everything is computed in double, from views of any element type, including f64. Random numbers are the same as in the ops,
// which use floats. There is no backward pass here: tests take finite differences of these functions. The causal ones start from
// empty memory: an op that reads a sequence in parts is compared with the whole sequence here.
//
// Only the options that change results are used. In the bidirectional ops, queries of masked tokens (layout.valid) are computed
// like others; in the causal ops their output is 0. The output of queries beyond `layout.lengths` is 0.
#ifndef RAFFIA_REFERENCE_SAMPLED_H_
#define RAFFIA_REFERENCE_SAMPLED_H_

#include <cstdint>
#include <span>
#include <vector>

#include "raffia/api.h"
#include "raffia/eva.h"
#include "raffia/hybrid.h"
#include "raffia/lara.h"
#include "raffia/reference.h"
#include "raffia/views.h"

namespace raffia::reference {

// `log_sum` [B, Tq, H], here and below, is the log of each query's denominator: the op's estimate of log sum_m exp(q . k_m) over
// the keys that the query sees (logits scaled); -inf if there are none.
RAFFIA_API void lara_attention(View4 q, View4 k, View4 v, MutView4 out, const LaraOptions& options = {}, MutView3 log_sum = {});

// The keys m that Randomized Attention draws, [B, Tq, H, draws], as token indices of k; -1 for queries that see no key.
RAFFIA_API std::vector<int64_t> ra_keys(View4 q, View4 k, const RaOptions& options = {});

// With these keys held fixed and the noise given by the options: the function whose gradient ra_attention_backward() computes.
RAFFIA_API void ra_attention(View4 q, View4 k, View4 v, std::span<const int64_t> keys, MutView4 out,
                             const RaOptions& options = {});
RAFFIA_API void ra_attention(View4 q, View4 k, View4 v, MutView4 out, const RaOptions& options = {});

RAFFIA_API void causal_lara_attention(View4 q, View4 k, View4 v, MutView4 out, const CausalLaraOptions& options = {},
                                      MutView3 log_sum = {});

RAFFIA_API void eva_attention(View4 q, View4 k, View4 v, MutView4 out, const EvaOptions& options = {}, MutView3 log_sum = {});
RAFFIA_API void causal_eva_attention(View4 q, View4 k, View4 v, MutView4 out, const CausalEvaOptions& options = {},
                                     MutView3 log_sum = {});

// A row that drops the folded part is counted as clamped if the mass of the state is not 0.
RAFFIA_API Report hybrid_attention(const HybridInputs& inputs, const Map& map, MutView4 out, const HybridOptions& options = {});

}  // namespace raffia::reference

#endif  // RAFFIA_REFERENCE_SAMPLED_H_
