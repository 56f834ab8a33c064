// LARA and EVA, in their bidirectional and in their causal forms.
#include "core/check.h"
#include "estimators/estimator_options.h"
#include "raffia/torch/nn.h"
#include "torch/nn/pieces.h"

namespace raffia::nn {
namespace {

// A causal op and its step over the memory of a state.
template <typename Whole, typename Step>
Tensor attend_causally(const Tensor& q, const Tensor& k, const Tensor& v, AttentionState* state, Whole whole, Step step) {
  if (state == nullptr) return whole(Tensor()).out;
  ops::Carried carried;
  if (is_step(q, state)) {
    carried = step(q.squeeze(1), k.squeeze(1), v.squeeze(1));
    carried.out = carried.out.unsqueeze(1);
  } else {
    carried = whole(state->memory);
  }
  state->memory = carried.state;
  return carried.out;
}

}  // namespace

LaraAttentionImpl::LaraAttentionImpl(const AttentionOptions& options) : AttentionImpl(options) {}

Tensor LaraAttentionImpl::attend(const Heads& heads, AttentionState* state) {
  const Estimator estimator = current_estimator();
  const Tensor &q = heads.q, &k = heads.k, &v = heads.v;
  if (!options_.causal) return ops::lara(q, k, v, lara_options(estimator), heads.valid);
  require(state == nullptr || estimator.streaming,
          "Attention: a state is given to {}, expected streaming=true (its memory grows)", to_string(options_.estimator));
  const CausalLaraOptions options = causal_lara_options(estimator);
  return attend_causally(
      q, k, v, state, [&](const Tensor& past) { return ops::causal_lara(q, k, v, past, options, heads.valid); },
      [&](const Tensor& q1, const Tensor& k1, const Tensor& v1) {
        return ops::causal_lara_step(q1, k1, v1, state->memory, options);
      });
}

EvaAttentionImpl::EvaAttentionImpl(const AttentionOptions& options) : AttentionImpl(options) {}

Tensor EvaAttentionImpl::attend(const Heads& heads, AttentionState* state) {
  const Estimator estimator = current_estimator();
  const Tensor &q = heads.q, &k = heads.k, &v = heads.v;
  if (!options_.causal) return ops::eva(q, k, v, eva_options(estimator), heads.valid);
  const CausalEvaOptions options = causal_eva_options(estimator);
  require(state == nullptr || options.summaries > 0,
          "Attention: a state is given to {}, expected samples above 0 (its memory grows)", to_string(options_.estimator));
  return attend_causally(
      q, k, v, state, [&](const Tensor& past) { return ops::causal_eva(q, k, v, past, options, heads.valid); },
      [&](const Tensor& q1, const Tensor& k1, const Tensor& v1) {
        return ops::causal_eva_step(q1, k1, v1, state->memory, options);
      });
}

}  // namespace raffia::nn
