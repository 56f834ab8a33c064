#include "bench/torch/plain_torch.h"

#include <cmath>
#include <limits>
#include <vector>

namespace raffia::internal::bench {
namespace {

using at::Tensor;

constexpr double kHidden = -std::numeric_limits<double>::infinity();
constexpr double kLowestLogGate = -60;

// [T, T], 0 where row t sees column i and -inf where i > t.
Tensor causal_bias(int64_t length, const at::TensorOptions& options) {
  return at::full({length, length}, kHidden, options).triu_(1);
}

// x [B, H, T, d], projection [H, d, D] -> [B, H, T, 2 D].
Tensor trig_features(const Tensor& x, const Tensor& projection) {
  const Tensor unit = x / x.norm(2, -1, true).clamp_min(1e-6);
  const Tensor angles = at::matmul(unit, projection);
  return at::cat({angles.sin(), angles.cos()}, -1) / std::sqrt(static_cast<double>(projection.size(-1)));
}

// [B, H, T, ...] -> [B, H, N, C, ...] with zeros after the last token.
Tensor in_chunks(const Tensor& x, int64_t chunk) {
  const int64_t length = x.size(2), count = (length + chunk - 1) / chunk;
  std::vector<int64_t> shape = x.sizes().vec();
  shape[2] = count;
  shape.insert(shape.begin() + 3, chunk);
  if (count * chunk == length) return x.reshape(shape);
  std::vector<int64_t> missing = x.sizes().vec();
  missing[2] = count * chunk - length;
  return at::cat({x, at::zeros(missing, x.options())}, 2).reshape(shape);
}

// States before each chunk: S_n = decay_n-1 S_n-1 + folded_n-1, S_0 = 0. folded [B, H, N, F, V], decay [B, H, N].
Tensor states_before(const Tensor& folded, const Tensor& decay) {
  const auto parts = folded.unbind(2), decays = decay.unsqueeze(-1).unsqueeze(-1).unbind(2);
  std::vector<Tensor> states = {at::zeros_like(parts[0])};
  for (size_t n = 0; n + 1 < parts.size(); ++n) states.push_back(at::addcmul(parts[n], states[n], decays[n]));
  return at::stack(states, 2);
}

}  // namespace

Tensor plain_softmax(const Tensor& q, const Tensor& k, const Tensor& v) {
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  Tensor scores = at::matmul(q.transpose(1, 2) * scale, k.permute({0, 2, 3, 1}));
  scores.add_(causal_bias(q.size(1), q.options()));
  return at::matmul(at::softmax(scores, -1), v.transpose(1, 2)).transpose(1, 2);
}

// The algebra: with a_t the sum of log gates since the chunk began and u = 1 - g,
//   Y = diag(exp a) PhiQ S_in + ((PhiQ PhiK^T) o M) [V, 1],   M_ti = u_i exp(a_t - a_i) for i <= t
//   S_out = exp(a_C) S_in + PhiK^T diag(u_i exp(a_C - a_i)) [V, 1]
// and the mass, which scales the least denominator, is the same with 1 for the features.
Tensor plain_gated(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate_logits, const Tensor& draws,
                   const Tensor& sigma, const PlainGated& options) {
  const int64_t length = q.size(1), value_dim = v.size(-1), chunk = options.chunk;
  const Tensor projection = (draws * sigma.unsqueeze(1)).transpose(1, 2);  // [H, d, D]
  const Tensor phi_q = in_chunks(trig_features(q.transpose(1, 2), projection), chunk);
  const Tensor phi_k = in_chunks(trig_features(k.transpose(1, 2), projection), chunk);
  const Tensor values = v.transpose(1, 2);
  const Tensor extended = in_chunks(at::cat({values, at::ones_like(values.slice(-1, 0, 1))}, -1), chunk);  // [B, H, N, C, V + 1]

  const Tensor logits = in_chunks(gate_logits.transpose(1, 2), chunk);  // [B, H, N, C]
  const Tensor a = at::log_sigmoid(logits).clamp_min(kLowestLogGate).cumsum(-1);
  const Tensor u = at::sigmoid(-logits);
  const Tensor last = a.slice(-1, chunk - 1);  // [B, H, N, 1]
  Tensor exponents = a.unsqueeze(-1) - a.unsqueeze(-2);
  exponents.add_(causal_bias(chunk, q.options()));
  const Tensor within = exponents.exp() * u.unsqueeze(-2);  // M
  const Tensor weights = u * (last - a).exp();              // of tokens in the state that their chunk leaves
  const Tensor decay = last.squeeze(-1).exp();              // [B, H, N]

  const Tensor folded = at::matmul(phi_k.transpose(-1, -2), extended * weights.unsqueeze(-1));
  const Tensor before = states_before(folded, decay);
  const Tensor y = at::matmul(phi_q, before) * a.exp().unsqueeze(-1) +
                   at::matmul(at::matmul(phi_q, phi_k.transpose(-1, -2)) * within, extended);

  Tensor least;  // no gradient flows where it is the denominator
  {
    at::NoGradGuard constant;
    const Tensor mass_before = states_before(weights.sum(-1, true).unsqueeze(-1), decay).squeeze(-1);
    least = options.eps * (within.sum(-1) + a.exp() * mass_before);
  }
  const Tensor denominator = at::maximum(y.select(-1, value_dim), least).unsqueeze(-1);
  const Tensor out = y.slice(-1, 0, value_dim) / denominator;
  return out.flatten(2, 3).slice(2, 0, length).transpose(1, 2);
}

}  // namespace raffia::internal::bench
