#include "estimators/shared/map_sums.h"

#include <numeric>

#include "core/check.h"

namespace raffia::internal {
namespace {

size_t panels_of(int64_t dim) { return (static_cast<size_t>(dim) + kChunk - 1) / kChunk; }

}  // namespace

MapSumSlots::MapSumSlots(const char* function, const FeatureMap& map, const MapGradients& wanted, size_t tasks)
    : map_(map), wanted_(wanted) {
  const bool relu = map.kind() == MapKind::relu;
  require(wanted.sigma.absent() || map.is_random(), "{}: a gradient of sigma is requested, but the map is {} and has no sigma",
          function, name_of(map.kind()));
  require((wanted.weight.absent() && wanted.bias.absent()) || relu,
          "{}: a gradient of weight or bias is requested, but the map is {} and has neither", function, name_of(map.kind()));
  if (!wanted.sigma.absent()) {
    require_dtype(function, "gradients.map.sigma", wanted.sigma, {DType::f32});
    require_shape(function, "gradients.map.sigma", wanted.sigma, {map.heads(), map.dim()}, "heads and dim of the feature map");
  }
  if (!wanted.weight.absent()) {
    require_dtype(function, "gradients.map.weight", wanted.weight, {DType::f32});
    require_shape(function, "gradients.map.weight", wanted.weight, {map.heads(), map.features(), map.dim()},
                  "heads, features and dim of the feature map");
  }
  if (!wanted.bias.absent()) {
    require_dtype(function, "gradients.map.bias", wanted.bias, {DType::f32});
    require_shape(function, "gradients.map.bias", wanted.bias, {map.heads(), map.features()},
                  "heads and features of the feature map");
  }
  const size_t features = static_cast<size_t>(map.features());
  sigma_floats_ = wanted.sigma.absent() ? 0 : static_cast<size_t>(map.dim()) * kChunk;
  weight_floats_ = wanted.weight.absent() ? 0 : panels_of(map.dim()) * features * kChunk;
  bias_floats_ = wanted.bias.absent() ? 0 : features * kChunk;
  floats_.assign(tasks * (sigma_floats_ + weight_floats_ + bias_floats_), 0.0f);
}

MapSums MapSumSlots::of(size_t task) {
  float* at = floats_.data() + task * (sigma_floats_ + weight_floats_ + bias_floats_);
  MapSums sums;
  if (sigma_floats_ > 0) sums.sigma = at;
  if (weight_floats_ > 0) sums.weight = at + sigma_floats_;
  if (bias_floats_ > 0) sums.bias = at + sigma_floats_ + weight_floats_;
  return sums;
}

void MapSumSlots::add(size_t task, int64_t head) {
  const MapSums sums = of(task);
  const auto lanes = [](const float* row) { return std::accumulate(row, row + kChunk, 0.0); };
  if (sums.sigma != nullptr) {
    for (int64_t j = 0; j < map_.dim(); ++j) {
      wanted_.sigma.set(wanted_.sigma(head, j) + lanes(sums.sigma + j * static_cast<int64_t>(kChunk)), head, j);
    }
  }
  if (sums.bias != nullptr) {
    for (int64_t f = 0; f < map_.features(); ++f) {
      wanted_.bias.set(wanted_.bias(head, f) + lanes(sums.bias + f * static_cast<int64_t>(kChunk)), head, f);
    }
  }
  if (sums.weight != nullptr) {
    const int64_t chunk = static_cast<int64_t>(kChunk);
    for (int64_t f = 0; f < map_.features(); ++f) {
      for (int64_t j = 0; j < map_.dim(); ++j) {
        const float sum = sums.weight[(j / chunk * map_.features() + f) * chunk + j % chunk];
        wanted_.weight.set(wanted_.weight(head, f, j) + static_cast<double>(sum), head, f, j);
      }
    }
  }
}

}  // namespace raffia::internal
