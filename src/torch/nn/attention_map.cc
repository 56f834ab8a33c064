// Feature maps as modules: parameters, stored buffers, and the draws of training.
#include <cmath>
#include <optional>

#include "core/check.h"
#include "estimators/registry.h"
#include "model/plan.h"
#include "raffia/random.h"
#include "raffia/torch/nn.h"
#include "torch/nn/pieces.h"

namespace raffia::nn {

using namespace internal;
using namespace internal::nn;

AttentionMapImpl::AttentionMapImpl(const AttentionOptions& options) : options_(options), kind_(options.estimator.map) {
  const std::optional<MapPlan> mapped = plan_attention("", settings_of(options)).map;
  require(mapped.has_value(), "AttentionMap: {} has no feature map, expected {}", to_string(options.estimator),
          kinds_with(&EstimatorTraits::has_map));
  const MapPlan& plan = *mapped;
  if (plan.weight) {
    const auto dim = static_cast<double>(plan.weight->shape[2]);
    weight_ = register_parameter(own_name(plan.weight->name), at::randn(plan.weight->shape) / std::sqrt(dim));
  }
  if (plan.bias) bias_ = register_parameter(own_name(plan.bias->name), at::zeros(plan.bias->shape));
  if (plan.draws) {
    draws_ = register_buffer(own_name(plan.draws->name), at::empty(plan.draws->shape, at::kFloat));
    draws_.copy_(drawn(0));
  }
  if (plan.sigma) sigma_ = register_parameter(own_name(plan.sigma->name), at::ones(plan.sigma->shape));
}

Tensor AttentionMapImpl::drawn(uint32_t draw) const {
  const int64_t heads = draws_.size(0), rows = draws_.size(1), dim = draws_.size(2);
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
