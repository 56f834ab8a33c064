// Feature maps, as in the table of features.h.
#include <algorithm>
#include <cmath>

#include "raffia/reference.h"
#include "reference/rows.h"

namespace raffia::reference {

using namespace internal;
using namespace internal::twins;

namespace {

bool has_unit_norm(MapKind kind) { return kind == MapKind::trig || kind == MapKind::arccos; }
bool has_exp(MapKind kind) { return kind == MapKind::positive || kind == MapKind::positive2; }

// x^ = x / max(|x|, 1e-6)
double divisor_of(std::span<const double> x) { return std::max(std::sqrt(dot(x, x)), 1e-6); }

// What W is applied to: x^, d^-1/4 x, or x itself.
std::vector<double> projected_input(const Map& map, std::span<const double> x) {
  std::vector<double> y(x.begin(), x.end());
  const double scale = has_unit_norm(map.kind) ? 1 / divisor_of(x) : has_exp(map.kind) ? std::pow(map.dim, -0.25) : 1;
  for (double& value : y) value *= scale;
  return y;
}

// Entry (i, j) of W = sigma o w~, or of A.
double weight(const Map& map, int64_t head, int64_t i, int64_t j) {
  const double draw = map.draws[static_cast<size_t>((head * map.rows + i) * map.dim + j)];
  return map.sigma.empty() ? draw : map.sigma[static_cast<size_t>(head * map.dim + j)] * draw;
}

}  // namespace

Map::Map(const FeatureMap& map)
    : kind(map.kind()), dim(map.dim()), rows(map.rows()), features(map.features()), heads(map.heads()), eps(map.default_eps()) {
  for (int64_t h = 0; h < heads; ++h) {
    draws.insert(draws.end(), map.draws(h).begin(), map.draws(h).end());
    sigma.insert(sigma.end(), map.sigma(h).begin(), map.sigma(h).end());
    bias.insert(bias.end(), map.bias(h).begin(), map.bias(h).end());
  }
}

MapGradient::MapGradient(const Map& map)
    : sigma(map.sigma.size()), weight(map.kind == MapKind::relu ? map.draws.size() : 0), bias(map.bias.size()) {}

std::vector<double> phi(const Map& map, int64_t head, std::span<const double> x) {
  std::vector<double> features(static_cast<size_t>(map.features));
  if (map.kind == MapKind::identity) return {x.begin(), x.end()};
  if (map.kind == MapKind::elu) {
    for (size_t j = 0; j < x.size(); ++j) features[j] = x[j] > 0 ? x[j] + 1 : std::exp(x[j]);
    return features;
  }

  const std::vector<double> y = projected_input(map, x);
  const double norm = 1 / std::sqrt(static_cast<double>(map.rows));  // D^-1/2
  const double exponent = -dot(y, y) / 2;
  for (int64_t i = 0; i < map.rows; ++i) {
    double projection = 0;  // (W y)_i
    for (int64_t j = 0; j < map.dim; ++j) projection += weight(map, head, i, j) * y[static_cast<size_t>(j)];
    const size_t first = static_cast<size_t>(i), second = static_cast<size_t>(map.rows + i);
    switch (map.kind) {
      case MapKind::trig:
        features[first] = norm * std::sin(projection);
        features[second] = norm * std::cos(projection);
        break;
      case MapKind::arccos:
        features[first] = norm * std::max(projection, 0.0);
        break;
      case MapKind::positive:
        features[first] = norm * std::exp(projection + exponent);
        break;
      case MapKind::positive2:
        features[first] = norm / std::sqrt(2) * std::exp(projection + exponent);
        features[second] = norm / std::sqrt(2) * std::exp(-projection + exponent);
        break;
      case MapKind::relu:
        features[first] = std::max(projection + map.bias[static_cast<size_t>(head * map.features + i)], 0.0);
        break;
      case MapKind::identity:
      case MapKind::elu:
        break;
    }
  }
  return features;
}

void phi_backward(const Map& map, int64_t head, std::span<const double> x, std::span<const double> dphi, std::span<double> dx,
                  MapGradient* parameters) {
  if (map.kind == MapKind::identity) {
    std::copy_n(dphi.begin(), dx.size(), dx.begin());
    return;
  }
  const std::vector<double> features = phi(map, head, x);
  if (map.kind == MapKind::elu) {
    for (size_t j = 0; j < dx.size(); ++j) dx[j] = x[j] > 0 ? dphi[j] : dphi[j] * features[j];
    return;
  }

  const std::vector<double> y = projected_input(map, x);
  const double norm = 1 / std::sqrt(static_cast<double>(map.rows));
  std::vector<double> dy(y.size());
  for (int64_t i = 0; i < map.rows; ++i) {
    const size_t first = static_cast<size_t>(i), second = static_cast<size_t>(map.rows + i);
    double dprojection = 0;  // of (W y)_i
    double dexponent = 0;    // of -|y|^2/2
    switch (map.kind) {
      case MapKind::trig:
        dprojection = dphi[first] * features[second] - dphi[second] * features[first];
        break;
      case MapKind::arccos:
        dprojection = features[first] > 0 ? norm * dphi[first] : 0;
        break;
      case MapKind::positive:
        dprojection = dexponent = dphi[first] * features[first];
        break;
      case MapKind::positive2:
        dprojection = dphi[first] * features[first] - dphi[second] * features[second];
        dexponent = dphi[first] * features[first] + dphi[second] * features[second];
        break;
      case MapKind::relu:
        dprojection = features[first] > 0 ? dphi[first] : 0;
        if (parameters != nullptr) parameters->bias[static_cast<size_t>(head * map.features + i)] += dprojection;
        break;
      case MapKind::identity:
      case MapKind::elu:
        break;
    }
    for (int64_t j = 0; j < map.dim; ++j) {
      const size_t at = static_cast<size_t>(j);
      const size_t entry = static_cast<size_t>((head * map.rows + i) * map.dim + j);
      dy[at] += dprojection * weight(map, head, i, j) - dexponent * y[at];
      if (parameters == nullptr) continue;
      if (map.kind == MapKind::relu) {
        parameters->weight[entry] += dprojection * y[at];
      } else {
        parameters->sigma[static_cast<size_t>(head * map.dim + j)] += dprojection * map.draws[entry] * y[at];
      }
    }
  }

  if (dx.empty()) return;
  if (has_unit_norm(map.kind)) {
    // dx = (dx^ - x^ (x^ . dx^)) / |x|; where |x| < 1e-6 the divisor is constant
    const double divisor = divisor_of(x);
    const double along = divisor > 1e-6 ? dot(y, dy) : 0;
    for (size_t j = 0; j < dx.size(); ++j) dx[j] = (dy[j] - y[j] * along) / divisor;
  } else {
    const double scale = has_exp(map.kind) ? std::pow(map.dim, -0.25) : 1;
    for (size_t j = 0; j < dx.size(); ++j) dx[j] = scale * dy[j];
  }
}

void apply_features(View4 x, const Map& map, MutView4 features) {
  const int64_t group = x.extent(2) / map.heads;
  for (int64_t b = 0; b < x.extent(0); ++b) {
    for (int64_t t = 0; t < x.extent(1); ++t) {
      for (int64_t h = 0; h < x.extent(2); ++h) store_row(phi(map, h / group, row(x, b, t, h)), features, b, t, h);
    }
  }
}

void apply_features_backward(View4 x, const Map& map, View4 dphi, MutView4 dx, MapGradient* parameters) {
  const int64_t group = x.extent(2) / map.heads;
  std::vector<double> dx_row(static_cast<size_t>(map.dim));
  for (int64_t b = 0; b < x.extent(0); ++b) {
    for (int64_t t = 0; t < x.extent(1); ++t) {
      for (int64_t h = 0; h < x.extent(2); ++h) {
        phi_backward(map, h / group, row(x, b, t, h), row(dphi, b, t, h), dx_row, parameters);
        if (!dx.absent()) store_row(dx_row, dx, b, t, h);
      }
    }
  }
}

}  // namespace raffia::reference
