// The single-token step of linear attention on a State's own layout.
//
//   S <- g S + (u phi(k)) v^T,   y = phi(q)^T S
//
// A row of S is loaded once, updated, stored and added to y, which stays in registers with 8 vectors of a row at a time: the
// state streams through L1 at the speed of L2, 3 operations per vector. There is one token only, so features lie on the lanes
// here.

#if defined(RAFFIA_KERNELS_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_STEP_INL_H_
#undef RAFFIA_KERNELS_STEP_INL_H_
#else
#define RAFFIA_KERNELS_STEP_INL_H_
#endif

#include <cmath>

#include "kernels/linear-inl.h"
#include "kernels/step.h"

HWY_BEFORE_NAMESPACE();
namespace raffia {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE void load_row(const Rows& rows, size_t row, size_t count, float* out) {
  if (rows.direct()) {
    std::copy_n(rows.direct_row(row), count, out);
  } else {
    for (size_t i = 0; i < count; ++i) out[i] = rows.at(row, i);
  }
}

HWY_INLINE float row_dot(const float* a, const float* b, size_t count) {
  const Tag d;
  Vec even = hn::Zero(d), odd = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
    odd = hn::MulAdd(hn::LoadU(d, a + i + kLanes), hn::LoadU(d, b + i + kLanes), odd);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// out [rows] = W [rows, dim] x: four rows at a time share the loads of x and the sum across lanes.
inline HWY_NOINLINE void multiply_vector(const float* weights, size_t rows, size_t dim, const float* x, float* out) {
  const Tag d;
  const size_t whole = dim / kLanes * kLanes;
  size_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const float* w = weights + r * dim;
    Vec s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    for (size_t i = 0; i < whole; i += kLanes) {
      const Vec v = hn::LoadU(d, x + i);
      s0 = hn::MulAdd(v, hn::LoadU(d, w + i), s0);
      s1 = hn::MulAdd(v, hn::LoadU(d, w + dim + i), s1);
      s2 = hn::MulAdd(v, hn::LoadU(d, w + 2 * dim + i), s2);
      s3 = hn::MulAdd(v, hn::LoadU(d, w + 3 * dim + i), s3);
    }
    out[r] = hn::GetLane(hn::SumOfLanes(d, s0));
    out[r + 1] = hn::GetLane(hn::SumOfLanes(d, s1));
    out[r + 2] = hn::GetLane(hn::SumOfLanes(d, s2));
    out[r + 3] = hn::GetLane(hn::SumOfLanes(d, s3));
    for (size_t j = 0; j < 4; ++j) {
      for (size_t i = whole; i < dim; ++i) out[r + j] += w[j * dim + i] * x[i];
    }
  }
  for (; r < rows; ++r) out[r] = row_dot(weights + r * dim, x, dim);
}

// phi [F] of one row x [d]. `x` is used up; `projected` and `second` have room for D rounded up to a panel.
inline HWY_NOINLINE void map_row(const MapParams& map, float* x, float* projected, float* second, float* phi) {
  const Tag d;
  const size_t rows = map.rows;
  if (has_unit_norm(map.kind)) {
    const float inverse = 1.0f / std::max(std::sqrt(row_dot(x, x, map.dim)), 1e-6f);
    for (size_t i = 0; i < map.dim; ++i) x[i] *= inverse;
  } else if (map.input_scale != 1.0f) {
    for (size_t i = 0; i < map.dim; ++i) x[i] *= map.input_scale;
  }
  if (has_projection(map.kind)) {
    multiply_vector(map.weights, rows, map.dim, x, projected);
    std::fill_n(projected + rows, (kPanel - rows % kPanel) % kPanel, 0.0f);
  }
  const Vec scale = hn::Set(d, map.output_scale), zero = hn::Zero(d);
  switch (map.kind) {
    case MapKind::identity:
      std::copy_n(x, map.dim, phi);
      return;
    case MapKind::elu:
      std::copy_n(x, map.dim, projected);
      std::fill_n(projected + map.dim, (kPanel - map.dim % kPanel) % kPanel, 0.0f);
      for (size_t i = 0; i < map.dim; i += kLanes) {
        const Vec v = hn::LoadU(d, projected + i);
        hn::StoreU(hn::Add(exp_of_nonpositive(d, hn::Min(v, zero)), hn::Max(v, zero)), d, projected + i);
      }
      break;
    case MapKind::trig:
      for (size_t i = 0; i < rows; i += kLanes) {
        Vec s, c;
        sin_cos(d, hn::LoadU(d, projected + i), s, c);
        hn::StoreU(hn::Mul(s, scale), d, projected + i);
        hn::StoreU(hn::Mul(c, scale), d, second + i);
      }
      break;
    case MapKind::arccos:
      for (size_t i = 0; i < rows; i += kLanes) {
        hn::StoreU(hn::Mul(scale, hn::Max(hn::LoadU(d, projected + i), zero)), d, projected + i);
      }
      break;
    case MapKind::relu:
      for (size_t i = 0; i < rows; ++i) projected[i] = std::max(projected[i] + map.bias[i], 0.0f);
      break;
    case MapKind::positive:
    case MapKind::positive2: {
      const Vec offset = hn::Set(d, std::log(map.output_scale) - map.shift - 0.5f * row_dot(x, x, map.dim));
      for (size_t i = 0; i < rows; i += kLanes) {
        const Vec p = hn::LoadU(d, projected + i);
        hn::StoreU(exp_of(d, hn::Add(offset, p)), d, projected + i);
        hn::StoreU(exp_of(d, hn::Sub(offset, p)), d, second + i);
      }
      break;
    }
  }
  const size_t first = std::min(map.features, std::max(rows, map.kind == MapKind::elu ? map.dim : 0));
  std::copy_n(projected, first, phi);
  std::copy_n(second, map.features - first, phi + first);
}

// N vectors of every row of S.
template <size_t N>
HWY_INLINE void step_columns(size_t features, size_t ld, float keep, const float* phi_k, const float* phi_q, const float* v,
                             float* sums, float* y) {
  const Tag d;
  const Vec g = hn::Set(d, keep);
  PanelRow<N> acc;
  acc.zero();
  for (size_t f = 0; f < features; ++f) {
    acc.update_and_add(sums + f * ld, v, g, hn::Set(d, phi_k[f]), hn::Set(d, phi_q[f]));
  }
  acc.store(y);
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia
HWY_AFTER_NAMESPACE();

#endif
