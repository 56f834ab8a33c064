// LARA, bidirectional and causal.
#include "estimators/lara/options.h"
#include "torch/estimators/registry.h"

namespace raffia::internal::ops {
namespace {

class LaraTensors : public TensorEstimator {
 public:
  Attended attend(const Estimator& estimator, const AttendTensors& in, bool causal) const override {
    if (!causal) return {lara(in.q, in.k, in.v, lara_options(estimator), in.valid)};
    return {causal_lara(in.q, in.k, in.v, {}, causal_lara_options(estimator), in.valid).out};
  }

  Attended extend(const Estimator& estimator, const AttendTensors& in, TensorMemory& memory) const override {
    const CausalLaraOptions options = causal_lara_options(estimator);
    return {carry(
                in, memory, [&](const Tensor& past) { return causal_lara(in.q, in.k, in.v, past, options, in.valid); },
                [&] { return causal_lara_step(in.q.squeeze(1), in.k.squeeze(1), in.v.squeeze(1), memory.memory, options); })
                .out};
  }
};

}  // namespace

const TensorEstimator& lara_tensors() {
  static const LaraTensors one;
  return one;
}

}  // namespace raffia::internal::ops
