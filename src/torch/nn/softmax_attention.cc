// Exact attention, to all of the past or to a window of it.
#include <algorithm>

#include "estimators/estimator_options.h"
#include "raffia/torch/nn.h"
#include "torch/nn/pieces.h"

namespace raffia::nn {
namespace {

// Outputs of queries [B, T, H, d] over keys that begin `past` tokens earlier, with an op that needs as many queries as keys.
template <typename Op>
Tensor attend_behind(const Tensor& q, int64_t past, Op op) {
  if (past == 0) return op(q);
  const Tensor padding = at::zeros({q.size(0), past, q.size(2), q.size(3)}, q.options());
  return op(at::cat({padding, q}, 1)).narrow(1, past, q.size(1));
}

Tensor step(const Tensor& q, const KeyCache& cache, const SoftmaxOptions& options) {
  const Tensor lengths = at::full({q.size(0)}, cache.keys.size(1), at::kLong);
  return ops::softmax_step(q.squeeze(1), cache.keys, cache.values, lengths, {.scale = options.scale}).unsqueeze(1);
}

}  // namespace

SoftmaxAttentionImpl::SoftmaxAttentionImpl(const AttentionOptions& options) : AttentionImpl(options) {}

Tensor SoftmaxAttentionImpl::attend(const Heads& heads, AttentionState* state) {
  const SoftmaxOptions options = softmax_options(options_.estimator, options_.causal);
  if (state == nullptr) return ops::softmax(heads.q, heads.k, heads.v, options, heads.valid);

  const KeyCache cache = with_past(heads.k, heads.v, *state);
  Tensor out;
  if (is_step(heads.q, state)) {
    out = step(heads.q, cache, options);  // the next token sees everything in the state
  } else if (options.window == 0) {
    out = ops::softmax(heads.q, cache.keys, cache.values, options);
  } else {
    out = attend_behind(heads.q, cache.past, [&](const Tensor& q) { return ops::softmax(q, cache.keys, cache.values, options); });
  }

  // The next token sees its own window and the `before` windows before it, so the kept keys start at the beginning of a window.
  int64_t kept = cache.keys.size(1);
  if (options.window > 0) {
    const int64_t next = state->position + heads.q.size(1);
    kept = next - std::max<int64_t>(0, next / options.window - options.before) * options.window;
  }
  const auto last = [kept](const Tensor& x) { return kept == x.size(1) ? x : x.narrow(1, x.size(1) - kept, kept).clone(); };
  state->keys = last(cache.keys);
  state->values = last(cache.values);
  return out;
}

RandomizedAttentionImpl::RandomizedAttentionImpl(const AttentionOptions& options) : AttentionImpl(options) {}

Tensor RandomizedAttentionImpl::attend(const Heads& heads, AttentionState* state) {
  const RaOptions options = ra_options(current_estimator(), options_.causal);
  if (state == nullptr) return ops::ra(heads.q, heads.k, heads.v, options, heads.valid);
  // The draws of a query depend on its position in the sequence.
  const KeyCache cache = with_past(heads.k, heads.v, *state);
  state->keys = cache.keys;
  state->values = cache.values;
  return attend_behind(heads.q, cache.past, [&](const Tensor& q) { return ops::ra(q, cache.keys, cache.values, options); });
}

}  // namespace raffia::nn
