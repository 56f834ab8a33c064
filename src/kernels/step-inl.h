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
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A row where it lies, or converted into `staging`.
HWY_INLINE const float* row_pointer(const Rows& rows, size_t row, size_t count, float* staging) {
  if (rows.direct()) return rows.direct_row(row);
  for (size_t i = 0; i < count; ++i) staging[i] = rows.at(row, i);
  return staging;
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

// out_i [rows] = W [rows, dim] x_i for one vector or two: four rows of W at a time, in vectors of eight (sixteen are slower by 5%
// on Zen 5: rows are short, and their sums across lanes take longer).
template <size_t N, class D = hn::CappedTag<float, 8>>
HWY_NOINLINE void multiply_vectors(const float* weights, size_t rows, size_t dim, const float* const (&x)[N],
                                   float* const (&out)[N]) {
  size_t r = 0;
#if HWY_TARGET != HWY_SCALAR
  const D d;
  const hn::CappedTag<float, 4> d4;
  constexpr size_t kSide = hn::MaxLanes(D());
  const size_t whole = dim / kSide * kSide;
  for (; r + 4 <= rows; r += 4) {
    const float* w = weights + r * dim;
    auto a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    for (size_t i = 0; i < whole; i += kSide) {
      const auto u = hn::LoadU(d, x[0] + i), v = hn::LoadU(d, x[N - 1] + i);
      const auto w0 = hn::LoadU(d, w + i), w1 = hn::LoadU(d, w + dim + i);
      const auto w2 = hn::LoadU(d, w + 2 * dim + i), w3 = hn::LoadU(d, w + 3 * dim + i);
      a0 = hn::MulAdd(u, w0, a0);
      a1 = hn::MulAdd(u, w1, a1);
      a2 = hn::MulAdd(u, w2, a2);
      a3 = hn::MulAdd(u, w3, a3);
      if constexpr (N == 2) {
        b0 = hn::MulAdd(v, w0, b0);
        b1 = hn::MulAdd(v, w1, b1);
        b2 = hn::MulAdd(v, w2, b2);
        b3 = hn::MulAdd(v, w3, b3);
      }
    }
    hn::StoreU(sums_of_four(d, a0, a1, a2, a3), d4, out[0] + r);
    if constexpr (N == 2) hn::StoreU(sums_of_four(d, b0, b1, b2, b3), d4, out[1] + r);
    for (size_t n = 0; n < N; ++n) {
      for (size_t j = 0; j < 4; ++j) {
        for (size_t i = whole; i < dim; ++i) out[n][r + j] += w[j * dim + i] * x[n][i];
      }
    }
  }
#endif
  for (; r < rows; ++r) {
    for (size_t n = 0; n < N; ++n) out[n][r] = row_dot(weights + r * dim, x[n], dim);
  }
}

// x [d] as the map wants it before W: x^ or y of raffia/features.h.
HWY_INLINE void prepare_row(const MapParams& map, float* x) {
  float factor = map.input_scale;
  if (has_unit_norm(map.kind)) factor = 1.0f / std::max(std::sqrt(row_dot(x, x, map.dim)), 1e-6f);
  if (factor == 1.0f) return;
  for (size_t i = 0; i < map.dim; ++i) x[i] *= factor;
}

// phi [F] of one prepared row x [d] and its projection, which is used up; `projected` and `second` have room for D or d rounded
// up to a panel.
inline HWY_NOINLINE void map_row(const MapParams& map, const float* x, float* projected, float* second, float* phi) {
  const Tag d;
  const size_t rows = map.rows;
  if (has_projection(map.kind)) std::fill_n(projected + rows, (kPanel - rows % kPanel) % kPanel, 0.0f);
  const Vec scale = hn::Set(d, map.output_scale), zero = hn::Zero(d);
  switch (map.kind) {
    case MapKind::identity:
      return;  // the inputs are features already
    case MapKind::elu:
      std::copy_n(x, map.dim, projected);
      std::fill_n(projected + map.dim, (kPanel - map.dim % kPanel) % kPanel, 0.0f);
      for (size_t i = 0; i < map.dim; i += kLanes) {
        const Vec v = hn::LoadU(d, projected + i);
        hn::StoreU(hn::Add(exp_of_nonpositive(d, at_most(d, zero, v)), at_least(d, zero, v)), d, projected + i);
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
        hn::StoreU(hn::Mul(scale, at_least(d, zero, hn::LoadU(d, projected + i))), d, projected + i);
      }
      break;
    case MapKind::relu:
      for (size_t i = 0; i < rows; ++i) projected[i] = std::max(projected[i] + map.bias[i], 0.0f);
      break;
    case MapKind::positive:
    case MapKind::positive2: {
      const Vec offset = hn::Set(d, std::log(map.output_scale) - 0.5f * row_dot(x, x, map.dim));
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
template <size_t N, class D>
HWY_INLINE void step_columns(D d, size_t features, size_t ld, float keep, const float* phi_k, const float* phi_q, const float* v,
                             float* sums, float* y) {
  const auto g = hn::Set(d, keep);
  PanelRow<N, D> acc;
  acc.zero();
  for (size_t f = 0; f < features; ++f) {
    acc.update_and_add(sums + f * ld, v, g, hn::Set(d, phi_k[f]), hn::Set(d, phi_q[f]));
  }
  acc.store(y);
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
