// Vector code of layer_ops.h: one row at a time, lanes along the columns. The last vector of a row is masked, so that nothing
// past its end is read or written.

#if defined(RAFFIA_KERNELS_LAYER_OPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_LAYER_OPS_INL_H_
#undef RAFFIA_KERNELS_LAYER_OPS_INL_H_
#else
#define RAFFIA_KERNELS_LAYER_OPS_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "hwy/highway.h"
#include "kernels/math-inl.h"
#include "kernels/panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// y[i] = body(i, floats left) for a row.
template <class Body>
HWY_INLINE void map_columns(size_t columns, float* y, const Body& body) {
  for (size_t i = 0; i < columns; i += kLanes) store_some(body(i, columns - i), y + i, columns - i);
}

// The sum over a row of body(i, floats left), whose lanes past the end are 0. Two chains halve the wait for additions.
template <class Body>
HWY_INLINE float sum_columns(size_t columns, const Body& body) {
  const Tag d;
  Vec even = hn::Zero(d), odd = even;
  size_t i = 0;
  for (; i + kLanes < columns; i += 2 * kLanes) {
    even = hn::Add(even, body(i, columns - i));
    odd = hn::Add(odd, body(i + kLanes, columns - i - kLanes));
  }
  if (i < columns) even = hn::Add(even, body(i, columns - i));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

// What a row is normalised by: (x - mean) inverse. RMS norm: mean 0.
struct NormOfRow {
  float mean, inverse;
};

HWY_INLINE NormOfRow layer_norm_of(const float* x, float eps, size_t columns) {
  const Tag d;
  const float count = static_cast<float>(columns);
  const float mean_x = sum_columns(columns, [&](size_t i, size_t left) HWY_ATTR { return load_some(x + i, left); }) / count;
  const Vec mean = hn::Set(d, mean_x);
  const float variance = sum_columns(columns,
                                     [&](size_t i, size_t left) HWY_ATTR {
                                       const Vec apart = hn::Sub(load_some(x + i, left), mean);
                                       const Vec square = hn::Mul(apart, apart);
                                       return left >= kLanes ? square : hn::IfThenElseZero(hn::FirstN(d, left), square);
                                     }) /
                         count;
  return {mean_x, 1.0f / std::sqrt(variance + eps)};
}

HWY_INLINE NormOfRow rms_norm_of(const float* x, float eps, size_t columns) {
  const float squares = sum_columns(columns, [&](size_t i, size_t left) HWY_ATTR {
    const Vec v = load_some(x + i, left);
    return hn::Mul(v, v);
  });
  return {0, 1.0f / std::sqrt(squares / static_cast<float>(columns) + eps)};
}

HWY_INLINE void layer_norm_row(const float* x, const float* weight, const float* bias, float eps, size_t columns, float* y) {
  const Tag d;
  const NormOfRow norm = layer_norm_of(x, eps, columns);
  const Vec mean = hn::Set(d, norm.mean), inverse = hn::Set(d, norm.inverse);
  map_columns(columns, y, [&](size_t i, size_t left) HWY_ATTR {
    const Vec normal = hn::Mul(hn::Sub(load_some(x + i, left), mean), inverse);
    const Vec added = bias == nullptr ? hn::Zero(d) : load_some(bias + i, left);
    return hn::MulAdd(normal, load_some(weight + i, left), added);
  });
}

HWY_INLINE void rms_norm_row(const float* x, const float* weight, float eps, size_t columns, float* y) {
  const Vec inverse = hn::Set(Tag(), rms_norm_of(x, eps, columns).inverse);
  map_columns(columns, y, [&](size_t i, size_t left) HWY_ATTR {
    return hn::Mul(hn::Mul(load_some(x + i, left), inverse), load_some(weight + i, left));
  });
}

// Phi(-a) of the normal distribution for a in [0, kGeluLimit]: exp(-P(a)). P of degree 9 is within 2.8e-8 of -log Phi(-a) up to
// a = 1.2, and beyond within what the fall of a Phi(-a) allows.
constexpr float kGeluLimit = 6.5f;
template <class D, class V = hn::Vec<D>>
HWY_INLINE V normal_tail(D d, V a) {
  V p = hn::MulAdd(a, hn::Set(d, -2.176376823e-7f), hn::Set(d, 4.580574897e-6f));
  p = hn::MulAdd(p, a, hn::Set(d, -3.954939454e-5f));
  p = hn::MulAdd(p, a, hn::Set(d, 1.571927294e-4f));
  p = hn::MulAdd(p, a, hn::Set(d, 6.301049823e-5f));
  p = hn::MulAdd(p, a, hn::Set(d, -4.882284123e-3f));
  p = hn::MulAdd(p, a, hn::Set(d, 3.639087063e-2f));
  p = hn::MulAdd(p, a, hn::Set(d, 3.182947148e-1f));
  p = hn::MulAdd(p, a, hn::Set(d, 7.978861602e-1f));
  p = hn::MulAdd(p, a, hn::Set(d, 6.931471528e-1f));
  return exp_of_nonpositive(d, hn::Neg(p));
}

// gelu(x) = max(x, 0) - a Phi(-a) with a = |x|: no cancellation on either side. From 6.5 on a Phi(-a) is under 3e-10: 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_of(D d, V x) {
  const V zero = hn::Zero(d), limit = hn::Set(d, kGeluLimit);
  const V a = hn::Abs(x);
  const V below = hn::IfThenZeroElse(hn::Ge(a, limit), hn::Mul(a, normal_tail(d, hn::Min(a, limit))));
  return hn::Sub(at_least(d, zero, x), below);
}

// gelu'(x) = Phi(x) + x phi(x), which for a negative x is t = Phi(-a) - a phi(a), and 1 - t for -x. From 6.5 on t is under 2e-9:
// 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_slope_of(D d, V x) {
  const V limit = hn::Set(d, kGeluLimit);
  const V a = hn::Abs(x), within = at_most(d, limit, a);
  const V density =
      hn::Mul(hn::Set(d, 0.3989422804f), exp_of_nonpositive(d, hn::Mul(hn::Mul(within, within), hn::Set(d, -0.5f))));
  const V tail = hn::IfThenZeroElse(hn::Ge(a, limit), hn::NegMulAdd(within, density, normal_tail(d, within)));
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(hn::Set(d, 1.0f), tail));
}

// x sigmoid(x), with no overflow on either side.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V silu_of(D d, V x) {
  const V small = exp_of_nonpositive(d, hn::Neg(hn::Abs(x)));
  const V major = hn::Div(x, hn::Add(hn::Set(d, 1.0f), small));
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Mul(small, major), major);
}

// The derivative of that: s (1 + x (1 - s)) with s = sigmoid(x). Neither s nor 1 - s is a difference.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V silu_slope_of(D d, V x) {
  const V small = exp_of_nonpositive(d, hn::Neg(hn::Abs(x))), one = hn::Set(d, 1.0f);
  const V major = hn::Div(one, hn::Add(one, small)), minor = hn::Mul(small, major);
  const auto negative = hn::Lt(x, hn::Zero(d));
  const V s = hn::IfThenElse(negative, minor, major), rest = hn::IfThenElse(negative, major, minor);
  return hn::Mul(s, hn::MulAdd(x, rest, one));
}

HWY_INLINE void rotate_row(const float* x, const float* turns, size_t half, float* y) {
  // Two loads and a store for each operation: vectors of 16 lanes are slower here (raffia bench isa: 0.85 times on Zen 5).
  const hn::CappedTag<float, 8> d;
  for (size_t i = 0; i < half; i += hn::MaxLanes(d)) {
    const size_t left = half - i;
    const auto cosine = load_some(turns + i, left, d), sine = load_some(turns + half + i, left, d);
    const auto a = load_some(x + i, left, d), b = load_some(x + half + i, left, d);
    store_some(hn::NegMulAdd(b, sine, hn::Mul(a, cosine)), y + i, left, d);
    store_some(hn::MulAdd(a, sine, hn::Mul(b, cosine)), y + half + i, left, d);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
