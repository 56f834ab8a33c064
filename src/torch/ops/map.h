// Feature maps as tensors, for the ops that have one.
#ifndef RAFFIA_TORCH_OPS_MAP_H_
#define RAFFIA_TORCH_OPS_MAP_H_

#include "raffia/features.h"
#include "raffia/reference.h"
#include "raffia/torch/ops.h"
#include "torch/ops/tensors.h"

namespace raffia::internal::ops {

// Throws InvalidArgument, which names `op`, unless the tensors form a map of `heads` heads for keys of size `dim`.
void require_map(const std::string& op, const Map& map, int64_t heads, int64_t dim);

int64_t features_of(const Map& map, int64_t dim);  // F

// From checked tensors; doubles are rounded.
FeatureMap make_map(const Map& map, int64_t heads, int64_t dim);

// The same in double.
reference::Map make_reference_map(const Map& map, int64_t heads, int64_t dim);

// Zero, fp32; undefined if not requested or if the map has no such parameter: draws are constants.
Map zero_gradient(const Map& map, bool weight, bool sigma, bool bias);

inline MapGradients views_of(const Map& gradient) {
  return {.sigma = mutable_view<2>(gradient.sigma),
          .weight = mutable_view<3>(gradient.weight),
          .bias = mutable_view<2>(gradient.bias)};
}

inline Map to_float(const Map& map) {
  return {.kind = map.kind, .weight = to_float(map.weight), .sigma = to_float(map.sigma), .bias = to_float(map.bias)};
}

}  // namespace raffia::internal::ops

#endif  // RAFFIA_TORCH_OPS_MAP_H_
