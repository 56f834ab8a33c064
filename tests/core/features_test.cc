#include "raffia/features.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "raffia/error.h"

namespace raffia::internal {
namespace {

constexpr MapKind kRandomKinds[] = {MapKind::trig, MapKind::arccos, MapKind::positive, MapKind::positive2};

std::vector<float> copy(std::span<const float> values) { return {values.begin(), values.end()}; }

TEST(FeatureMap, NamesAreParsedBack) {
  for (MapKind kind :
       {MapKind::identity, MapKind::trig, MapKind::arccos, MapKind::positive, MapKind::positive2, MapKind::elu, MapKind::relu}) {
    EXPECT_EQ(parse_map_kind(name_of(kind)), kind);
  }
  try {
    parse_map_kind("tri");
    FAIL() << "tri was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(
        error.what(),
        "parse_map_kind: \"tri\" is not a feature map, expected one of identity, trig, arccos, positive, positive2, elu, relu");
  }
}

TEST(FeatureMap, SizesFollowTheKind) {
  const RandomMapOptions options{.dim = 16, .count = 9, .heads = 3};
  EXPECT_EQ(FeatureMap::trig(options).features(), 18);
  EXPECT_EQ(FeatureMap::arccos(options).features(), 9);
  EXPECT_EQ(FeatureMap::positive(options).features(), 9);
  EXPECT_EQ(FeatureMap::positive2(options).features(), 18);
  for (MapKind kind : kRandomKinds) {
    const FeatureMap map = FeatureMap::random(kind, options);
    EXPECT_EQ(map.kind(), kind);
    EXPECT_EQ(map.dim(), 16);
    EXPECT_EQ(map.rows(), 9);
    EXPECT_EQ(map.heads(), 3);
    EXPECT_TRUE(map.is_random());
    EXPECT_EQ(map.draws(2).size(), 9U * 16U);
    EXPECT_EQ(map.weights(2).size(), 9U * 16U);
    EXPECT_EQ(map.sigma(2).size(), 16U);
    EXPECT_TRUE(map.bias(2).empty());
  }
  for (const FeatureMap& map : {FeatureMap::identity(16, 3), FeatureMap::elu(16, 3)}) {
    EXPECT_EQ(map.features(), 16);
    EXPECT_EQ(map.rows(), 0);
    EXPECT_FALSE(map.is_random());
    EXPECT_TRUE(map.weights(0).empty());
    EXPECT_TRUE(map.sigma(0).empty());
  }
}

TEST(FeatureMap, ScalesFollowTheFormulas) {
  const RandomMapOptions options{.dim = 256, .count = 64};
  EXPECT_FLOAT_EQ(FeatureMap::trig(options).output_scale(), 0.125F);
  EXPECT_FLOAT_EQ(FeatureMap::arccos(options).output_scale(), 0.125F);
  EXPECT_FLOAT_EQ(FeatureMap::positive(options).output_scale(), 0.125F);
  EXPECT_FLOAT_EQ(FeatureMap::positive2(options).output_scale(), 0.125F / std::sqrt(2.0F));
  EXPECT_EQ(FeatureMap::elu(256, 1).output_scale(), 1.0F);
  EXPECT_EQ(FeatureMap::identity(256, 1).output_scale(), 1.0F);

  EXPECT_FLOAT_EQ(FeatureMap::positive(options).input_scale(), 0.25F);
  EXPECT_FLOAT_EQ(FeatureMap::positive2(options).input_scale(), 0.25F);
  EXPECT_EQ(FeatureMap::trig(options).input_scale(), 1.0F);

  EXPECT_EQ(FeatureMap::trig(options).default_eps(), 1e-3F);
  EXPECT_EQ(FeatureMap::arccos(options).default_eps(), 1e-3F);
  EXPECT_EQ(FeatureMap::identity(256, 1).default_eps(), 1e-3F);
  EXPECT_EQ(FeatureMap::positive(options).default_eps(), 0.0F);
  EXPECT_EQ(FeatureMap::positive2(options).default_eps(), 0.0F);
  EXPECT_EQ(FeatureMap::elu(256, 1).default_eps(), 0.0F);
}

TEST(FeatureMap, DrawsAreThoseOfTheKey) {
  const FeatureMap map =
      FeatureMap::trig({.dim = 6, .count = 8, .heads = 2, .seed = 3, .layer = 4, .draw = 5, .draws = Draws::iid});
  for (uint32_t head = 0; head < 2; ++head) {
    std::vector<float> expected(8 * 6);
    draw_projection({.seed = 3, .layer = 4, .head = head, .draw = 5}, Draws::iid, 8, 6, expected);
    EXPECT_EQ(copy(map.draws(head)), expected);
    EXPECT_EQ(copy(map.weights(head)), expected) << "sigma is initially 1";
  }
}

TEST(FeatureMap, SigmaScalesTheColumnsOfItsHead) {
  FeatureMap map = FeatureMap::arccos({.dim = 3, .count = 5, .heads = 2, .seed = 1});
  const std::vector<float> sigma = {1, 2, 3, 0.5F, 0, -1};
  map.set_sigma(sigma);
  for (int64_t head = 0; head < 2; ++head) {
    for (size_t row = 0; row < 5; ++row) {
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(map.weights(head)[row * 3 + i], sigma[static_cast<size_t>(head) * 3 + i] * map.draws(head)[row * 3 + i]);
      }
    }
  }
}

TEST(FeatureMap, RedrawKeepsSigmaAndComesBack) {
  FeatureMap map = FeatureMap::positive({.dim = 4, .count = 6, .heads = 2, .seed = 1, .draw = 7});
  const std::vector<float> sigma(8, 2.0F);
  map.set_sigma(sigma);
  const std::vector<float> weights = copy(map.weights(1));
  map.redraw(8);
  EXPECT_NE(copy(map.weights(1)), weights);
  EXPECT_EQ(copy(map.weights(1)), [&] {
    FeatureMap other = FeatureMap::positive({.dim = 4, .count = 6, .heads = 2, .seed = 1, .draw = 8});
    other.set_sigma(sigma);
    return copy(other.weights(1));
  }());
  map.redraw(7);
  EXPECT_EQ(copy(map.weights(1)), weights);
}

TEST(FeatureMap, WithDrawsOfASeedEqualsTheMapOfThatSeed) {
  const RandomMapOptions options{.dim = 5, .count = 3, .heads = 2, .seed = 4};
  for (MapKind kind : kRandomKinds) {
    FeatureMap drawn = FeatureMap::random(kind, options);
    std::vector<float> transposed(2 * 3 * 5);  // [H, d, D]: strides are followed
    for (int64_t h = 0; h < 2; ++h) {
      for (size_t i = 0; i < 15; ++i) transposed[static_cast<size_t>(h) * 15 + i % 5 * 3 + i / 5] = drawn.draws(h)[i];
    }
    FeatureMap given = FeatureMap::with_draws(kind, View3(transposed.data(), {2, 5, 3}).permuted({0, 2, 1}));
    EXPECT_EQ(given.features(), drawn.features());
    const std::vector<float> sigma{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    drawn.set_sigma(sigma);
    given.set_sigma(sigma);
    for (int64_t h = 0; h < 2; ++h) EXPECT_EQ(copy(given.weights(h)), copy(drawn.weights(h)));
    EXPECT_THROW(given.redraw(1), InvalidArgument);
  }
}

TEST(FeatureMap, WithDrawsRefusesOtherKindsAndTypes) {
  const std::vector<float> zeros(24);
  const std::vector<double> doubles(24);
  EXPECT_THROW(FeatureMap::with_draws(MapKind::elu, View3(zeros.data(), {2, 3, 4})), InvalidArgument);
  EXPECT_THROW(FeatureMap::with_draws(MapKind::trig, View3(doubles.data(), {2, 3, 4})), InvalidArgument);
  EXPECT_THROW(FeatureMap::with_draws(MapKind::trig, View3()), InvalidArgument);
}

TEST(FeatureMap, CopiesAreIndependent) {
  const FeatureMap map = FeatureMap::trig({.dim = 4, .count = 4});
  const std::vector<float> weights = copy(map.weights(0));
  FeatureMap other = map;
  other.redraw(1);
  other.set_sigma(std::vector<float>(4, 3.0F));
  EXPECT_EQ(copy(map.weights(0)), weights);
}

TEST(FeatureMap, ReluReadsStridedAndRoundedWeights) {
  // Stored [F, d, H] in bf16, read as [H, F, d].
  std::vector<BFloat16> stored(3 * 2 * 2);
  for (size_t i = 0; i < stored.size(); ++i) stored[i] = BFloat16::from_float(static_cast<float>(i));
  const std::vector<double> bias = {0.5, 1.5, 2.5, 3.5, 4.5, 5.5};
  const FeatureMap map = FeatureMap::relu(View3(stored.data(), {3, 2, 2}).permuted({2, 0, 1}), View2(bias.data(), {2, 3}));
  EXPECT_EQ(map.heads(), 2);
  EXPECT_EQ(map.features(), 3);
  EXPECT_EQ(map.rows(), 3);
  EXPECT_EQ(map.dim(), 2);
  EXPECT_EQ(copy(map.weights(1)), (std::vector<float>{1, 3, 5, 7, 9, 11}));
  EXPECT_EQ(copy(map.draws(1)), copy(map.weights(1)));
  EXPECT_EQ(copy(map.bias(1)), (std::vector<float>{3.5F, 4.5F, 5.5F}));
  EXPECT_TRUE(map.sigma(1).empty());
  EXPECT_EQ(map.default_eps(), 1e-3F);
  EXPECT_EQ(map.output_scale(), 1.0F);
}

TEST(FeatureMap, RefusesWhatMakesNoMap) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_THROW(FeatureMap::trig({.dim = 0}), InvalidArgument);
  EXPECT_THROW(FeatureMap::trig({.count = 0}), InvalidArgument);
  EXPECT_THROW(FeatureMap::trig({.count = -1}), InvalidArgument);
  EXPECT_THROW(FeatureMap::trig({.heads = 0}), InvalidArgument);
  EXPECT_THROW(FeatureMap::trig({.count = kHuge}), InvalidArgument);
  EXPECT_THROW(FeatureMap::trig({.dim = int64_t{1} << 31, .count = int64_t{1} << 31}), InvalidArgument);
  EXPECT_THROW(FeatureMap::identity(0, 1), InvalidArgument);
  EXPECT_THROW(FeatureMap::elu(4, -1), InvalidArgument);
  EXPECT_THROW(FeatureMap::random(MapKind::relu, {}), InvalidArgument);

  const std::vector<float> zeros(24);
  const View3 weight(zeros.data(), {2, 3, 4});
  EXPECT_THROW(FeatureMap::relu(weight, View2(zeros.data(), {3, 2})), InvalidArgument);
  EXPECT_THROW(FeatureMap::relu(weight, View2()), InvalidArgument);
  EXPECT_THROW(FeatureMap::relu(View3(), View2()), InvalidArgument);
}

TEST(FeatureMap, RefusesParametersOfAnotherShape) {
  FeatureMap map = FeatureMap::trig({.dim = 4, .count = 4, .heads = 2});
  try {
    map.set_sigma(std::vector<float>(4));
    FAIL() << "half of sigma was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "FeatureMap::set_sigma: sigma has 4 floats, expected 2 x 4 (heads, dim)");
  }
  EXPECT_THROW((void)map.weights(2), InvalidArgument);
  EXPECT_THROW((void)map.sigma(-1), InvalidArgument);
  FeatureMap fixed = FeatureMap::elu(4, 1);
  EXPECT_THROW(fixed.set_sigma({}), InvalidArgument);
  EXPECT_THROW(fixed.redraw(1), InvalidArgument);
}

}  // namespace
}  // namespace raffia::internal
