// An exact window and a gated state of everything older.
#include "estimators/hybrid/options.h"
#include "torch/estimators/registry.h"

namespace raffia::internal::ops {
namespace {

HybridTensors inputs_of(const AttendTensors& in) {
  return {.q = in.q,
          .k = in.k,
          .v = in.v,
          .gate_logits = in.gate_logits,
          .log_scale = in.log_scale,
          .q_far = in.q_far,
          .k_far = in.k_far};
}

class HybridEstimator : public TensorEstimator {
 public:
  Attended attend(const Estimator& estimator, const AttendTensors& in, bool) const override {
    const Carried carried = hybrid(inputs_of(in), in.map, {}, hybrid_options(estimator), in.valid);
    return {carried.out, carried.report};
  }

  Attended extend(const Estimator& estimator, const AttendTensors& in, TensorMemory& memory) const override {
    const HybridOptions options = hybrid_options(estimator);
    return carry(
        in, memory, [&](const Tensor& past) { return hybrid(inputs_of(in), in.map, past, options, in.valid); },
        [&] {
          HybridTensors token = inputs_of(in);
          for (Tensor* x : {&token.q, &token.k, &token.v, &token.gate_logits, &token.q_far, &token.k_far}) {
            if (x->defined()) *x = x->squeeze(1);
          }
          return hybrid_step(token, in.map, memory.memory, options);
        });
  }
};

}  // namespace

const TensorEstimator& hybrid_tensors() {
  static const HybridEstimator one;
  return one;
}

}  // namespace raffia::internal::ops
