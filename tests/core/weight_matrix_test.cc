// Weights as they are stored: what rounding may cost, and what is refused.
#include "core/weight_matrix.h"

#include <gtest/gtest.h>

#include "support/arrays.h"

namespace raffia::internal {
namespace {

TEST(WeightMatrix, QuantizedRowsAreWithinHalfAScale) {
  const std::vector<float> weights = normals(7 * 33, 3);
  std::vector<int8_t> quantized(weights.size());
  std::vector<float> scales(7), row(33);
  quantize_rows("w", View2(weights.data(), {7, 33}), quantized, scales);
  const WeightMatrix matrix{WeightType::int8, quantized.data(), scales.data(), 7, 33};
  for (int64_t r = 0; r < 7; ++r) {
    copy_row(matrix, r, row);
    float greatest = 0;
    for (size_t c = 0; c < 33; ++c) {
      const float weight = weights[static_cast<size_t>(r) * 33 + c];
      greatest = std::max(greatest, std::abs(weight));
      // Half a step, and three roundings: of the quotient, the scale and the product.
      EXPECT_LE(std::abs(row[c] - weight), scales[static_cast<size_t>(r)] * (0.5f + 3 * 127 * static_cast<float>(kUnit)));
    }
    EXPECT_EQ(scales[static_cast<size_t>(r)], greatest / 127.0f);
  }
}

TEST(WeightMatrix, TiesRoundToEvenAndTheGreatestIs127) {
  const std::vector<float> weights = {127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -127.0f, 126.6f};
  std::vector<int8_t> quantized(8);
  std::vector<float> scales(1);
  quantize_rows("w", View2(weights.data(), {1, 8}), quantized, scales);
  EXPECT_EQ(quantized, (std::vector<int8_t>{127, 0, 2, 2, 0, -2, -127, 127}));
}

TEST(WeightMatrix, RowsOfZerosAndOfSubnormalsStayInRange) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<float> weights = {0.0f, -0.0f, 0.0f, 100 * tiny, -tiny, 3 * tiny, 200 * tiny, -200 * tiny, 90 * tiny};
  std::vector<int8_t> quantized(9, 55);
  std::vector<float> scales(3), row(3);
  quantize_rows("w", View2(weights.data(), {3, 3}), quantized, scales);
  for (int64_t r = 0; r < 3; ++r) {
    copy_row({WeightType::int8, quantized.data(), scales.data(), 3, 3}, r, row);
    for (size_t c = 0; c < 3; ++c) EXPECT_LE(std::abs(row[c] - weights[static_cast<size_t>(r) * 3 + c]), 200 * tiny);
  }
  EXPECT_EQ(quantized[0], 0);
}

TEST(WeightMatrix, Bf16RoundsToNearestEven) {
  const std::vector<float> weights = {1.0f, 1.00390625f, 1.01171875f, -1.004f};
  std::vector<BFloat16> rounded(4);
  std::vector<float> row(4);
  round_weights("w", weights, rounded);
  copy_row({WeightType::bf16, rounded.data(), nullptr, 1, 4}, 0, row);
  EXPECT_EQ(row, (std::vector<float>{1.0f, 1.0f, 1.015625f, -1.0078125f}));
}

TEST(WeightMatrix, RefusesWeightsThatAreNotFinite) {
  std::vector<float> weights = {1.0f, 2.0f, 3.0f, -std::numeric_limits<float>::infinity()};
  std::vector<int8_t> quantized(4);
  std::vector<BFloat16> rounded(4);
  std::vector<float> scales(2);
  const auto quantize = [&] { quantize_rows("up.weight", View2(weights.data(), {2, 2}), quantized, scales); };
  EXPECT_EQ(refusal_of(quantize), "quantize_rows: up.weight[1, 1] is -inf, expected a finite number");
  weights[3] = std::numeric_limits<float>::max();
  EXPECT_EQ(refusal_of(quantize), "");
  EXPECT_EQ(refusal_of([&] { round_weights("up.weight", weights, rounded); }),
            "round_weights: element 3 of up.weight is 3.4028235e+38, expected a finite number that fits bf16");
}

}  // namespace
}  // namespace raffia::internal
