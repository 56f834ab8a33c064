// EVA, bidirectional and causal.
#include "estimators/eva/options.h"
#include "torch/estimators/registry.h"

namespace raffia::internal::ops {
namespace {

class EvaTensors : public TensorEstimator {
 public:
  Attended attend(const Estimator& estimator, const AttendTensors& in, bool causal) const override {
    if (!causal) return {eva(in.q, in.k, in.v, eva_options(estimator), in.valid)};
    return {causal_eva(in.q, in.k, in.v, {}, causal_eva_options(estimator), in.valid).out};
  }

  Attended extend(const Estimator& estimator, const AttendTensors& in, TensorMemory& memory) const override {
    const CausalEvaOptions options = causal_eva_options(estimator);
    return {carry(
                in, memory, [&](const Tensor& past) { return causal_eva(in.q, in.k, in.v, past, options, in.valid); },
                [&] { return causal_eva_step(in.q.squeeze(1), in.k.squeeze(1), in.v.squeeze(1), memory.memory, options); })
                .out};
  }
};

}  // namespace

const TensorEstimator& eva_tensors() {
  static const EvaTensors one;
  return one;
}

}  // namespace raffia::internal::ops
