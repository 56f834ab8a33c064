#include "torch/ops/map.h"

namespace raffia::internal::ops {
namespace {

bool is_random(MapKind kind) {
  return kind == MapKind::trig || kind == MapKind::arccos || kind == MapKind::positive || kind == MapKind::positive2;
}

void require_none(const std::string& op, const char* argument, const Tensor& tensor, MapKind kind) {
  require(!tensor.defined(), "{}: {} is given, but a map of kind {} does not use it", op, argument, name_of(kind));
}

std::vector<double> doubles_of(const Tensor& tensor) {
  const Tensor all = tensor.to(at::kDouble).contiguous();
  return {all.data_ptr<double>(), all.data_ptr<double>() + all.numel()};
}

}  // namespace

void require_map(const std::string& op, const Map& map, int64_t heads, int64_t dim) {
  if (!is_random(map.kind)) require_none(op, "sigma", map.sigma, map.kind);
  if (map.kind != MapKind::relu) require_none(op, "bias", map.bias, map.kind);
  if (!is_random(map.kind) && map.kind != MapKind::relu) return require_none(op, "weight", map.weight, map.kind);

  require_rank(op, "weight", map.weight, 3, "[G, rows, D]");
  require_type(op, "weight", map.weight, {at::kFloat, at::kDouble});
  const int64_t rows = map.weight.size(1);
  require_shape(op, "weight", map.weight, {heads, rows, dim}, "heads of k, rows of the map, dimensions of k");
  require(rows >= 1, "{}: weight has no rows, expected at least 1", op);
  if (map.sigma.defined()) {
    require_type(op, "sigma", map.sigma, {at::kFloat, at::kDouble});
    require_shape(op, "sigma", map.sigma, {heads, dim}, "heads and dimensions of k");
  }
  if (map.kind == MapKind::relu) {
    require_shape(op, "bias", map.bias, {heads, rows}, "heads of k, rows of weight");
    require_type(op, "bias", map.bias, {at::kFloat, at::kDouble});
  }
}

int64_t features_of(const Map& map, int64_t dim) {
  if (!map.weight.defined()) return dim;
  const bool twice = map.kind == MapKind::trig || map.kind == MapKind::positive2;
  return map.weight.size(1) * (twice ? 2 : 1);
}

FeatureMap make_map(const Map& map, int64_t heads, int64_t dim) {
  if (map.kind == MapKind::identity) return FeatureMap::identity(dim, heads);
  if (map.kind == MapKind::elu) return FeatureMap::elu(dim, heads);
  if (map.kind == MapKind::relu) return FeatureMap::relu(view<3>(map.weight), view<2>(map.bias));
  FeatureMap made = FeatureMap::with_draws(map.kind, view<3>(to_float(map.weight)));
  if (map.sigma.defined()) made.set_sigma(floats_of(to_float(map.sigma).contiguous()));
  return made;
}

reference::Map make_reference_map(const Map& map, int64_t heads, int64_t dim) {
  reference::Map made(make_map(map, heads, dim));
  if (map.weight.defined()) made.draws = doubles_of(map.weight);
  if (map.sigma.defined()) made.sigma = doubles_of(map.sigma);
  if (map.bias.defined()) made.bias = doubles_of(map.bias);
  return made;
}

Map zero_gradient(const Map& map, bool weight, bool sigma, bool bias) {
  const bool learned = map.kind == MapKind::relu;
  return {.kind = map.kind,
          .weight = zeros_if(weight && learned, map.weight),
          .sigma = zeros_if(sigma, map.sigma),
          .bias = zeros_if(bias && learned, map.bias)};
}

}  // namespace raffia::internal::ops
