// The vector functions of math-inl.h against the C library in double, on every ISA, over dense grids.
#include "raffia/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/math_test.cc"
#include "hwy/foreach_target.h"
// clang-format off: foreach_target comes first
#include "hwy/highway.h"
#include "kernels/math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Wide = hn::ScalableTag<float>;

// `count` is a multiple of 16, as many lanes as any ISA has.
void exp_array(const float* x, size_t count, float* y) {
  const Wide d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) hn::StoreU(exp_of(d, hn::LoadU(d, x + i)), d, y + i);
}

void exp_of_nonpositive_array(const float* x, size_t count, float* y) {
  const Wide d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) hn::StoreU(exp_of_nonpositive(d, hn::LoadU(d, x + i)), d, y + i);
}

void sin_cos_array(const float* x, size_t count, float* sines, float* cosines) {
  const Wide d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::Vec<Wide> s, c;
    sin_cos(d, hn::LoadU(d, x + i), s, c);
    hn::StoreU(s, d, sines + i);
    hn::StoreU(c, d, cosines + i);
  }
}

void limit_arrays(const float* x, size_t count, float* least, float* most) {
  const Wide d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(at_least(d, hn::Set(d, 1.0f), hn::LoadU(d, x + i)), d, least + i);
    hn::StoreU(at_most(d, hn::Set(d, 1.0f), hn::LoadU(d, x + i)), d, most + i);
  }
}

void gate_array(const float* x, size_t count, float* keep, float* write, float* log_keep) {
  const Wide d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::Vec<Wide> k, w, l;
    gate_of(d, hn::LoadU(d, x + i), k, w, l);
    hn::StoreU(k, d, keep + i);
    hn::StoreU(w, d, write + i);
    hn::StoreU(l, d, log_keep + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/dispatch.h"
#include "support/arrays.h"

namespace raffia::internal {
namespace {

HWY_EXPORT(exp_array);
HWY_EXPORT(exp_of_nonpositive_array);
HWY_EXPORT(sin_cos_array);
HWY_EXPORT(gate_array);
HWY_EXPORT(limit_arrays);

// The distance between fp32 numbers at |y|.
double ulp_at(double y) {
  int exponent = 0;
  std::frexp(y, &exponent);
  return std::ldexp(1.0, std::max(exponent - 24, -149));
}

struct Worst {
  double ulps = 0;
  float at = 0;

  void see(float x, float found, double expected) {
    const double error = std::abs(static_cast<double>(found) - expected) / ulp_at(expected);
    if (!(error <= ulps)) ulps = error, at = x;  // so that NaN is the worst
  }
};

// `count` numbers from low to high, evenly spaced.
std::vector<float> grid(double low, double high, size_t count) {
  std::vector<float> x(count);
  for (size_t i = 0; i < count; ++i) {
    x[i] = static_cast<float>(low + (high - low) * static_cast<double>(i) / static_cast<double>(count - 1));
  }
  return x;
}

std::vector<float> tested_exp(const std::vector<float>& x) {
  std::vector<float> y(x.size());
  chosen(KernelOp::probe, HWY_DISPATCH_TABLE(exp_array))(x.data(), x.size(), y.data());
  return y;
}

constexpr size_t kDense = size_t{1} << 19;

// Instructions for the greater of two numbers differ in what they do with NaN: x86 has one answer, NEON another.
TEST(Limits, ReplaceWhatIsBeyondThemAndKeepNan) {
  for_each_isa([] {
    std::vector<float> x(16, kNan), least(16), most(16);
    x[0] = 0.5F, x[1] = 1, x[2] = 2;
    chosen(KernelOp::probe, HWY_DISPATCH_TABLE(limit_arrays))(x.data(), x.size(), least.data(), most.data());
    EXPECT_EQ(std::vector<float>(least.begin(), least.begin() + 3), (std::vector<float>{1, 1, 2})) << name_of(active_isa());
    EXPECT_EQ(std::vector<float>(most.begin(), most.begin() + 3), (std::vector<float>{0.5F, 1, 1})) << name_of(active_isa());
    for (size_t i = 3; i < 16; ++i) EXPECT_TRUE(std::isnan(least[i]) && std::isnan(most[i])) << i << " " << name_of(active_isa());
  });
}

TEST(Exp, IsWithinTwoUlp) {
  for_each_isa([] {
    Worst worst;
    for (const auto& x : {grid(-87.29, 88.72, kDense), grid(-1, 1, kDense), grid(-1e-3, 1e-3, 1 << 12)}) {
      const std::vector<float> y = tested_exp(x);
      for (size_t i = 0; i < x.size(); ++i) worst.see(x[i], y[i], std::exp(static_cast<double>(x[i])));
    }
    EXPECT_LE(worst.ulps, 2) << "exp at " << worst.at << " isa " << name_of(active_isa());
  });
}

TEST(Exp, SaturatesAtBothEndsAndKeepsNan) {
  for_each_isa([] {
    const float inf = std::numeric_limits<float>::infinity();
    std::vector<float> x = {-inf, -1e30F, -1e4F, -88, -87.4F, 0, -0.0F, 88.8F, 1e4F, inf, kNan};
    x.resize(16);
    const std::vector<float> y = tested_exp(x);
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(y[i], 0) << x[i] << " isa " << name_of(active_isa());
    EXPECT_EQ(y[5], 1);
    EXPECT_EQ(y[6], 1);
    for (size_t i = 7; i < 10; ++i) EXPECT_EQ(y[i], inf) << x[i] << " isa " << name_of(active_isa());
    EXPECT_TRUE(std::isnan(y[10]));
  });
}

TEST(ExpOfNonpositive, IsWithinTwoUlpAndZeroFarBelow) {
  for_each_isa([] {
    Worst worst;
    for (const auto& x : {grid(-87.29, 0, kDense), grid(-1, 0, kDense)}) {
      std::vector<float> y(x.size());
      chosen(KernelOp::probe, HWY_DISPATCH_TABLE(exp_of_nonpositive_array))(x.data(), x.size(), y.data());
      for (size_t i = 0; i < x.size(); ++i) worst.see(x[i], y[i], std::exp(static_cast<double>(x[i])));
    }
    EXPECT_LE(worst.ulps, 2) << "exp at " << worst.at << " isa " << name_of(active_isa());
    const std::vector<float> x(16, -std::numeric_limits<float>::infinity());
    std::vector<float> y(16);
    chosen(KernelOp::probe, HWY_DISPATCH_TABLE(exp_of_nonpositive_array))(x.data(), x.size(), y.data());
    EXPECT_EQ(y, std::vector<float>(16, 0));
  });
}

void see_sin_cos(const std::vector<float>& x, Worst& worst_sin, Worst& worst_cos) {
  std::vector<float> s(x.size()), c(x.size());
  chosen(KernelOp::probe, HWY_DISPATCH_TABLE(sin_cos_array))(x.data(), x.size(), s.data(), c.data());
  for (size_t i = 0; i < x.size(); ++i) {
    worst_sin.see(x[i], s[i], std::sin(static_cast<double>(x[i])));
    worst_cos.see(x[i], c[i], std::cos(static_cast<double>(x[i])));
  }
}

TEST(SinCos, IsWithinTwoUlp) {
  for_each_isa([] {
    Worst worst_sin, worst_cos;
    for (const auto& x : {grid(-8192, 8192, kDense), grid(-8, 8, kDense), grid(-1e-3, 1e-3, 1 << 12)}) {
      see_sin_cos(x, worst_sin, worst_cos);
    }
    EXPECT_LE(worst_sin.ulps, 2) << "sin at " << worst_sin.at << " isa " << name_of(active_isa());
    EXPECT_LE(worst_cos.ulps, 2) << "cos at " << worst_cos.at << " isa " << name_of(active_isa());
  });
}

// Where sin or cos is smallest the reduction cancels most: the 64 numbers around each multiple of pi/2 up to 8192.
TEST(SinCos, IsWithinTwoUlpAroundMultiplesOfHalfPi) {
  constexpr double kHalfPi = 1.57079632679489661923;
  std::vector<float> x;
  for (int j = 0; j * kHalfPi <= 8192; ++j) {
    float at = static_cast<float>(j * kHalfPi);
    for (int i = 0; i < 32; ++i) at = std::nextafter(at, -1e9F);
    for (int i = 0; i < 64; ++i) {
      if (std::abs(at) <= 8192) x.push_back(j % 2 == 0 ? at : -at);
      at = std::nextafter(at, 1e9F);
    }
  }
  x.resize(x.size() / 16 * 16);
  for_each_isa([&] {
    Worst worst_sin, worst_cos;
    see_sin_cos(x, worst_sin, worst_cos);
    EXPECT_LE(worst_sin.ulps, 2) << "sin at " << worst_sin.at << " isa " << name_of(active_isa());
    EXPECT_LE(worst_cos.ulps, 2) << "cos at " << worst_cos.at << " isa " << name_of(active_isa());
  });
}

struct GateArrays {
  explicit GateArrays(const std::vector<float>& x) : keep(x.size()), write(x.size()), log_keep(x.size()) {
    chosen(KernelOp::probe, HWY_DISPATCH_TABLE(gate_array))(x.data(), x.size(), keep.data(), write.data(), log_keep.data());
  }
  std::vector<float> keep, write, log_keep;
};

// exp errs by 2 ulp, at most 4 u relative, of which the sum 1 + e^-|x| keeps half at most; that sum, the quotient and the product
// round by u each: 7 u, at most 7 ulp, and 5 ulp where there is no product. Where the product falls below 2^-126 it is flushed.
TEST(Gate, KeepsAndWritesWithSmallRelativeErrorOnBothSides) {
  for_each_isa([] {
    Worst worst;
    for (const auto& x : {grid(-87, 87, kDense), grid(-2, 2, kDense)}) {
      const GateArrays gates(x);
      for (size_t i = 0; i < x.size(); ++i) {
        const double logit = x[i];
        worst.see(x[i], gates.keep[i], 1 / (1 + std::exp(-logit)));
        worst.see(x[i], gates.write[i], 1 / (1 + std::exp(logit)));
      }
    }
    EXPECT_LE(worst.ulps, 7) << "gate at " << worst.at << " isa " << name_of(active_isa());
  });
}

// log1p of s = e^-|x| errs by 4 u s / (1 + s) <= 4 u log1p(s) / log(2) from s and 4 ulp of its own, 8 u; the difference rounds by
// u of the result, which is no smaller than either term: 4 / log(2) + 8 + 1 < 15 u, at most 15 ulp.
TEST(Gate, LogIsMinusSoftplusDownToMinusSixty) {
  for_each_isa([] {
    Worst worst;
    for (const auto& x : {grid(-80, 80, kDense), grid(-2, 2, kDense)}) {
      const GateArrays gates(x);
      for (size_t i = 0; i < x.size(); ++i) {
        const double logit = x[i];
        worst.see(x[i], gates.log_keep[i], std::max(std::min(logit, 0.0) - std::log1p(std::exp(-std::abs(logit))), -60.0));
      }
    }
    EXPECT_LE(worst.ulps, 15) << "log gate at " << worst.at << " isa " << name_of(active_isa());
  });
}

TEST(Gate, NanStaysNan) {
  for_each_isa([] {
    const std::vector<float> x(16, kNan);
    const GateArrays gates(x);
    std::vector<float> power(16);
    chosen(KernelOp::probe, HWY_DISPATCH_TABLE(exp_of_nonpositive_array))(x.data(), x.size(), power.data());
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_TRUE(std::isnan(gates.keep[i]) && std::isnan(gates.write[i]) && std::isnan(gates.log_keep[i]))
          << name_of(active_isa());
      EXPECT_TRUE(std::isnan(power[i])) << name_of(active_isa());
    }
  });
}

TEST(Gate, IsExactForHardLogits) {
  for_each_isa([] {
    std::vector<float> x(16, 1e4F);
    std::fill_n(x.begin(), 8, -1e4F);
    const GateArrays gates(x);
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(gates.keep[i], i < 8 ? 0 : 1);
      EXPECT_EQ(gates.write[i], i < 8 ? 1 : 0);
      EXPECT_EQ(gates.log_keep[i], i < 8 ? -60 : 0);
    }
  });
}

}  // namespace
}  // namespace raffia::internal
#endif  // HWY_ONCE
