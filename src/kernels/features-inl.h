// Feature maps of one chunk, tokens on the lanes: x^T [d, 16] -> phi^T [F, 16].
//
// With tokens on the lanes a row of W is the broadcast operand and a chunk is one panel, so that norms, gates and denominators
// need no sum across lanes, and phi^T is already the panel that the attention kernel multiplies by.

#if defined(RAFFIA_KERNELS_FEATURES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_FEATURES_INL_H_
#undef RAFFIA_KERNELS_FEATURES_INL_H_
#else
#define RAFFIA_KERNELS_FEATURES_INL_H_
#endif

#include <cmath>

#include "kernels/linear.h"
#include "kernels/math-inl.h"
#include "kernels/panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Calls body(j) for each vector of a row of 16 floats; j is the offset of its first lane.
template <class Body>
HWY_INLINE void for_lanes(const Body& body) {
  for (size_t j = 0; j < kPanel; j += kLanes) body(j);
}

// sum_r x[r][lane]^2 for [rows, 16].
HWY_INLINE Vec squared_norm(const float* x, size_t rows, size_t lane) {
  const Tag d;
  Vec even = hn::Zero(d), odd = hn::Zero(d);
  size_t r = 0;
  for (; r + 2 <= rows; r += 2) {
    const Vec a = hn::LoadU(d, x + r * kPanel + lane), b = hn::LoadU(d, x + (r + 1) * kPanel + lane);
    even = hn::MulAdd(a, a, even);
    odd = hn::MulAdd(b, b, odd);
  }
  if (r < rows) {
    const Vec a = hn::LoadU(d, x + r * kPanel + lane);
    even = hn::MulAdd(a, a, even);
  }
  return hn::Add(even, odd);
}

// sum_r a[r][lane] b[r][lane] for [rows, 16].
HWY_INLINE Vec column_dots(const float* a, const float* b, size_t rows, size_t lane) {
  const Tag d;
  Vec even = hn::Zero(d), odd = hn::Zero(d);
  size_t r = 0;
  for (; r + 2 <= rows; r += 2) {
    even = hn::MulAdd(hn::LoadU(d, a + r * kPanel + lane), hn::LoadU(d, b + r * kPanel + lane), even);
    odd = hn::MulAdd(hn::LoadU(d, a + (r + 1) * kPanel + lane), hn::LoadU(d, b + (r + 1) * kPanel + lane), odd);
  }
  if (r < rows) even = hn::MulAdd(hn::LoadU(d, a + r * kPanel + lane), hn::LoadU(d, b + r * kPanel + lane), even);
  return hn::Add(even, odd);
}

// x[r][lane] *= factor for [rows, 16].
HWY_INLINE void scale_columns(float* x, size_t rows, size_t lane, Vec factor) {
  const Tag d;
  for (size_t r = 0; r < rows; ++r) {
    float* p = x + r * kPanel + lane;
    hn::StoreU(hn::Mul(hn::LoadU(d, p), factor), d, p);
  }
}

// out [rows, 16] = W [rows, d] x [d, 16] for N panels of tokens, `x_apart` and `out_apart` floats from the first one.
template <size_t N>
HWY_NOINLINE void project(const float* weights, size_t rows, size_t dim, const float* x, size_t x_apart, float* out,
                          size_t out_apart) {
  for_tiles<N>(rows, [&](size_t m, auto shape) HWY_ATTR {
    auto tile = shape.wide_zero();
    tile.multiply(dim, weights + m * dim, dim, UnitStride(), x, x_apart, kPanel);
    tile.store(out + m * kPanel, out_apart, kPanel);
  });
}

constexpr bool has_projection(MapKind kind) { return kind != MapKind::identity && kind != MapKind::elu; }
constexpr bool has_unit_norm(MapKind kind) { return kind == MapKind::trig || kind == MapKind::arccos; }

// One panel of tokens on its way through a map.
struct MapPanel {
  float* x;             // [d, 16]: x^T, left normalised or scaled as the map wants it (x^ or y in raffia/features.h)
  float* inverse_norm;  // [16]: beside x what the backward pass needs
  float* phi;           // [F, 16]: receives the features
};

HWY_INLINE void prepare_panel(const MapParams& map, const MapPanel& panel) {
  const Tag d;
  if (has_unit_norm(map.kind)) {
    for_lanes([&](size_t lane) HWY_ATTR {
      const Vec norm = hn::Sqrt(squared_norm(panel.x, map.dim, lane));
      const Vec inverse = hn::Div(hn::Set(d, 1.0f), hn::Max(norm, hn::Set(d, 1e-6f)));
      hn::StoreU(inverse, d, panel.inverse_norm + lane);
      scale_columns(panel.x, map.dim, lane, inverse);
    });
  } else if (map.input_scale != 1.0f) {
    for_lanes([&](size_t lane) HWY_ATTR { scale_columns(panel.x, map.dim, lane, hn::Set(d, map.input_scale)); });
  }
}

// Where in phi W x is left for map_projection.
HWY_INLINE float* projection_of(const MapParams& map, float* phi) {
  return map.kind == MapKind::trig ? phi + map.rows * kPanel : phi;
}

// The features of a prepared x and its projection.
inline HWY_NOINLINE void map_projection(const MapParams& map, const float* HWY_RESTRICT x, float* HWY_RESTRICT phi) {
  const Tag d;
  const Vec scale = hn::Set(d, map.output_scale);
  const size_t rows = map.rows;
  switch (map.kind) {
    case MapKind::identity:
      for (size_t i = 0; i < map.dim * kPanel; i += kLanes) hn::StoreU(hn::LoadU(d, x + i), d, phi + i);
      break;
    case MapKind::elu:  // elu(x) + 1 = e^x below 0, x + 1 above
      for (size_t i = 0; i < map.dim * kPanel; i += kLanes) {
        const Vec v = hn::LoadU(d, x + i), zero = hn::Zero(d);
        hn::StoreU(hn::Add(exp_of_nonpositive(d, at_most(d, zero, v)), at_least(d, zero, v)), d, phi + i);
      }
      break;
    case MapKind::trig: {
      float* cosines = phi + rows * kPanel;
      for (size_t i = 0; i < rows * kPanel; i += kLanes) {
        Vec s, c;
        sin_cos(d, hn::LoadU(d, cosines + i), s, c);
        hn::StoreU(hn::Mul(s, scale), d, phi + i);
        hn::StoreU(hn::Mul(c, scale), d, cosines + i);
      }
      break;
    }
    case MapKind::arccos:
      for (size_t i = 0; i < rows * kPanel; i += kLanes) {
        hn::StoreU(hn::Mul(scale, at_least(d, hn::Zero(d), hn::LoadU(d, phi + i))), d, phi + i);
      }
      break;
    case MapKind::relu:
      for (size_t r = 0; r < rows; ++r) {
        for_lanes([&](size_t lane) HWY_ATTR {
          float* p = phi + r * kPanel + lane;
          hn::StoreU(at_least(d, hn::Zero(d), hn::Add(hn::LoadU(d, p), hn::Set(d, map.bias[r]))), d, p);
        });
      }
      break;
    case MapKind::positive:
    case MapKind::positive2: {
      for_lanes([&](size_t lane) HWY_ATTR {
        // log of the output scale goes into the exponent
        const Vec offset =
            hn::NegMulAdd(squared_norm(x, map.dim, lane), hn::Set(d, 0.5f), hn::Set(d, std::log(map.output_scale)));
        for (size_t r = 0; r < rows; ++r) {
          float* p = phi + r * kPanel + lane;
          const Vec projected = hn::LoadU(d, p);
          hn::StoreU(exp_of(d, hn::Add(offset, projected)), d, p);
          if (map.kind == MapKind::positive2) hn::StoreU(exp_of(d, hn::Sub(offset, projected)), d, p + rows * kPanel);
        }
      });
      break;
    }
  }
}

inline HWY_NOINLINE void map_features(const MapParams& map, const MapPanel& panel) {
  prepare_panel(map, panel);
  if (has_projection(map.kind)) {
    project<1>(map.weights, map.rows, map.dim, panel.x, 0, projection_of(map, panel.phi), 0);
  }
  map_projection(map, panel.x, panel.phi);
}

// Two panels through the same map, `second` behind `first` in memory: where tiles of two panels pay, W is read once for both.
inline HWY_NOINLINE void map_two(const MapParams& map, const MapPanel& first, const MapPanel& second) {
  if (!kHasPairs || !has_projection(map.kind)) {
    map_features(map, first);
    map_features(map, second);
    return;
  }
  prepare_panel(map, first);
  prepare_panel(map, second);
  project<kHasPairs ? 2 : 1>(map.weights, map.rows, map.dim, first.x, static_cast<size_t>(second.x - first.x),
                             projection_of(map, first.phi), static_cast<size_t>(second.phi - first.phi));
  map_projection(map, first.x, first.phi);
  map_projection(map, second.x, second.phi);
}

// `x`, `inverse_norm` and `phi` as map_features left them (MapPanel); `dphi` [F, 16] is used up. `dx` [d, 16] receives the
// gradient of the chunk's rows; parameter gradients are added to `sums`.
inline HWY_NOINLINE void map_features_backward(const MapParams& map, const float* HWY_RESTRICT x,
                                               const float* HWY_RESTRICT inverse_norm, const float* HWY_RESTRICT phi,
                                               float* HWY_RESTRICT dphi, const MapSums& sums, float* HWY_RESTRICT packed_x,
                                               float* HWY_RESTRICT dx) {
  const Tag d;
  const size_t rows = map.rows, dim = map.dim;
  if (map.kind == MapKind::identity) {
    for (size_t i = 0; i < dim * kPanel; i += kLanes) hn::StoreU(hn::LoadU(d, dphi + i), d, dx + i);
    return;
  }
  if (map.kind == MapKind::elu) {  // slope e^x = phi below 0, 1 above
    for (size_t i = 0; i < dim * kPanel; i += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, dphi + i), hn::Min(hn::LoadU(d, phi + i), hn::Set(d, 1.0f))), d, dx + i);
    }
    return;
  }

  // Through the nonlinearity: dphi [F, 16] becomes the gradient of the projection in its first D rows.
  alignas(64) float weight_sum[kPanel];  // sum_f dphi_f phi_f of the positive maps
  switch (map.kind) {
    case MapKind::trig:
      for (size_t i = 0; i < rows * kPanel; i += kLanes) {
        const size_t c = rows * kPanel + i;
        const Vec through_sin = hn::Mul(hn::LoadU(d, dphi + i), hn::LoadU(d, phi + c));
        hn::StoreU(hn::NegMulAdd(hn::LoadU(d, dphi + c), hn::LoadU(d, phi + i), through_sin), d, dphi + i);
      }
      break;
    case MapKind::arccos:
    case MapKind::relu:
      for (size_t i = 0; i < rows * kPanel; i += kLanes) {
        const auto active = hn::Gt(hn::LoadU(d, phi + i), hn::Zero(d));
        hn::StoreU(hn::IfThenElseZero(active, hn::Mul(hn::Set(d, map.output_scale), hn::LoadU(d, dphi + i))), d, dphi + i);
      }
      break;
    case MapKind::positive:
    case MapKind::positive2:
      for_lanes([&](size_t lane) HWY_ATTR { hn::StoreU(column_dots(dphi, phi, map.features, lane), d, weight_sum + lane); });
      for (size_t i = 0; i < rows * kPanel; i += kLanes) {
        const Vec up = hn::Mul(hn::LoadU(d, dphi + i), hn::LoadU(d, phi + i));
        if (map.kind == MapKind::positive) {
          hn::StoreU(up, d, dphi + i);
        } else {
          const size_t mirrored = rows * kPanel + i;
          hn::StoreU(hn::NegMulAdd(hn::LoadU(d, dphi + mirrored), hn::LoadU(d, phi + mirrored), up), d, dphi + i);
        }
      }
      break;
    case MapKind::identity:
    case MapKind::elu:
      break;
  }

  // Back through the projection: dx [d, 16] = draws^T dproj, sigma not yet applied.
  for_tiles(dim, [&](size_t m, auto shape) HWY_ATTR {
    auto tile = shape.zero();
    tile.multiply(rows, map.draws + m, UnitStride(), dim, dphi, kPanel);
    tile.store(dx + m * kPanel, kPanel);
  });

  if (map.kind == MapKind::relu) {
    if (sums.bias != nullptr) {
      for (size_t i = 0; i < rows * kPanel; i += kLanes) {
        hn::StoreU(hn::Add(hn::LoadU(d, sums.bias + i), hn::LoadU(d, dphi + i)), d, sums.bias + i);
      }
    }
    if (sums.weight != nullptr) {  // dA [F, d] += dpre [F, 16] x [16, d]
      for (size_t p = 0; p * kPanel < dim; ++p) {
        // The panel x[t][16 p ..] is the transpose of rows 16 p .. of x^T.
        const size_t columns = HWY_MIN(kPanel, dim - p * kPanel);
        for (size_t t = 0; t < kPanel; ++t) {
          for (size_t c = 0; c < kPanel; ++c) packed_x[t * kPanel + c] = c < columns ? x[(p * kPanel + c) * kPanel + t] : 0.0f;
        }
        float* panel = sums.weight + p * rows * kPanel;
        for_tiles(rows, [&](size_t m, auto shape) HWY_ATTR {
          auto tile = shape.load(panel + m * kPanel, kPanel);
          tile.multiply(kPanel, dphi + m * kPanel, PanelStride(), UnitStride(), packed_x, kPanel);
          tile.store(panel + m * kPanel, kPanel);
        });
      }
    }
    return;
  }

  for_lanes([&](size_t lane) HWY_ATTR {
    // dsigma_j = sum_t x_tj (draws^T dproj)_tj;  dx^ = sigma o that
    Vec along = hn::Zero(d), along_odd = along;  // two chains hide the latency of FMA
    const auto scale_row = [&](size_t j, Vec& sum) HWY_ATTR {
      const Vec g = hn::LoadU(d, dx + j * kPanel + lane), input = hn::LoadU(d, x + j * kPanel + lane);
      if (sums.sigma != nullptr) {
        float* p = sums.sigma + j * kPanel + lane;
        hn::StoreU(hn::MulAdd(input, g, hn::LoadU(d, p)), d, p);
      }
      const Vec scaled = hn::Mul(g, hn::Set(d, map.sigma[j]));
      sum = hn::MulAdd(scaled, input, sum);
      hn::StoreU(scaled, d, dx + j * kPanel + lane);
    };
    size_t j = 0;
    for (; j + 2 <= dim; j += 2) {
      scale_row(j, along);
      scale_row(j + 1, along_odd);
    }
    if (j < dim) scale_row(j, along);
    along = hn::Add(along, along_odd);
    if (has_unit_norm(map.kind)) {
      // dx = (dx^ - x^ (x^ . dx^)) / |x|; where |x| < 1e-6 the divisor is constant
      const Vec inverse = hn::LoadU(d, inverse_norm + lane);
      const Vec radial = hn::IfThenElseZero(hn::Lt(inverse, hn::Set(d, 0.999e6f)), along);
      for (j = 0; j < dim; ++j) {
        float* p = dx + j * kPanel + lane;
        const Vec tangent = hn::NegMulAdd(hn::LoadU(d, x + j * kPanel + lane), radial, hn::LoadU(d, p));
        hn::StoreU(hn::Mul(tangent, inverse), d, p);
      }
    } else {  // y = s x: dx = s (dy - y sum_f dphi_f phi_f)
      const Vec scale = hn::Set(d, map.input_scale), weight = hn::LoadU(d, weight_sum + lane);
      for (j = 0; j < dim; ++j) {
        float* p = dx + j * kPanel + lane;
        hn::StoreU(hn::Mul(scale, hn::NegMulAdd(hn::LoadU(d, x + j * kPanel + lane), weight, hn::LoadU(d, p))), d, p);
      }
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
