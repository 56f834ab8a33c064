// Feature maps as modules: parameters, stored buffers, and the draws of training.
#include <cmath>

#include "core/check.h"
#include "raffia/random.h"
#include "raffia/torch/nn.h"

namespace raffia::nn {
namespace {

int64_t rows_of(const AttentionOptions& options) { return options.estimator.samples.value_or(64); }

}  // namespace

AttentionMapImpl::AttentionMapImpl(const AttentionOptions& options) : options_(options), kind_(options.estimator.map) {
  const int64_t heads = options.key_heads(), dim = options.head_dim(), rows = rows_of(options);
  switch (kind_) {
    case MapKind::identity:
    case MapKind::elu:
      return;
    case MapKind::relu:
      weight_ = register_parameter("weight", at::randn({heads, rows, dim}) / std::sqrt(static_cast<double>(dim)));
      bias_ = register_parameter("bias", at::zeros({heads, rows}));
      return;
    case MapKind::trig:
    case MapKind::arccos:
    case MapKind::positive:
    case MapKind::positive2:
      draws_ = register_buffer("draws", drawn(0));
      if (options.learned_sigma) sigma_ = register_parameter("sigma", at::ones({heads, dim}));
      return;
  }
}

Tensor AttentionMapImpl::drawn(uint32_t draw) const {
  const int64_t heads = options_.key_heads(), dim = options_.head_dim(), rows = rows_of(options_);
  const Tensor all = at::empty({heads, rows, dim}, at::kFloat);
  for (int64_t head = 0; head < heads; ++head) {
    const StreamKey key{options_.estimator.seed, options_.layer, static_cast<uint32_t>(head), draw};
    draw_projection(key, options_.estimator.draws, rows, dim,
                    {all.data_ptr<float>() + head * rows * dim, static_cast<size_t>(rows * dim)});
  }
  return all;
}

ops::Map AttentionMapImpl::tensors(uint32_t draw) {
  if (!draws_.defined()) return {.kind = kind_, .weight = weight_, .bias = bias_};
  Tensor draws = draws_;
  if (draw > 0) {
    auto [entry, is_new] = pool_.try_emplace(draw);
    if (is_new) entry->second = drawn(draw);
    draws = entry->second.to(draws_.options());
  }
  return {.kind = kind_, .weight = draws, .sigma = sigma_};
}

double AttentionMapImpl::mean_sigma() const {
  if (!draws_.defined()) return 0;
  return sigma_.defined() ? sigma_.detach().mean().item<double>() : 1;
}

}  // namespace raffia::nn
