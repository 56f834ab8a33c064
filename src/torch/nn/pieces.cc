#include "torch/nn/pieces.h"

#include <torch/nn/init.h>

#include <cmath>

namespace raffia::nn {

torch::nn::Linear make_linear(int64_t in, int64_t out, bool bias) {
  torch::nn::Linear linear(torch::nn::LinearOptions(in, out).bias(bias));
  torch::nn::init::normal_(linear->weight, 0, kInitialDeviation);
  if (bias) torch::nn::init::zeros_(linear->bias);
  return linear;
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

Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon) {
  const Tensor wide = x.scalar_type() == at::kBFloat16 ? x.to(at::kFloat) : x;
  const Tensor scale = at::rsqrt(wide.square().mean(-1, true) + epsilon);
  return (wide * scale * weight).to(x.scalar_type());
}

NormImpl::NormImpl(int64_t width, raffia::Norm kind, double epsilon)
    : epsilon_(epsilon), weight_(register_parameter("weight", at::ones({width}))) {
  if (kind == raffia::Norm::layer) bias_ = register_parameter("bias", at::zeros({width}));
}

Tensor NormImpl::forward(const Tensor& x) {
  if (!bias_.defined()) return rms_norm(x, weight_, epsilon_);
  return torch::layer_norm(x, {x.size(-1)}, weight_, bias_, epsilon_);
}

Tensor as_parameter(const Tensor& parameter, const Tensor& q) {
  if (!parameter.defined()) return parameter;
  return parameter.to(q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

}  // namespace raffia::nn
