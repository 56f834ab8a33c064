// Weights as they are stored: what rounding may cost, and what is refused.
#include "core/weight_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/arrays.h"

namespace raffia::internal {
namespace {

std::vector<float> widened(const WeightMatrix& matrix) {
  std::vector<float> all(static_cast<size_t>(matrix.rows * matrix.columns));
  for (int64_t r = 0; r < matrix.rows; ++r) {
    copy_row(matrix, r, std::span(all).subspan(static_cast<size_t>(r * matrix.columns), static_cast<size_t>(matrix.columns)));
  }
  return all;
}

std::vector<int8_t> int8_of(const StoredWeights& stored) {
  std::vector<int8_t> elements;
  for (const std::byte one : stored.elements) elements.push_back(static_cast<int8_t>(one));
  return elements;
}

TEST(WeightMatrix, EveryTypeIsInItsPlaceInTheTable) {
  EXPECT_EQ(weight_formats().size(), std::size(kWeightTypes));
  for (const auto& [name, type] : kWeightTypes) {
    EXPECT_EQ(format_of(type).type, type);
    EXPECT_EQ(name_of(type), name);
    EXPECT_EQ(format_of(type).scales == WeightFormat::Scales::none, format_of(type).scale == nullptr);
  }
}

TEST(WeightMatrix, Int8RowsAreWithinHalfAScale) {
  const std::vector<float> weights = normals(7 * 33, 3);
  const StoredWeights stored = store_weights("w", View2(weights.data(), {7, 33}), WeightType::int8);
  const std::vector<float> all = widened(stored.matrix);
  for (int64_t r = 0; r < 7; ++r) {
    const float scale = stored.matrix.row_scales()[r];
    float greatest = 0;
    for (size_t c = 0; c < 33; ++c) {
      const size_t i = static_cast<size_t>(r) * 33 + c;
      greatest = std::max(greatest, std::abs(weights[i]));
      // Half a step, and three roundings: of the quotient, the scale and the product.
      EXPECT_LE(std::abs(all[i] - weights[i]), scale * (0.5f + 3 * 127 * static_cast<float>(kUnit)));
    }
    EXPECT_EQ(scale, greatest / 127.0f);
  }
}

TEST(WeightMatrix, TiesRoundToEvenAndTheGreatestIs127) {
  const std::vector<float> weights = {127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -127.0f, 126.6f};
  EXPECT_EQ(int8_of(store_weights("w", View2(weights.data(), {1, 8}), WeightType::int8)),
            (std::vector<int8_t>{127, 0, 2, 2, 0, -2, -127, 127}));
}

TEST(WeightMatrix, RowsOfZerosAndOfSubnormalsStayInRange) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<float> weights = {0.0f, -0.0f, 0.0f, 100 * tiny, -tiny, 3 * tiny, 200 * tiny, -200 * tiny, 90 * tiny};
  for (const WeightType type : {WeightType::int8, WeightType::int4}) {
    const StoredWeights stored = store_weights("w", View2(weights.data(), {3, 3}), type);
    const std::vector<float> all = widened(stored.matrix);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_LE(std::abs(all[i] - weights[i]), 200 * tiny) << name_of(type);
    EXPECT_EQ(all[0], 0.0f);
  }
}

// The scale that the extreme of a group asks for is one of those tried: no group is further off than with it. Columns past the
// end of a row are zeros, which the padding of activations relies on no more than on any other finite number.
TEST(WeightMatrix, Int4GroupsAreNoFurtherOffThanByTheScaleOfTheirExtreme) {
  for (const int64_t columns : {1, 15, 16, 17, 31, 32, 33, 64, 100}) {
    const std::vector<float> weights = normals(static_cast<size_t>(5 * columns), 3);
    const StoredWeights stored = store_weights("w", View2(weights.data(), {5, columns}), WeightType::int4);
    EXPECT_EQ(stored.elements.size(), static_cast<size_t>(5 * ((columns + 31) / 32) * 16));
    EXPECT_EQ(stored.scales.size(), static_cast<size_t>(5 * ((columns + 31) / 32) * 2));
    const std::vector<float> all = widened(stored.matrix);
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t first = 0; first < columns; first += 32) {
        double error = 0, bound = 0;
        float extreme = 0;
        for (int64_t c = first; c < std::min(columns, first + 32); ++c) {
          const float weight = weights[static_cast<size_t>(r * columns + c)];
          if (std::abs(weight) > std::abs(extreme)) extreme = weight;
        }
        const float scale = BFloat16::from_float(extreme / -8.0f).to_float();
        for (int64_t c = first; c < std::min(columns, first + 32); ++c) {
          const auto i = static_cast<size_t>(r * columns + c);
          const double by_extreme = std::clamp(std::nearbyint(weights[i] / scale), -8.0f, 7.0f) * scale;
          error += std::pow(static_cast<double>(all[i]) - weights[i], 2);
          bound += std::pow(by_extreme - weights[i], 2);
        }
        EXPECT_LE(error, bound * (1 + 1e-6)) << columns;
      }
    }
  }
}

TEST(WeightMatrix, Int4KeepsWhatItCanHold) {
  std::vector<float> weights;
  for (int i = 0; i < 64; ++i) weights.push_back(static_cast<float>(i % 16 - 8) * (i < 32 ? 0.5f : -3.0f));
  const StoredWeights stored = store_weights("w", View2(weights.data(), {1, 64}), WeightType::int4);
  EXPECT_EQ(widened(stored.matrix), weights);
}

TEST(WeightMatrix, Bf16RoundsToNearestEven) {
  const std::vector<float> weights = {1.0f, 1.00390625f, 1.01171875f, -1.004f};
  EXPECT_EQ(widened(store_weights("w", View2(weights.data(), {1, 4}), WeightType::bf16).matrix),
            (std::vector<float>{1.0f, 1.0f, 1.015625f, -1.0078125f}));
}

TEST(WeightMatrix, RefusesWeightsThatAreNotFinite) {
  std::vector<float> weights = {1.0f, 2.0f, 3.0f, -std::numeric_limits<float>::infinity()};
  const auto refusal = [&](WeightType type) {
    return refusal_of([&] { (void)store_weights("up.weight", View2(weights.data(), {2, 2}), type); });
  };
  for (const WeightType type : {WeightType::f32, WeightType::int8, WeightType::int4}) {
    EXPECT_EQ(refusal(type), "store_weights: up.weight[1, 1] is -inf, expected a finite number");
  }
  weights[3] = std::numeric_limits<float>::max();
  for (const WeightType type : {WeightType::f32, WeightType::int8, WeightType::int4}) EXPECT_EQ(refusal(type), "");
  EXPECT_EQ(refusal(WeightType::bf16),
            "store_weights: up.weight[1, 1] is 3.4028235e+38, expected a finite number that fits bf16");
}

// The bytes that docs/model-format.md describes: a row of 33 columns has two groups, of 16 bytes and a scale each.
TEST(WeightMatrix, BytesOfInt4MeanWhatTheDocumentSays) {
  std::vector<uint8_t> bytes(32, 0x88);  // elements of 0
  bytes[0] = 0x0F;                       // column 0: 7, column 16: -8
  bytes[15] = 0xA7;                      // column 15: -1, column 31: 2
  bytes[16] = 0x8B;                      // column 32: 3
  const BFloat16 scales[] = {BFloat16::from_float(-0.5f), BFloat16::from_float(4.0f)};
  const WeightMatrix matrix{.type = WeightType::int4, .data = bytes.data(), .scales = scales, .rows = 1, .columns = 33};
  std::vector<float> expected(33, 0.0f), found(33);
  expected[0] = -3.5f;
  expected[16] = 4.0f;
  expected[15] = 0.5f;
  expected[31] = -1.0f;
  expected[32] = 12.0f;
  copy_row(matrix, 0, found);
  EXPECT_EQ(found, expected);
  // Stored again, they are the same weights.
  const StoredWeights stored = store_weights("weights", View2(expected.data(), {1, 33}), WeightType::int4);
  EXPECT_EQ(stored.elements.size(), bytes.size());
  copy_row(stored.matrix, 0, found);
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace raffia::internal
