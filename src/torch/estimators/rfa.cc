// Attention in linear time by random features: plain and gated.
#include "estimators/rfa/options.h"
#include "torch/estimators/registry.h"

namespace raffia::internal::ops {
namespace {

class RfaTensors : public TensorEstimator {
 public:
  Attended attend(const Estimator& estimator, const AttendTensors& in, bool causal) const override {
    if (estimator.log) return {lara(in.q, in.k, in.v, log_rfa_options(estimator), in.valid)};
    if (!causal) {
      const Read read = rfa(in.q, in.k, in.v, in.map, in.valid);
      return {read.out, read.report};
    }
    const Carried carried = causal_rfa(in.q, in.k, in.v, in.map, {}, in.valid);
    return {carried.out, carried.report};
  }

  Attended extend(const Estimator&, const AttendTensors& in, TensorMemory& memory) const override {
    return carry(
        in, memory, [&](const Tensor& past) { return causal_rfa(in.q, in.k, in.v, in.map, past, in.valid); },
        [&] { return causal_rfa_step(in.q.squeeze(1), in.k.squeeze(1), in.v.squeeze(1), in.map, memory.memory); });
  }
};

class RfaGateTensors : public TensorEstimator {
 public:
  Attended attend(const Estimator&, const AttendTensors& in, bool) const override {
    const Carried carried = rfa_gate(in.q, in.k, in.v, in.gate_logits, in.map, {}, in.valid);
    return {carried.out, carried.report};
  }

  Attended extend(const Estimator&, const AttendTensors& in, TensorMemory& memory) const override {
    return carry(
        in, memory, [&](const Tensor& past) { return rfa_gate(in.q, in.k, in.v, in.gate_logits, in.map, past, in.valid); },
        [&] {
          return rfa_gate_step(in.q.squeeze(1), in.k.squeeze(1), in.v.squeeze(1), in.gate_logits.squeeze(1), in.map,
                               memory.memory);
        });
  }
};

}  // namespace

const TensorEstimator& rfa_tensors() {
  static const RfaTensors one;
  return one;
}
const TensorEstimator& rfa_gate_tensors() {
  static const RfaGateTensors one;
  return one;
}

}  // namespace raffia::internal::ops
