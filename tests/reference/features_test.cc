#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "reference/arrays.h"

namespace raffia::reference {
namespace {

double norm(std::span<const double> x) { return std::sqrt(inner(x, x)); }

// phi(q) . phi(k) of a random map with sigma = 1
double estimate(MapKind kind, int64_t dim, int64_t count, std::span<const double> q, std::span<const double> k) {
  const Map map(FeatureMap::random(kind, {.dim = dim, .count = count, .heads = 1, .seed = 3, .draws = Draws::iid}));
  return inner(phi(map, 0, q), phi(map, 0, k));
}

const std::vector<double> kQuery{0.8, -0.3, 0.5, 0.1}, kKey{0.2, 0.9, 0.6, -0.4};
constexpr int64_t kMany = 1 << 16;

// Of a mean over D independent terms: 5 standard deviations.
double five_sigma(double variance_of_a_term) { return 5 * std::sqrt(variance_of_a_term / kMany); }

TEST(FeatureTwin, TrigEstimatesTheGaussianKernelOfUnitVectors) {
  const double cosine = inner(kQuery, kKey) / norm(kQuery) / norm(kKey);
  const double squared_distance = 2 - 2 * cosine;
  const double kernel = std::exp(-squared_distance / 2);
  // A term is cos(w . (q^ - k^)), of variance (1 - exp(-r^2))^2 / 2.
  const double variance = std::pow(1 - std::exp(-squared_distance), 2) / 2;
  EXPECT_NEAR(estimate(MapKind::trig, 4, kMany, kQuery, kKey), kernel, five_sigma(variance));
}

TEST(FeatureTwin, ArccosEstimatesTheArcCosineKernelOfUnitVectors) {
  const double theta = std::acos(inner(kQuery, kKey) / norm(kQuery) / norm(kKey));
  const double kernel = (std::sin(theta) + (std::numbers::pi - theta) * std::cos(theta)) / (2 * std::numbers::pi);
  // A term is relu(a) relu(b) with a, b ~ N(0, 1): its second moment is at most E a^2 b^2 / 2 <= E a^4 / 2 = 3/2.
  EXPECT_NEAR(estimate(MapKind::arccos, 4, kMany, kQuery, kKey), kernel, five_sigma(1.5));
}

TEST(FeatureTwin, PositiveMapsEstimateTheSoftmaxKernel) {
  const double dot = inner(kQuery, kKey) / 2;  // q . k / sqrt(d)
  const double kernel = std::exp(dot);
  // With y the scaled vectors, a term has second moment exp(2 y_q . y_k) exp(|y_q + y_k|^2).
  const double sum = (inner(kQuery, kQuery) + inner(kKey, kKey)) / 2 + 2 * dot;
  const double variance = std::exp(2 * dot) * (std::exp(sum) - 1);
  EXPECT_NEAR(estimate(MapKind::positive, 4, kMany, kQuery, kKey), kernel, five_sigma(variance));
  // positive2 averages two terms with the same mean and variance.
  EXPECT_NEAR(estimate(MapKind::positive2, 4, kMany, kQuery, kKey), kernel, five_sigma(variance));
}

TEST(FeatureTwin, TrigFeaturesHaveUnitLength) {
  const std::vector<double> features = phi(any_map(MapKind::trig, 4, 10, 1), 0, kQuery);
  EXPECT_NEAR(inner(features, features), 1, 1e-15 * 20);  // 20 terms
}

TEST(FeatureTwin, UnitNormMapsIgnoreTheLengthOfTheirInput) {
  std::vector<double> longer = kQuery;
  for (double& value : longer) value *= 8;  // exact
  for (MapKind kind : {MapKind::trig, MapKind::arccos}) {
    const Map map = any_map(kind, 4, 10, 1);
    EXPECT_EQ(phi(map, 0, kQuery), phi(map, 0, longer));
  }
}

TEST(FeatureTwin, PositiveMapsOfZeroAreTheirScale) {
  const std::vector<double> zero(128);
  EXPECT_DOUBLE_EQ(phi(any_map(MapKind::positive, 128, 4, 1), 0, zero)[0], 0.5);
  EXPECT_DOUBLE_EQ(phi(any_map(MapKind::positive2, 128, 2, 1), 0, zero)[3], 0.5);
}

TEST(FeatureTwin, EluAndReluAreWhatTheirNamesSay) {
  const std::vector<double> x{2, -1};
  EXPECT_EQ(phi(any_map(MapKind::elu, 2, 0, 1), 0, x), (std::vector<double>{3, std::exp(-1)}));
  Map map = any_map(MapKind::relu, 2, 3, 1);
  map.draws = {1, 0, 0, 1, 1, 1};
  map.bias = {0.5, 0.5, -0.25};
  EXPECT_EQ(phi(map, 0, x), (std::vector<double>{2.5, 0, 0.75}));
}

// L = sum_f dphi_f phi_f(x)
void expect_feature_gradients(MapKind kind, double size, double h) {
  Map map = any_map(kind, 3, 4, 2);
  Numbers numbers(29);
  for (int64_t head = 0; head < 2; ++head) {
    std::vector<double> x(3), dx(3), dphi(static_cast<size_t>(map.features));
    numbers.fill(x, -size, size);
    numbers.fill(dphi, -1, 1);
    MapGradient parameters(map);
    phi_backward(map, head, x, dphi, dx, &parameters);
    const auto loss = [&] { return inner(phi(map, head, x), dphi); };
    expect_derivatives("x", x, dx, loss, h);
    expect_derivatives("sigma", map.sigma, parameters.sigma, loss);
    if (kind == MapKind::relu) expect_derivatives("weight", map.draws, parameters.weight, loss);
    expect_derivatives("bias", map.bias, parameters.bias, loss);
  }
}

// Here x^ = 1e6 x, so a step of 1e-10 moves x^ by 1e-4.
TEST(FeatureTwin, GradientsMatchFiniteDifferencesWhereTheNormIsTooSmallToDivideBy) {
  expect_feature_gradients(MapKind::trig, 3e-7, 1e-10);
  expect_feature_gradients(MapKind::arccos, 3e-7, 1e-10);
}

class FeatureTwinGradients : public testing::TestWithParam<MapKind> {};

TEST_P(FeatureTwinGradients, MatchFiniteDifferences) { expect_feature_gradients(GetParam(), 1.5, 1e-4); }

TEST_P(FeatureTwinGradients, OfAZeroVectorAreFinite) {
  const Map map = any_map(GetParam(), 3, 4, 1);
  const std::vector<double> x(3), dphi(static_cast<size_t>(map.features), 1.0);
  std::vector<double> dx(3);
  phi_backward(map, 0, x, dphi, dx, nullptr);
  for (double value : dx) EXPECT_TRUE(std::isfinite(value));
}

TEST_P(FeatureTwinGradients, OfArraysAreThoseOfTheirRows) {
  const Map map = any_map(GetParam(), 3, 4, 2);
  Numbers numbers(31);
  const Array4 x({2, 3, 4, 3}, numbers), dphi({2, 3, 4, map.features}, numbers);
  Array4 features(dphi.shape), dx(x.shape);
  MapGradient parameters(map), expected_parameters(map);
  apply_features(x.view(), map, features.mut());
  apply_features_backward(x.view(), map, dphi.view(), dx.mut(), &parameters);
  for (size_t i = 0; i < 24; ++i) {
    const size_t width = static_cast<size_t>(map.features);
    const std::span<const double> x_row = std::span(x.values).subspan(3 * i, 3);
    const int64_t head = i % 4 < 2 ? 0 : 1;
    const std::vector<double> expected = phi(map, head, x_row);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), features.values.begin() + static_cast<ptrdiff_t>(width * i)));
    std::vector<double> expected_dx(3);
    phi_backward(map, head, x_row, std::span(dphi.values).subspan(width * i, width), expected_dx, &expected_parameters);
    EXPECT_TRUE(std::equal(expected_dx.begin(), expected_dx.end(), dx.values.begin() + static_cast<ptrdiff_t>(3 * i)));
  }
  EXPECT_EQ(parameters.sigma, expected_parameters.sigma);
  EXPECT_EQ(parameters.weight, expected_parameters.weight);
}

INSTANTIATE_TEST_SUITE_P(Maps, FeatureTwinGradients, testing::ValuesIn(kAllKinds),
                         [](const auto& kind) { return std::string(name_of(kind.param)); });

}  // namespace
}  // namespace raffia::reference
