// The mean of the visible values: linear attention with the feature 1, as src/estimators/mean/module.cc says.
#include "torch/estimators/registry.h"

namespace raffia::internal::ops {
namespace {

// [B, T, H, d] -> [B, T, H, 1], 1 for any x, NaN included. A part of the graph, with the gradient 0: every parameter of a module
// gets a gradient.
Tensor ones_of(const Tensor& x) { return x.narrow(-1, 0, 1).pow(0); }

Map identity() { return {.kind = MapKind::identity}; }

constexpr double kNoFloor = 0;  // denominators are counts

class MeanTensors : public TensorEstimator {
 public:
  Attended attend(const Estimator&, const AttendTensors& in, bool causal) const override {
    const Tensor q = ones_of(in.q), k = ones_of(in.k);
    if (!causal) return {rfa(q, k, in.v, identity(), in.valid, kNoFloor).out};
    return {causal_rfa(q, k, in.v, identity(), {}, in.valid, kNoFloor).out};
  }

  Attended extend(const Estimator&, const AttendTensors& in, TensorMemory& memory) const override {
    const Tensor q = ones_of(in.q), k = ones_of(in.k);
    return {carry(
                in, memory, [&](const Tensor& past) { return causal_rfa(q, k, in.v, identity(), past, in.valid, kNoFloor); },
                [&] { return causal_rfa_step(q.squeeze(1), k.squeeze(1), in.v.squeeze(1), identity(), memory.memory, kNoFloor); })
                .out};
  }
};

}  // namespace

const TensorEstimator& mean_tensors() {
  static const MeanTensors one;
  return one;
}

}  // namespace raffia::internal::ops
