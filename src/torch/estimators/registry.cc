#include "torch/estimators/registry.h"

#include "core/check.h"

namespace raffia::internal::ops {

// Each is defined in the file of its kind, and has its row in tensors_of().
const TensorEstimator& exact_tensors();  // softmax, window
const TensorEstimator& rfa_tensors();
const TensorEstimator& rfa_gate_tensors();
const TensorEstimator& hybrid_tensors();
const TensorEstimator& ra_tensors();
const TensorEstimator& lara_tensors();
const TensorEstimator& eva_tensors();
const TensorEstimator& mean_tensors();

const TensorEstimator& tensors_of(EstimatorKind kind) {
  // In the order of EstimatorKind.
  static const TensorEstimator* const all[] = {&exact_tensors(),    &exact_tensors(),  &rfa_tensors(),
                                               &rfa_gate_tensors(), &hybrid_tensors(), &ra_tensors(),
                                               &lara_tensors(),     &eva_tensors(),    &mean_tensors()};
  require(static_cast<size_t>(kind) < std::size(all), "Attention: kind is {}, expected one of the estimators",
          static_cast<int>(kind));
  return *all[static_cast<size_t>(kind)];
}

bool is_step(const Tensor& q) { return q.size(1) == 1 && !at::GradMode::is_enabled() && q.scalar_type() != at::kDouble; }

Keys with_past(const AttendTensors& in, const TensorMemory& memory) {
  if (!memory.keys.defined()) return {in.k, in.v, 0};
  return {at::cat({memory.keys.to(in.k.scalar_type()), in.k}, 1), at::cat({memory.values.to(in.v.scalar_type()), in.v}, 1),
          memory.keys.size(1)};
}

}  // namespace raffia::internal::ops
