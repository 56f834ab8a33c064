// Vector functions that attention needs and Highway 1.0.3 lacks or has slower: exp, a fused sin and cos, the logistic gate.
// The polynomials are minimax fits made for this project (Remez exchange; the relative error is given beside each).

#if defined(RAFFIA_KERNELS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_MATH_INL_H_
#undef RAFFIA_KERNELS_MATH_INL_H_
#else
#define RAFFIA_KERNELS_MATH_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The greater or lesser of a limit and x; NaN of x stays NaN. Of a number and NaN, x86 returns the second operand, NEON and
// Highway's scalar code the number.
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128  // the fallback: gcc 12 has the first, clang the second
template <class D, class V = hn::Vec<D>>
HWY_INLINE V at_least(D, V limit, V x) {
  return hn::Max(limit, x);
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V at_most(D, V limit, V x) {
  return hn::Min(limit, x);
}
#else
template <class D, class V = hn::Vec<D>>
HWY_INLINE V at_least(D, V limit, V x) {
  return hn::IfThenElse(hn::Lt(x, limit), limit, x);
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V at_most(D, V limit, V x) {
  return hn::IfThenElse(hn::Gt(x, limit), limit, x);
}
#endif

// e^x = 2^n y for x within +-88.8: the power n, and y in about [0.7, 1.42].
//   x = n ln 2 + r, |r| <= ln 2 / 2:  y = 1 + r + r^2 P(r), P within 3.2e-9
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_mantissa(D d, V x, V& n) {
  n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504f)));
  // ln 2 in two parts; the first has 10 bits, so that n times it is exact without FMA too.
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  V p = hn::MulAdd(r, hn::Set(d, 1.39505406e-3f), hn::Set(d, 8.36891786e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.16662051e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.66665186e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.00000010e-1f));
  return hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, 1.0f));
}

// 2^n for -126 <= n <= 127.
template <class D, class VI, class V = hn::Vec<D>>
HWY_INLINE V power_of_two(D d, VI n) {
  return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(hn::RebindToSigned<D>(), 127))));
}

// e^x to 2 ulp; 0 below -87.3, where the result would be subnormal; inf above 88.7. NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of(D d, V x) {
  const V lowest = hn::Set(d, -87.3f);
  V n;
  const V y = exp_mantissa(d, hn::Min(hn::Max(x, lowest), hn::Set(d, 88.8f)), n);
  // 2^n in two factors: n reaches 128, one more than an exponent holds.
  const auto whole = hn::ConvertTo(hn::RebindToSigned<D>(), n);
  const auto half = hn::ShiftRight<1>(whole);
  const V scaled = hn::Mul(hn::Mul(y, power_of_two(d, half)), power_of_two(d, hn::Sub(whole, half)));
  const V flushed = hn::IfThenZeroElse(hn::Lt(x, lowest), scaled);
  return hn::IfThenElse(hn::Eq(x, x), flushed, x);
}

// e^x for x <= 0 as softmax needs it, in fewer steps: 0 below -87.3. NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of_nonpositive(D d, V x) {
  const V lowest = hn::Set(d, -87.3f);
  V n;
  const V y = exp_mantissa(d, at_least(d, lowest, x), n);
  // A product rather than a sum of exponents, so that NaN stays NaN.
  const V scaled = hn::Mul(y, power_of_two(d, hn::ConvertTo(hn::RebindToSigned<D>(), n)));
  return hn::IfThenZeroElse(hn::Lt(x, lowest), scaled);
}

// sin and cos of x together, to 2 ulp for |x| <= 8192 (beyond, the reduction runs out of bits).
//   x = j pi/2 + r, |r| <= pi/4; pi/2 in four parts, the first three of 9 bits each so that j times each is exact. Two
//   differences are exact; what the third one rounds off goes with the fourth part, so that r is rounded once. sin r = r + r^3
//   P(r^2), P within 3.7e-9;   cos r = 1 - r^2/2 + r^4 Q(r^2), Q within 1e-10
template <class D, class V = hn::Vec<D>>
HWY_INLINE void sin_cos(D d, V x, V& sin_x, V& cos_x) {
  const hn::RebindToSigned<D> di;
  const V j = hn::Round(hn::Mul(x, hn::Set(d, 0.636619772f)));
  V r = hn::NegMulAdd(j, hn::Set(d, 1.5703125f), x);
  r = hn::NegMulAdd(j, hn::Set(d, 4.8351287841796875e-4f), r);
  const V third = hn::Set(d, 3.1385570764541626e-7f);
  const V rounded = hn::NegMulAdd(j, third, r);
  const V rest = hn::NegMulAdd(j, third, hn::Sub(r, rounded));
  r = hn::Add(rounded, hn::NegMulAdd(j, hn::Set(d, 6.077100628e-11f), rest));
  const V z = hn::Mul(r, r);
  V p = hn::MulAdd(z, hn::Set(d, -1.95169775e-4f), hn::Set(d, 8.33217585e-3f));
  p = hn::MulAdd(p, z, hn::Set(d, -1.66666549e-1f));
  const V sin_r = hn::MulAdd(hn::Mul(p, z), r, r);
  V q = hn::MulAdd(z, hn::Set(d, 2.44380909e-5f), hn::Set(d, -1.38873645e-3f));
  q = hn::MulAdd(q, z, hn::Set(d, 4.16666468e-2f));
  const V cos_r = hn::MulAdd(hn::Mul(z, z), q, hn::NegMulAdd(z, hn::Set(d, 0.5f), hn::Set(d, 1.0f)));
  // Quadrant j mod 4: odd ones swap sin and cos; 2 and 3 negate sin, 1 and 2 negate cos.
  const auto quadrant = hn::ConvertTo(di, j);
  const auto swap = hn::RebindMask(d, hn::TestBit(quadrant, hn::Set(di, 1)));
  const V sin_sign = hn::BitCast(d, hn::ShiftLeft<30>(hn::And(quadrant, hn::Set(di, 2))));
  const V cos_sign = hn::BitCast(d, hn::ShiftLeft<30>(hn::And(hn::Add(quadrant, hn::Set(di, 1)), hn::Set(di, 2))));
  sin_x = hn::Xor(hn::IfThenElse(swap, cos_r, sin_r), sin_sign);
  cos_x = hn::Xor(hn::IfThenElse(swap, sin_r, cos_r), cos_sign);
}

// The gate of a logit x: keep = sigmoid(x), write = sigmoid(-x), log_keep = -softplus(-x) >= -60. No cancellation on either side.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void gate_of(D d, V x, V& keep, V& write, V& log_keep) {
  const V small = exp_of_nonpositive(d, hn::Neg(hn::Abs(x)));
  const V one = hn::Set(d, 1.0f);
  const V major = hn::Div(one, hn::Add(one, small));
  const V minor = hn::Mul(small, major);
  const auto positive = hn::Ge(x, hn::Zero(d));
  keep = hn::IfThenElse(positive, major, minor);
  write = hn::IfThenElse(positive, minor, major);
  log_keep = at_least(d, hn::Set(d, -60.0f), hn::Sub(at_most(d, hn::Zero(d), x), hn::Log1p(d, small)));
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
