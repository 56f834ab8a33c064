#include "bench/crossover_plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "raffia/estimator.h"

namespace raffia::internal::bench {
namespace {

// seconds = scale * length^power at each length.
std::vector<CurvePoint> curve(std::vector<double> lengths, double scale, double power) {
  std::vector<CurvePoint> points;
  for (const double length : lengths) points.push_back({length, scale * std::pow(length, power)});
  return points;
}

TEST(Look, HasATitleForEveryKindOfEstimator) {
  for (const EstimatorKind kind : estimator_kinds()) EXPECT_NE(look_of(name_of(kind)).title, "model") << name_of(kind);
  EXPECT_EQ(look_of("rfa_gate:samples=8").title, "RFA-Gate");
  EXPECT_EQ(look_of("window:window=8").title, "window");
  EXPECT_EQ(look_of("rfa_gate;softmax").title, "model");
  EXPECT_EQ(look_of("rfa_gate:samples=8 softmax").title, "model");
}

TEST(Crossover, IsWherePowerLawsMeet) {
  // 1e-6 n^2 = 3e-4 n at n = 300; both are straight lines in log-log, so interpolation has rounding errors alone.
  const auto softmax = curve({128, 256, 512, 1024}, 1e-6, 2);
  const auto linear = curve({128, 256, 512, 1024}, 3e-4, 1);
  ASSERT_TRUE(crossover(softmax, linear).has_value());
  EXPECT_NEAR(*crossover(softmax, linear), 300, 1e-9);
}

TEST(Crossover, IsAbsentWhereOrderNeverChanges) {
  const auto softmax = curve({512, 1024}, 1e-6, 2);
  EXPECT_FALSE(crossover(softmax, curve({512, 1024}, 1e-5, 1)).has_value());  // always faster
  EXPECT_FALSE(crossover(softmax, curve({512, 1024}, 1e-2, 1)).has_value());  // always slower
}

TEST(Crossover, LooksAtCommonLengthsAlone) {
  const auto softmax = curve({128, 512}, 1e-6, 2);
  const auto linear = curve({64, 128, 256, 512, 4096}, 3e-4, 1);
  ASSERT_TRUE(crossover(softmax, linear).has_value());
  EXPECT_NEAR(*crossover(softmax, linear), 300, 1e-9);
}

}  // namespace
}  // namespace raffia::internal::bench
