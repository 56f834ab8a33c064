// Cross entropy against its twin in double, on every ISA, at widths around those of vectors. What lies between rows is NaN and
// must not change.
#include "kernels/cross_entropy.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "reference/layers.h"
#include "support/arrays.h"

namespace raffia::internal {
namespace {

constexpr int64_t kIgnoredId = -7, kGap = 3, kRowCount = 4;
constexpr int64_t kWidths[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 47, 49, 100, 1000};

// Rows of logits, of which the third is ignored and holds NaN.
struct Rows {
  Rows(int64_t width, float center, float scale) : columns(width), values(static_cast<size_t>(kRowCount * (width + kGap)), kNan) {
    const std::vector<float> drawn = normals(static_cast<size_t>(kRowCount * width), 5, center, scale);
    for (int64_t t = 0; t < kRowCount; ++t) {
      for (int64_t v = 0; v < width && t != 2; ++v) {
        values[static_cast<size_t>(t * (width + kGap) + v)] = drawn[static_cast<size_t>(t * width + v)];
      }
      targets.push_back(t == 2 ? kIgnoredId : (t * 5 + width - 1) % width);
    }
  }
  MutView2 view() { return MutView2(values.data(), {kRowCount, columns}, {columns + kGap, 1}); }
  std::span<float> row(int64_t t) {
    return std::span(values).subspan(static_cast<size_t>(t * (columns + kGap)), static_cast<size_t>(columns));
  }

  int64_t columns;
  std::vector<float> values;
  std::vector<int64_t> targets;
};

void expect_matches_reference(int64_t columns, float center, float scale, double smoothing) {
  const std::string text =
      fmt::format("{} columns around {} x {}, smoothing {}, isa {}", columns, center, scale, smoothing, name_of(active_isa()));
  Rows rows(columns, center, scale);
  const Rows given = rows;
  std::vector<double> losses(kRowCount), gradients(static_cast<size_t>(kRowCount * columns));
  const MutView2 expected(gradients.data(), {kRowCount, columns});
  twins::cross_entropy(rows.view(), rows.targets, kIgnoredId, smoothing, MutView1(losses.data(), {kRowCount}), expected);

  std::vector<float> alone(kRowCount, kNan), found(kRowCount, kNan);
  cross_entropy(rows.view(), {rows.targets, kIgnoredId, smoothing}, false, alone);
  EXPECT_TRUE(same_bits(rows.values, given.values)) << text;
  cross_entropy(rows.view(), {rows.targets, kIgnoredId, smoothing}, true, found);
  EXPECT_TRUE(same_bits(found, alone)) << text;

  // The sum of exponentials has no cancellation: at most a rounding for each column, 3 of an exponential, and half a unit of the
  // largest logit and of the difference from it, which an exponential takes as relative errors.
  const double size = std::abs(center) + 6.0 * scale, sum_error = (static_cast<double>(columns) + 6 + 12.0 * scale) * kUnit;
  for (int64_t t = 0; t < kRowCount; ++t) {
    const auto at = static_cast<size_t>(t);
    // The logarithm and the differences round once each; the mean is a sum of all columns.
    const double mean_error = smoothing * static_cast<double>(columns + 2) * kUnit * size;
    const double bound = sum_error + mean_error + 6 * kUnit * (12 * scale + std::log(static_cast<double>(columns)) + 1);
    EXPECT_LE(std::abs(static_cast<double>(found[at]) - losses[at]), bound) << text << ", row " << t;
    for (int64_t v = 0; v < columns; ++v) {
      const double exact = expected(t, v);
      // Of the exponential over their sum, then of what is subtracted.
      const double error = 2 * sum_error * (std::abs(exact) + 1.0 / static_cast<double>(columns)) + 3 * kUnit;
      ASSERT_LE(std::abs(static_cast<double>(rows.row(t)[static_cast<size_t>(v)]) - exact), error)
          << text << ", row " << t << ", column " << v;
    }
  }
  for (int64_t t = 0; t < kRowCount; ++t) {
    for (int64_t g = 0; g < kGap; ++g) {
      EXPECT_TRUE(std::isnan(rows.values[static_cast<size_t>(t * (columns + kGap) + columns + g)])) << text;
    }
  }
}

TEST(CrossEntropy, EqualsReference) {
  for_each_isa([] {
    for (const int64_t columns : kWidths) {
      for (const double smoothing : {0.0, 0.1, 1.0}) {
        expect_matches_reference(columns, 0, 3, smoothing);
        expect_matches_reference(columns, -500, 1, smoothing);  // far from 0, where no exponential is a number
      }
    }
  });
}

TEST(CrossEntropy, IgnoredRowsCountNothingAndNaNIsNoLoss) {
  for_each_isa([] {
    Rows rows(20, 0, 1);
    rows.row(3)[17] = kNan;
    std::vector<float> losses(kRowCount, kNan);
    cross_entropy(rows.view(), {rows.targets, kIgnoredId, 0.1}, true, losses);
    EXPECT_EQ(losses[2], 0);
    for (const float each : rows.row(2)) EXPECT_EQ(each, 0);
    EXPECT_TRUE(std::isnan(losses[3]));
    EXPECT_TRUE(std::isfinite(losses[0]));
  });
}

TEST(CrossEntropy, NoRowsAreNoWork) { cross_entropy(MutView2(static_cast<float*>(nullptr), {0, 5}), {}, true, {}); }

TEST(CrossEntropy, RefusesWhatDoesNotFit) {
  std::vector<float> values(8), losses(2);
  const std::vector<int64_t> good = {0, 3}, bad = {0, 4}, negative = {-1, 0};
  const auto refusal = [&](std::span<const int64_t> ids, std::span<float> to, const Extents<2>& strides) {
    return refusal_of([&] { cross_entropy(MutView2(values.data(), {2, 4}, strides), {ids, kIgnoredId}, true, to); });
  };
  EXPECT_EQ(refusal(bad, losses, {4, 1}), "cross_entropy: target 1 is 4, expected 0 to 3 or -7 (ignored)");
  EXPECT_EQ(refusal(negative, losses, {4, 1}), "cross_entropy: target 0 is -1, expected 0 to 3 or -7 (ignored)");
  EXPECT_EQ(refusal(good, std::span(losses).first(1), {4, 1}),
            "cross_entropy: 2 targets and 1 losses, expected 2 (rows of logits)");
  EXPECT_EQ(refusal(good, losses, {1, 2}), "cross_entropy: columns of logits are 2 elements apart, expected 1");
}

}  // namespace
}  // namespace raffia::internal
