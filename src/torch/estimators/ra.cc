// Randomized Attention. A causal call with a memory costs as much as attention over all of the past.
#include "estimators/ra/options.h"
#include "torch/estimators/registry.h"

namespace raffia::internal::ops {
namespace {

class RaTensors : public TensorEstimator {
 public:
  Attended attend(const Estimator& estimator, const AttendTensors& in, bool causal) const override {
    return {ra(in.q, in.k, in.v, ra_options(estimator, causal), in.valid)};
  }

  // The draws of a query depend on its position in the sequence.
  Attended extend(const Estimator& estimator, const AttendTensors& in, TensorMemory& memory) const override {
    const RaOptions options = ra_options(estimator, true);
    const Keys all = with_past(in, memory);
    memory.keys = all.keys;
    memory.values = all.values;
    return {attend_behind(in.q, all.past, [&](const Tensor& q) { return ra(q, all.keys, all.values, options); })};
  }
};

}  // namespace

const TensorEstimator& ra_tensors() {
  static const RaTensors one;
  return one;
}

}  // namespace raffia::internal::ops
