// Inputs of the ops under test: random, seeded, in double; `.to(at::kFloat)` gives what kernels see.
#ifndef RAFFIA_TESTS_TORCH_OPS_CASE_H_
#define RAFFIA_TESTS_TORCH_OPS_CASE_H_

#include "raffia/torch/ops.h"
#include "torch/libtorch.h"

namespace raffia::ops {

// Sizes that divide nothing, and grouped heads.
struct Case {
  explicit Case(int64_t length = 21, uint64_t seed = 1) {
    torch::manual_seed(static_cast<int64_t>(seed));
    const auto numbers = [](at::IntArrayRef shape) { return torch::randn(shape, at::kDouble); };
    q = numbers({2, length, 4, 5});
    k = numbers({2, length, 2, 5});
    v = numbers({2, length, 2, 3});
    gate = numbers({2, length, 2}) + 1.5;
    valid = torch::rand({2, length}) > 0.2;
    valid.index_put_({torch::indexing::Slice(), 0}, true);
  }

  // Draws of 6 vectors a head, with a sigma; relu: 6 learned rows; otherwise no parameters.
  Map map(MapKind kind) const {
    if (kind == MapKind::identity || kind == MapKind::elu) return {.kind = kind};
    torch::manual_seed(7);
    const Tensor weight = torch::randn({2, 6, 5}, at::kDouble);
    if (kind == MapKind::relu) return {.kind = kind, .weight = weight * 0.5, .bias = torch::rand({2, 6}, at::kDouble) + 0.5};
    return {.kind = kind, .weight = weight, .sigma = torch::rand({2, 5}, at::kDouble) * 0.5 + 0.5};
  }

  Tensor q, k, v, gate, valid;
};

inline Tensor as_float(const Tensor& tensor) { return tensor.defined() ? tensor.to(at::kFloat) : tensor; }

inline Map as_float(const Map& map) {
  return {.kind = map.kind, .weight = as_float(map.weight), .sigma = as_float(map.sigma), .bias = as_float(map.bias)};
}

inline Case as_float(Case in) {
  for (Tensor* each : {&in.q, &in.k, &in.v, &in.gate}) *each = each->to(at::kFloat);
  return in;
}

inline double largest_difference(const Tensor& a, const Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

}  // namespace raffia::ops

#endif  // RAFFIA_TESTS_TORCH_OPS_CASE_H_
