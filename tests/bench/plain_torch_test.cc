// The baselines of `raffia bench train` are only worth beating if they compute the same thing.
#include "bench/torch/plain_torch.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <cmath>
#include <vector>

#include "raffia/torch/ops.h"
#include "torch/libtorch.h"

namespace raffia::internal::bench {
namespace {

using at::Tensor;

struct Inputs {
  Tensor q, k, v, gates, draws, sigma;
};

Inputs make_inputs(int64_t length, at::ScalarType dtype) {
  torch::manual_seed(7);
  const auto options = at::TensorOptions().dtype(dtype);
  const int64_t batch = 2, heads = 3, dim = 8, count = 16;
  return {.q = at::randn({batch, length, heads, dim}, options),
          .k = at::randn({batch, length, heads, dim}, options),
          .v = at::randn({batch, length, heads, dim}, options),
          .gates = 2 * at::randn({batch, length, heads}, options) + 1,
          .draws = at::randn({heads, count, dim}, options),
          .sigma = 1 + 0.1 * at::randn({heads, dim}, options)};
}

Tensor trig(const Tensor& x, const Tensor& w) {  // x [B, H, d], w [H, D, d]
  const Tensor angles = at::einsum("bhd,hfd->bhf", {x / x.norm(2, -1, true), w});
  return at::cat({angles.sin(), angles.cos()}, -1) / std::sqrt(static_cast<double>(w.size(1)));
}

// The recurrence, token by token.
Tensor gated_by_recurrence(const Inputs& in) {
  const Tensor w = in.draws * in.sigma.unsqueeze(1);
  Tensor state, mass;
  std::vector<Tensor> out;
  for (int64_t t = 0; t < in.q.size(1); ++t) {
    const Tensor v = in.v.select(1, t), gate = at::sigmoid(in.gates.select(1, t)).unsqueeze(-1);
    const Tensor extended = at::cat({v, at::ones_like(v.slice(-1, 0, 1))}, -1);
    const Tensor written = at::einsum("bhf,bhv->bhfv", {trig(in.k.select(1, t), w), extended}) * (1 - gate).unsqueeze(-1);
    state = t == 0 ? written : gate.unsqueeze(-1) * state + written;
    mass = t == 0 ? 1 - gate : gate * mass + 1 - gate;
    const Tensor y = at::einsum("bhf,bhfv->bhv", {trig(in.q.select(1, t), w), state});
    const Tensor denominator = at::maximum(y.slice(-1, v.size(-1)), 1e-3 * mass.detach());
    out.push_back(y.slice(-1, 0, v.size(-1)) / denominator);
  }
  return at::stack(out, 1);
}

TEST(PlainTorch, ChunkedGateEqualsItsRecurrence) {
  for (const int64_t length : {1, 64, 150}) {
    Inputs in = make_inputs(length, at::kDouble);
    std::vector<Tensor> leaves = {in.q, in.k, in.v, in.gates, in.sigma};
    for (Tensor& leaf : leaves) leaf.requires_grad_();
    const Tensor expected = gated_by_recurrence(in);
    const Tensor found = plain_gated(in.q, in.k, in.v, in.gates, in.draws, in.sigma);
    EXPECT_LT((found - expected).abs().max().item<double>(), 1e-11) << "length " << length;  // both round in double
    const Tensor dout = at::randn_like(expected);
    const auto expected_gradients = torch::autograd::grad({expected}, leaves, {dout});
    const auto found_gradients = torch::autograd::grad({found}, leaves, {dout});
    for (size_t i = 0; i < leaves.size(); ++i) {
      const double scale = 1 + expected_gradients[i].abs().max().item<double>();
      EXPECT_LT((found_gradients[i] - expected_gradients[i]).abs().max().item<double>(), 1e-10 * scale) << "leaf " << i;
    }
  }
}

TEST(PlainTorch, SoftmaxSeesNoLaterToken) {
  const Inputs in = make_inputs(20, at::kDouble);
  const Tensor out = plain_softmax(in.q, in.k, in.v);
  for (int64_t t = 0; t < 20; ++t) {
    const Tensor logits = at::einsum("bhd,bihd->bhi", {in.q.select(1, t), in.k.slice(1, 0, t + 1)}) / std::sqrt(8.0);
    const Tensor expected = at::einsum("bhi,bihd->bhd", {at::softmax(logits, -1), in.v.slice(1, 0, t + 1)});
    EXPECT_LT((out.select(1, t) - expected).abs().max().item<double>(), 1e-12);
  }
}

// fp32 against fp32, of different orders of summation: 1e-4 of the largest entry is a few hundred roundings.
void expect_same(const std::vector<Tensor>& leaves, const Tensor& found, const Tensor& expected) {
  const auto close = [](const Tensor& a, const Tensor& b) {
    return (a - b).abs().max().item<double>() <= 1e-4 * (1 + b.abs().max().item<double>());
  };
  EXPECT_TRUE(close(found, expected));
  const Tensor dout = at::randn_like(expected);
  const auto found_gradients = torch::autograd::grad({found}, leaves, {dout});
  const auto expected_gradients = torch::autograd::grad({expected}, leaves, {dout});
  for (size_t i = 0; i < leaves.size(); ++i) EXPECT_TRUE(close(found_gradients[i], expected_gradients[i])) << "leaf " << i;
}

TEST(PlainTorch, ChunkedGateEqualsTheOp) {
  Inputs in = make_inputs(150, at::kFloat);
  std::vector<Tensor> leaves = {in.q, in.k, in.v, in.gates, in.sigma};
  for (Tensor& leaf : leaves) leaf.requires_grad_();
  expect_same(leaves, plain_gated(in.q, in.k, in.v, in.gates, in.draws, in.sigma),
              ops::rfa_gate(in.q, in.k, in.v, in.gates, {.weight = in.draws, .sigma = in.sigma}).out);
}

TEST(PlainTorch, SoftmaxEqualsTheOp) {
  Inputs in = make_inputs(150, at::kFloat);
  std::vector<Tensor> leaves = {in.q, in.k, in.v};
  for (Tensor& leaf : leaves) leaf.requires_grad_();
  expect_same(leaves, plain_softmax(in.q, in.k, in.v), ops::softmax(in.q, in.k, in.v, {.causal = true}));
}

}  // namespace
}  // namespace raffia::internal::bench
