#include "torch/nn/pieces.h"

#include <torch/nn/init.h>

#include <cmath>

#include "torch/ops/linear_layer.h"
#include "torch/ops/norm.h"

namespace raffia::internal::nn {

torch::nn::Linear make_linear(const LinearLayerPlan& plan) {
  torch::nn::Linear linear(torch::nn::LinearOptions(plan.in(), plan.out()).bias(plan.bias.has_value()));
  torch::nn::init::normal_(linear->weight, 0, kInitialDeviation);
  if (plan.bias) torch::nn::init::zeros_(linear->bias);
  return linear;
}

Tensor apply_linear(const torch::nn::Linear& linear, const Tensor& x) {
  return ops::linear_layer(x, linear->weight, linear->bias);
}

Tensor apply_linear_gelu(const torch::nn::Linear& linear, const Tensor& x) {
  return ops::linear_layer(x, linear->weight, linear->bias, ops::Activation::gelu);
}

torch::nn::Embedding make_table(const TablePlan& plan) {
  torch::nn::Embedding table(plan.rows(), plan.width());
  torch::nn::init::normal_(table->weight, 0, kInitialDeviation);
  return table;
}

AttentionOptions options_of(const AttentionPlan& plan) {
  AttentionOptions options{.embed_dim = plan.width,
                           .num_heads = plan.heads,
                           .num_kv_heads = plan.key_heads,
                           .estimator = plan.estimator,
                           .causal = plan.causal,
                           .bias = plan.bias,
                           .rotary = plan.rotary,
                           .rotary_base = plan.rotary_base,
                           .conv = plan.conv,
                           .head_norm = plan.head_norm,
                           .learned_sigma = plan.learned_sigma,
                           .pool = plan.pool,
                           .span_min = plan.span_min,
                           .span_max = plan.span_max,
                           .layer = plan.estimator.layer};
  options.estimator.layer = 0;
  return options;
}

AttentionSettings settings_of(const AttentionOptions& options) {
  AttentionSettings settings{.width = options.embed_dim,
                             .heads = options.num_heads,
                             .key_heads = options.key_heads(),
                             .estimator = options.estimator,
                             .causal = options.causal,
                             .bias = options.bias,
                             .rotary = options.rotary,
                             .rotary_base = options.rotary_base,
                             .conv = options.conv,
                             .head_norm = options.head_norm,
                             .learned_sigma = options.learned_sigma,
                             .pool = options.pool,
                             .span_min = options.span_min,
                             .span_max = options.span_max};
  settings.estimator.layer = options.layer;
  return settings;
}

Rotary::Rotary(int64_t position, int64_t length, int64_t dim, double base, const Tensor& like) {
  // Angles of far positions need more digits than fp32 has.
  const auto in_double = at::TensorOptions().dtype(at::kDouble).device(like.device());
  const Tensor frequencies = at::exp(at::arange(0, dim, 2, in_double) * (-std::log(base) / static_cast<double>(dim)));
  const Tensor positions = at::arange(position, position + length, in_double);
  const Tensor angles = (positions.unsqueeze(1) * frequencies.unsqueeze(0)).unsqueeze(1);
  cos_ = at::cos(angles).to(like.scalar_type());
  sin_ = at::sin(angles).to(like.scalar_type());
}

Tensor Rotary::operator()(const Tensor& x) const {
  const int64_t half = x.size(3) / 2;
  const Tensor cos = cos_.narrow(0, 0, x.size(1)), sin = sin_.narrow(0, 0, x.size(1));
  const Tensor first = x.narrow(3, 0, half), second = x.narrow(3, half, half);
  return at::cat({first * cos - second * sin, second * cos + first * sin}, 3);
}

Tensor short_convolution(const Tensor& x, const Tensor& before, const Tensor& weight) {
  const int64_t width = weight.size(1), length = x.size(1);
  const Tensor all = width == 1 ? x : at::cat({before.to(x.scalar_type()), x}, 1);
  const Tensor taps = weight.to(x.scalar_type());
  Tensor y = all.narrow(1, width - 1, length) * taps.select(1, width - 1);
  for (int64_t j = 0; j + 1 < width; ++j) y = at::addcmul(y, all.narrow(1, j, length), taps.select(1, j));
  return y;
}

NormImpl::NormImpl(const NormPlan& plan)
    : epsilon_(plan.eps), weight_(register_parameter(own_name(plan.weight.name), at::ones(plan.weight.shape))) {
  if (plan.bias) bias_ = register_parameter(own_name(plan.bias->name), at::zeros(plan.bias->shape));
}

Tensor NormImpl::forward(Residual& x) {
  const ops::Normed normed = ops::norm(x.sum, x.added, weight_, bias_, epsilon_);
  x = {normed.sum};
  return normed.y;
}

Tensor as_parameter(const Tensor& parameter, const Tensor& q) {
  if (!parameter.defined()) return parameter;
  return parameter.to(q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

}  // namespace raffia::internal::nn
