// Reference twins of lara.h, eva.h and hybrid.h: see reference.h, which says what twins are.
//
// Everything is computed in double, from views of any element type, f64 included; random numbers are those of the ops, which are
// floats. There is no backward pass here: gradients are finite differences of these functions. The causal ones start from an
// empty past: what an op computes in parts is compared with the whole sequence here.
//
// Of the options, those that change results count. Queries of absent tokens (layout.valid) are computed like others in the
// bidirectional ops, and have an output of 0 in the causal ones. Queries past `layout.lengths` have an output of 0.
#ifndef RAFFIA_REFERENCE_SAMPLED_H_
#define RAFFIA_REFERENCE_SAMPLED_H_

#include <cstdint>
#include <span>
#include <vector>

#include "raffia/eva.h"
#include "raffia/hybrid.h"
#include "raffia/lara.h"
#include "raffia/reference.h"
#include "raffia/views.h"

namespace raffia::reference {

// `log_sum` [B, Tq, H], here and below, is the log of each query's denominator: what the op makes of log sum_m exp(q . k_m) over
// the keys that the query sees (logits scaled). -inf where there are none.
void lara_attention(View4 q, View4 k, View4 v, MutView4 out, const LaraOptions& options = {}, MutView3 log_sum = {});

// The keys m that Randomized Attention draws, [B, Tq, H, draws], as tokens of k; -1 for queries that see no key.
std::vector<int64_t> ra_keys(View4 q, View4 k, const RaOptions& options = {});

// With these keys held fixed, and the noise of the options: what ra_attention_backward() is the gradient of.
void ra_attention(View4 q, View4 k, View4 v, std::span<const int64_t> keys, MutView4 out, const RaOptions& options = {});
void ra_attention(View4 q, View4 k, View4 v, MutView4 out, const RaOptions& options = {});

void causal_lara_attention(View4 q, View4 k, View4 v, MutView4 out, const CausalLaraOptions& options = {}, MutView3 log_sum = {});

void eva_attention(View4 q, View4 k, View4 v, MutView4 out, const EvaOptions& options = {}, MutView3 log_sum = {});
void causal_eva_attention(View4 q, View4 k, View4 v, MutView4 out, const CausalEvaOptions& options = {}, MutView3 log_sum = {});

// A row that drops the folded part is counted as clamped if the state has a mass.
Report hybrid_attention(const HybridInputs& inputs, const Map& map, MutView4 out, const HybridOptions& options = {});

}  // namespace raffia::reference

#endif  // RAFFIA_REFERENCE_SAMPLED_H_
