#include "raffia/features.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "core/check.h"

namespace raffia {

using namespace internal;
namespace {

constexpr MapKind kMapKinds[] = {MapKind::identity,  MapKind::trig, MapKind::arccos, MapKind::positive,
                                 MapKind::positive2, MapKind::elu,  MapKind::relu};

bool is_positive_kind(MapKind kind) { return kind == MapKind::positive || kind == MapKind::positive2; }

int64_t features_of(MapKind kind, int64_t count) {
  return kind == MapKind::trig || kind == MapKind::positive2 ? 2 * count : count;
}

// Part `head` of an array with one part for each of `heads`; empty if the array is.
std::span<const float> part(const std::vector<float>& all, int64_t head, int64_t heads, const char* function) {
  require(head >= 0 && head < heads, "FeatureMap::{}: head is {}, expected 0 to {}", function, head, heads - 1);
  const size_t size = all.size() / static_cast<size_t>(heads);
  return std::span(all).subspan(static_cast<size_t>(head) * size, size);
}

}  // namespace

bool is_random_map(MapKind kind) {
  return kind == MapKind::trig || kind == MapKind::arccos || kind == MapKind::positive || kind == MapKind::positive2;
}

std::string_view name_of(MapKind kind) {
  switch (kind) {
    case MapKind::identity:
      return "identity";
    case MapKind::trig:
      return "trig";
    case MapKind::arccos:
      return "arccos";
    case MapKind::positive:
      return "positive";
    case MapKind::positive2:
      return "positive2";
    case MapKind::elu:
      return "elu";
    case MapKind::relu:
      return "relu";
  }
  return "unknown";
}

MapKind parse_map_kind(std::string_view name) {
  std::string names;
  for (MapKind kind : kMapKinds) {
    if (name == name_of(kind)) return kind;
    if (!names.empty()) names += ", ";
    names += name_of(kind);
  }
  throw InvalidArgument(fmt::format("parse_map_kind: \"{}\" is not a feature map, expected one of {}", name, names));
}

FeatureMap::FeatureMap(MapKind kind, int64_t dim, int64_t rows, int64_t features, int64_t heads)
    : kind_(kind), dim_(dim), rows_(rows), features_(features), heads_(heads) {
  require(dim >= 1, "FeatureMap ({}): dim is {}, expected at least 1", name_of(kind), dim);
  require(features >= 1, "FeatureMap ({}): {} features, expected at least 1", name_of(kind), features);
  require(heads >= 1, "FeatureMap ({}): heads is {}, expected at least 1", name_of(kind), heads);
  require(checked_product({heads, std::max(features, dim), dim, static_cast<int64_t>(sizeof(float))}).has_value(),
          "FeatureMap ({}): {} heads of {} features of dim {} do not fit in memory", name_of(kind), heads, features, dim);
}

FeatureMap FeatureMap::identity(int64_t dim, int64_t heads) { return FeatureMap(MapKind::identity, dim, 0, dim, heads); }

FeatureMap FeatureMap::elu(int64_t dim, int64_t heads) { return FeatureMap(MapKind::elu, dim, 0, dim, heads); }

FeatureMap FeatureMap::trig(const RandomMapOptions& options) { return random(MapKind::trig, options); }

FeatureMap FeatureMap::arccos(const RandomMapOptions& options) { return random(MapKind::arccos, options); }

FeatureMap FeatureMap::positive(const RandomMapOptions& options) { return random(MapKind::positive, options); }

FeatureMap FeatureMap::positive2(const RandomMapOptions& options) { return random(MapKind::positive2, options); }

FeatureMap FeatureMap::random(MapKind kind, const RandomMapOptions& options) {
  require(is_random_map(kind), "FeatureMap::random: kind is {}, expected trig, arccos, positive or positive2", name_of(kind));
  require(options.count >= 1 && options.count <= INT64_MAX / 2,
          "FeatureMap::random: count is {}, expected at least 1 and at most 2^62", options.count);
  require(options.heads <= int64_t{UINT32_MAX} + 1, "FeatureMap::random: heads is {}, expected at most 2^32", options.heads);
  FeatureMap map(kind, options.dim, options.count, features_of(kind, options.count), options.heads);
  map.options_ = options;
  map.sigma_.assign(static_cast<size_t>(options.heads * options.dim), 1.0F);
  map.draws_.resize(static_cast<size_t>(options.heads * options.count * options.dim));
  map.redraw(options.draw);
  return map;
}

FeatureMap FeatureMap::with_draws(MapKind kind, View3 draws) {
  constexpr const char* kName = "FeatureMap::with_draws";
  require(is_random_map(kind), "{}: kind is {}, expected trig, arccos, positive or positive2", kName, name_of(kind));
  const auto [heads, rows, dim] = draws.shape();
  require_dtype(kName, "draws", draws, {DType::f32});
  require_shape(kName, "draws", draws, {heads, rows, dim}, "heads, random vectors, size of a key");
  FeatureMap map(kind, dim, rows, features_of(kind, rows), heads);
  map.own_draws_ = true;
  map.sigma_.assign(static_cast<size_t>(heads * dim), 1.0F);
  map.draws_.resize(static_cast<size_t>(draws.size()));
  const float* from = static_cast<const float*>(draws.data());
  float* to = map.draws_.data();
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < dim; ++i) *to++ = from[draws.offset(h, r, i)];
    }
  }
  map.apply_sigma();
  return map;
}

FeatureMap FeatureMap::relu(View3 weight, View2 bias) {
  const auto [heads, features, dim] = weight.shape();
  require_dtype("FeatureMap::relu", "weight", weight, {DType::f32, DType::bf16, DType::f64});
  require_dtype("FeatureMap::relu", "bias", bias, {DType::f32, DType::bf16, DType::f64});
  require_shape("FeatureMap::relu", "weight", weight, {heads, features, dim}, "heads, features, size of a key");
  require_shape("FeatureMap::relu", "bias", bias, {heads, features}, "heads and features of weight");
  FeatureMap map(MapKind::relu, dim, features, features, heads);
  map.weights_.reserve(static_cast<size_t>(weight.size()));
  map.bias_.reserve(static_cast<size_t>(bias.size()));
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t f = 0; f < features; ++f) {
      for (int64_t i = 0; i < dim; ++i) map.weights_.push_back(static_cast<float>(weight(h, f, i)));
      map.bias_.push_back(static_cast<float>(bias(h, f)));
    }
  }
  return map;
}

bool FeatureMap::is_random() const { return is_random_map(kind_); }

float FeatureMap::default_eps() const {
  // Signed or noisy sums, and those of relu, whose features of a query and all keys may have no entry in common.
  const bool can_vanish =
      kind_ == MapKind::identity || kind_ == MapKind::trig || kind_ == MapKind::arccos || kind_ == MapKind::relu;
  return can_vanish ? 1e-3F : 0.0F;
}

float FeatureMap::input_scale() const {
  return is_positive_kind(kind_) ? static_cast<float>(1.0 / std::sqrt(std::sqrt(static_cast<double>(dim_)))) : 1.0F;
}

float FeatureMap::output_scale() const {
  if (!is_random()) return 1.0F;
  const int64_t terms = kind_ == MapKind::positive2 ? 2 * rows_ : rows_;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(terms)));
}

std::span<const float> FeatureMap::draws(int64_t head) const {
  return part(kind_ == MapKind::relu ? weights_ : draws_, head, heads_, "draws");
}

std::span<const float> FeatureMap::weights(int64_t head) const { return part(weights_, head, heads_, "weights"); }

std::span<const float> FeatureMap::bias(int64_t head) const { return part(bias_, head, heads_, "bias"); }

std::span<const float> FeatureMap::sigma(int64_t head) const { return part(sigma_, head, heads_, "sigma"); }

void FeatureMap::set_sigma(std::span<const float> sigma) {
  require(is_random(), "FeatureMap::set_sigma: a map of kind {} has no sigma, expected a random one", name_of(kind_));
  require(sigma.size() == sigma_.size(), "FeatureMap::set_sigma: sigma has {} floats, expected {} x {} (heads, dim)",
          sigma.size(), heads_, dim_);
  std::copy(sigma.begin(), sigma.end(), sigma_.begin());
  apply_sigma();
}

void FeatureMap::redraw(uint32_t draw) {
  require(is_random(), "FeatureMap::redraw: a map of kind {} has no draws, expected a random one", name_of(kind_));
  require(!own_draws_, "FeatureMap::redraw: the draws of this map were given by the caller, expected a map with a seed");
  options_.draw = draw;
  const size_t per_head = static_cast<size_t>(rows_ * dim_);
  for (int64_t h = 0; h < heads_; ++h) {
    const StreamKey key{.seed = options_.seed, .layer = options_.layer, .head = static_cast<uint32_t>(h), .draw = draw};
    draw_projection(key, options_.draws, rows_, dim_, std::span(draws_).subspan(static_cast<size_t>(h) * per_head, per_head));
  }
  apply_sigma();
}

void FeatureMap::apply_sigma() {
  weights_.resize(draws_.size());
  const float* draw = draws_.data();
  float* weight = weights_.data();
  for (int64_t h = 0; h < heads_; ++h) {
    const float* sigma = sigma_.data() + h * dim_;
    for (int64_t r = 0; r < rows_; ++r, draw += dim_, weight += dim_) {
      for (int64_t i = 0; i < dim_; ++i) weight[i] = draw[i] * sigma[i];
    }
  }
}

}  // namespace raffia
