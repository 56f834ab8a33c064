// Merges of samples by vectors against the formula in double, on every ISA.
#include "kernels/sample_merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "raffia/random.h"
#include "support/arrays.h"

namespace raffia::internal {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Samples {
  std::vector<float> weights, values;
};

// Weights around 30 where every third sample or so has none, by the remainder given.
Samples draw(RandomStream& random, size_t count, size_t width, size_t none) {
  Samples samples;
  for (size_t s = 0; s < count; ++s) {
    samples.weights.push_back(s % 3 == none ? kNone : 30.0F + 4.0F * static_cast<float>(random.next_normal()));
    for (size_t i = 0; i < width; ++i) samples.values.push_back(static_cast<float>(random.next_normal()));
  }
  return samples;
}

void expect_merged(size_t count, size_t width, float decay, bool has_mixture) {
  RandomStream random({.seed = count, .draw = static_cast<uint32_t>(width)});
  Samples state = draw(random, count, width, 0);
  const Samples before = state, added = draw(random, count, width, count % 2);  // both none, or one of them
  std::vector<float> mixture(count);
  for (size_t s = 0; s < count; ++s) mixture[s] = s % 5 == 4 ? -kNone : static_cast<float>(random.next_normal());
  merge_samples({.count = count,
                 .value_dim = width,
                 .log_decay = decay,
                 .log_weights = state.weights.data(),
                 .values = state.values.data(),
                 .added = added.weights.data(),
                 .mixture = has_mixture ? mixture.data() : nullptr,
                 .added_values = added.values.data()});
  for (size_t s = 0; s < count; ++s) {
    const double a = static_cast<double>(before.weights[s]) + static_cast<double>(decay);
    const double b = static_cast<double>(added.weights[s]) - (has_mixture ? static_cast<double>(mixture[s]) : 0.0);
    const double sum = std::log(std::exp(a) + std::exp(b));
    if (std::isinf(sum)) {
      EXPECT_EQ(state.weights[s], kNone) << s;
      continue;
    }
    // Weights of up to 50 are rounded three times, to 50 u each; shares err by the sum of that, and values are within +-6.
    constexpr double kError = 4 * 50 * 0x1p-24;
    EXPECT_NEAR(state.weights[s], sum, kError) << s;
    for (size_t i = 0; i < width; ++i) {
      const size_t at = s * width + i;
      const double expected =
          std::exp(a - sum) * static_cast<double>(before.values[at]) + std::exp(b - sum) * static_cast<double>(added.values[at]);
      EXPECT_NEAR(state.values[at], expected, 2 * 6 * kError) << s << ", " << i;
    }
  }
}

TEST(SampleMerge, EqualsTheFormula) {
  for_each_isa([] {
    for (size_t count : {0, 1, 2, 15, 16, 17, 40}) {
      for (size_t width : {0, 1, 7, 16, 33}) {
        expect_merged(count, width, 0.0F, true);
        expect_merged(count, width, -0.25F, false);
      }
    }
  });
}

// Samples of a state lie apart: the same bits, and nothing between them changes.
TEST(SampleMerge, SamplesThatLieApartAreMergedAlike) {
  for_each_isa([] {
    constexpr size_t kCount = 19, kWidth = 21, kWeights = 3, kValues = 40;
    RandomStream random({.seed = 5});
    Samples state = draw(random, kCount, kWidth, 0);
    const Samples added = draw(random, kCount, kWidth, 1);
    std::vector<float> weights(kCount * kWeights, kNan), values(kCount * kValues, kNan);
    for (size_t s = 0; s < kCount; ++s) {
      weights[s * kWeights] = state.weights[s];
      std::copy_n(state.values.data() + s * kWidth, kWidth, values.data() + s * kValues);
    }
    SampleMerge merge{.count = kCount,
                      .value_dim = kWidth,
                      .log_decay = -0.5F,
                      .log_weights = state.weights.data(),
                      .values = state.values.data(),
                      .added = added.weights.data(),
                      .added_values = added.values.data()};
    merge_samples(merge);
    merge.log_weights = weights.data(), merge.weight_stride = kWeights;
    merge.values = values.data(), merge.value_stride = kValues;
    merge_samples(merge);
    for (size_t i = 0; i < weights.size(); ++i) {
      if (i % kWeights == 0) {
        EXPECT_EQ(weights[i], state.weights[i / kWeights]);
      } else {
        EXPECT_TRUE(std::isnan(weights[i]));
      }
    }
    for (size_t i = 0; i < values.size(); ++i) {
      if (i % kValues < kWidth) {
        EXPECT_EQ(values[i], state.values[i / kValues * kWidth + i % kValues]);
      } else {
        EXPECT_TRUE(std::isnan(values[i]));
      }
    }
  });
}

TEST(SampleMerge, KeepsNanOfEitherSide) {
  for_each_isa([] {
    for (const bool of_state : {true, false}) {
      std::vector<float> weights = {1.0F, of_state ? kNan : 2.0F}, values = {3.0F, 4.0F};
      const std::vector<float> added = {1.0F, of_state ? 2.0F : kNan}, added_values = {5.0F, 6.0F};
      merge_samples({.count = 2,
                     .value_dim = 1,
                     .log_weights = weights.data(),
                     .values = values.data(),
                     .added = added.data(),
                     .added_values = added_values.data()});
      EXPECT_NEAR(weights[0], 1.0 + std::log(2.0), 1e-6);
      EXPECT_TRUE(std::isnan(weights[1]));
      EXPECT_TRUE(std::isnan(values[1]));
    }
  });
}

}  // namespace
}  // namespace raffia::internal
