#include "raffia/features.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "estimators/linear_case.h"
#include "estimators/linear_expected.h"
#include "raffia/threads.h"

namespace raffia::internal::linear_tests {
namespace {

struct FeatureCase {
  FeatureCase(MapKind kind, int64_t length, int64_t dim, int64_t count, int64_t batch = 1, int64_t heads = 1, int64_t groups = 1,
              uint64_t seed = 81)
      : map(map_of(kind, dim, count, groups, seed)),
        shape{batch, length, heads, dim},
        phi_shape{batch, length, heads, map.features()},
        x(normals(size_of_shape(shape), seed + 1)),
        dphi(normals(size_of_shape(phi_shape), seed + 2)) {}

  View4 x_view() const { return View4(x.data(), shape); }
  View4 dphi_view() const { return View4(dphi.data(), phi_shape); }
  std::string text() const {
    return fmt::format("apply_features map {} shape {} features {} isa {}", name_of(map.kind()), to_string(shape.data(), 4),
                       map.features(), name_of(active_isa()));
  }

  FeatureMap map;
  Extents<4> shape, phi_shape;
  std::vector<float> x, dphi;
};

std::vector<float> features(const FeatureCase& c, const RunOptions& options = {}) {
  std::vector<float> phi(size_of_shape(c.phi_shape), kNan);
  apply_features(c.x_view(), c.map, MutView4(phi.data(), c.phi_shape), options);
  return phi;
}

struct FeatureGradients {
  explicit FeatureGradients(const FeatureCase& c, const RunOptions& options = {})
      : x(c.x.size(), kNan),
        sigma(c.map.is_random() ? static_cast<size_t>(c.map.heads() * c.map.dim()) : 0),
        weight(c.map.kind() == MapKind::relu ? static_cast<size_t>(c.map.heads() * c.map.features() * c.map.dim()) : 0),
        bias(c.map.kind() == MapKind::relu ? static_cast<size_t>(c.map.heads() * c.map.features()) : 0) {
    apply_features_backward(c.x_view(), c.map, c.dphi_view(), MutView4(x.data(), c.shape), parameters(c), options);
  }

  MapGradients parameters(const FeatureCase& c) {
    MapGradients views;
    if (!sigma.empty()) views.sigma = MutView2(sigma.data(), {c.map.heads(), c.map.dim()});
    if (!weight.empty()) views.weight = MutView3(weight.data(), {c.map.heads(), c.map.features(), c.map.dim()});
    if (!bias.empty()) views.bias = MutView2(bias.data(), {c.map.heads(), c.map.features()});
    return views;
  }

  std::vector<float> x, sigma, weight, bias;
};

void expect_features(const FeatureCase& c) {
  const reference::Map map(c.map);
  std::vector<double> expected, bounds;
  const int64_t group = c.shape[2] / c.map.heads();
  for (int64_t b = 0; b < c.shape[0]; ++b) {
    for (int64_t t = 0; t < c.shape[1]; ++t) {
      for (int64_t h = 0; h < c.shape[2]; ++h) {
        const Features row = features_of(map, h / group, twins::row(c.x_view(), b, t, h));
        expected.insert(expected.end(), row.values.begin(), row.values.end());
        for (double deviation : row.deviations) bounds.push_back(kUnit * kDeviations * deviation);
      }
    }
  }
  for_each_isa([&] { expect_within(doubles(features(c)), expected, bounds, c.text()); });
}

// dx of a row is J^T dphi, a sum over F products of features, slopes and weights, and back through the norm or scale: d more.
// Each factor errs by its feature's relative error, which the greatest of `deviations` bounds. Relative to the greatest entry.
void expect_gradients(const FeatureCase& c) {
  const reference::Map map(c.map);
  std::vector<double> dx(c.x.size());
  reference::MapGradient parameters(map);
  reference::apply_features_backward(c.x_view(), map, c.dphi_view(), MutView4(dx.data(), c.shape), &parameters);
  const double sums = std::sqrt(static_cast<double>(c.map.features())) + 2 * std::sqrt(static_cast<double>(c.map.dim())) +
                      std::sqrt(static_cast<double>(c.shape[0] * c.shape[1] * c.shape[2])) + 16;
  double slope = 0;  // deviation of a feature beside the greatest one of its row
  for (int64_t t = 0; t < c.shape[1]; ++t) {
    const Features row = features_of(map, 0, twins::row(c.x_view(), 0, t, 0));
    double greatest = 1e-30, deviation = 0;
    for (size_t f = 0; f < row.values.size(); ++f) {
      greatest = std::max(greatest, std::abs(row.values[f]));
      deviation = std::max(deviation, row.deviations[f]);
    }
    slope = std::max(slope, deviation / greatest);
  }
  const double tolerance = kUnit * kDeviations * (sums + slope);
  // The radial part of a unit vector's gradient is subtracted; in one dimension nothing is left. It is the scale of the error.
  double radial = 0;
  if (c.map.kind() == MapKind::trig || c.map.kind() == MapKind::arccos) {
    for (int64_t t = 0; t < c.shape[1]; ++t) {
      const std::vector<double> x = twins::row(c.x_view(), 0, t, 0);
      double terms = 0;
      for (int64_t i = 0; i < c.map.rows(); ++i) {
        const double slope_at = c.dphi_view()(0, t, 0, i) * map.sigma[0] * map.draws[static_cast<size_t>(i * c.map.dim())];
        terms += square(slope_at) / static_cast<double>(c.map.rows());
      }
      radial = std::max(radial, std::sqrt(terms / std::max(twins::dot(x, x), 1e-12)));
    }
  }
  const auto expect_near = [&](std::span<const float> found, std::span<const double> expected, const char* what) {
    double greatest = c.map.dim() == 1 ? radial : 0;
    for (double value : expected) greatest = std::max(greatest, std::abs(value));
    expect_within(doubles(found), expected, std::vector<double>(expected.size(), tolerance * greatest), c.text() + what);
  };
  for_each_isa([&] {
    const FeatureGradients found(c);
    expect_near(found.x, dx, " dx");
    expect_near(found.sigma, parameters.sigma, " dsigma");
    expect_near(found.weight, parameters.weight, " dweight");
    expect_near(found.bias, parameters.bias, " dbias");
  });
}

class ApplyFeatures : public testing::TestWithParam<MapKind> {};
INSTANTIATE_TEST_SUITE_P(Maps, ApplyFeatures, testing::ValuesIn(kKinds),
                         [](const auto& of) { return std::string(name_of(of.param)); });

TEST_P(ApplyFeatures, EqualsTwinAtEveryLength) {
  for (int64_t length = 0; length <= 33; ++length) {
    expect_features(FeatureCase(GetParam(), length, 5, 7));
    expect_gradients(FeatureCase(GetParam(), length, 5, 7));
  }
}

TEST_P(ApplyFeatures, EqualsTwinAtEveryDimension) {
  constexpr int64_t kDims[] = {1, 3, 60, 64, 100, 128};
  for (int64_t i = 0; i < 6; ++i) {
    for (int64_t count : {kDims[(i + 2) % 6], kDims[i] + 1}) {
      expect_features(FeatureCase(GetParam(), 19, kDims[i], count));
      expect_gradients(FeatureCase(GetParam(), 19, kDims[i], count));
    }
  }
}

TEST_P(ApplyFeatures, EqualsTwinWithSharedMaps) {
  const FeatureCase c(GetParam(), 21, 9, 11, 2, 6, 2);
  expect_features(c);
  expect_gradients(c);
}

TEST_P(ApplyFeatures, HasTheSameBitsForAnyNumberOfThreads) {
  const FeatureCase c(GetParam(), 1100, 9, 11, 2, 4, 2);
  const std::vector<float> phi = features(c, {.threads = 1});
  const FeatureGradients gradients(c, {.threads = 1});
  for (int threads : {2, 7}) {
    const std::unique_ptr<Executor> executor = make_thread_pool(threads);
    EXPECT_TRUE(same_bits(features(c, {.executor = executor.get()}), phi)) << c.text();
    const FeatureGradients found(c, {.executor = executor.get()});
    EXPECT_TRUE(same_bits(found.x, gradients.x)) << c.text();
    EXPECT_TRUE(same_bits(found.sigma, gradients.sigma)) << c.text();
    EXPECT_TRUE(same_bits(found.weight, gradients.weight)) << c.text();
    EXPECT_TRUE(same_bits(found.bias, gradients.bias)) << c.text();
  }
}

TEST_P(ApplyFeatures, ReadsAndWritesAnyStrides) {
  for_each_isa([&] {
    const FeatureCase c(GetParam(), 37, 9, 11, 2, 2, 2);
    const std::vector<float> expected = features(c);
    // [B, H, T, D] in memory.
    std::vector<float> x(c.x.size()), phi(expected.size(), kNan);
    const MutView4 from = MutView4(x.data(), {2, 2, 37, 9}).permuted({0, 2, 1, 3});
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t t = 0; t < 37; ++t) {
        for (int64_t h = 0; h < 2; ++h) {
          for (int64_t i = 0; i < 9; ++i) from.set(c.x_view()(b, t, h, i), b, t, h, i);
        }
      }
    }
    const MutView4 to = MutView4(phi.data(), {c.map.features(), 2, 37, 2}).permuted({1, 2, 3, 0});  // features first
    apply_features(from, c.map, to);
    EXPECT_TRUE(same_bits(elements_of(to), expected)) << c.text();
  });
}

TEST_P(ApplyFeatures, RoundsBf16OnceAtTheEnd) {
  for_each_isa([&] {
    FeatureCase c(GetParam(), 37, 9, 11);
    const std::vector<BFloat16> x = round_to_bf16(c.x), dphi = round_to_bf16(c.dphi);
    const std::vector<float> exact = features(c);
    std::vector<BFloat16> phi(exact.size());
    apply_features(View4(x.data(), c.shape), c.map, MutView4(phi.data(), c.phi_shape));
    for (size_t i = 0; i < phi.size(); ++i) ASSERT_EQ(phi[i].bits, BFloat16::from_float(exact[i]).bits) << c.text() << " " << i;
    const FeatureGradients gradients(c);
    std::vector<BFloat16> dx(x.size());
    apply_features_backward(View4(x.data(), c.shape), c.map, View4(dphi.data(), c.phi_shape), MutView4(dx.data(), c.shape));
    for (size_t i = 0; i < dx.size(); ++i)
      ASSERT_EQ(dx[i].bits, BFloat16::from_float(gradients.x[i]).bits) << c.text() << " " << i;
  });
}

// A row of zeros has no direction: its features are finite and its gradient is that of the constant divisor.
TEST_P(ApplyFeatures, SurvivesZeroRows) {
  FeatureCase c(GetParam(), 20, 6, 7);
  std::fill_n(c.x.begin() + 5 * 6, 3 * 6, 0.0F);
  expect_features(c);
  if (GetParam() == MapKind::arccos) return;  // relu at 0 has no derivative to compare
  expect_gradients(c);
}

TEST_P(ApplyFeatures, GradientsMayBeAbsent) {
  const FeatureCase c(GetParam(), 37, 9, 11);
  FeatureGradients all(c);
  FeatureGradients parameters = all;
  std::fill(parameters.sigma.begin(), parameters.sigma.end(), 0.0F);
  std::fill(parameters.weight.begin(), parameters.weight.end(), 0.0F);
  std::fill(parameters.bias.begin(), parameters.bias.end(), 0.0F);
  apply_features_backward(c.x_view(), c.map, c.dphi_view(), {}, parameters.parameters(c));
  EXPECT_TRUE(same_bits(parameters.sigma, all.sigma)) << c.text();
  EXPECT_TRUE(same_bits(parameters.weight, all.weight)) << c.text();
  EXPECT_TRUE(same_bits(parameters.bias, all.bias)) << c.text();
  std::vector<float> dx(c.x.size(), kNan);
  apply_features_backward(c.x_view(), c.map, c.dphi_view(), MutView4(dx.data(), c.shape));
  EXPECT_TRUE(same_bits(dx, all.x)) << c.text();
}

TEST(ApplyFeatures, NamesWhatDoesNotFit) {
  const FeatureCase c(MapKind::trig, 4, 6, 7, 1, 4, 2);
  std::vector<float> floats(1000);
  const MutView4 phi(floats.data(), c.phi_shape), dx(floats.data(), c.shape);
  const auto refused = [&](const char* function, const char* argument, const auto& call) {
    const std::string message = refusal_of(call);
    EXPECT_EQ(message.rfind(std::string(function) + ": ", 0), 0U) << "for " << argument << ": " << message;
    EXPECT_NE(message.find(argument), std::string::npos) << message;
  };
  const char* forward = "apply_features";
  refused(forward, "x has", [&] { apply_features(c.x_view().slice(2, 0, 3), c.map, phi); });
  refused(forward, "x has", [&] { apply_features(c.x_view().slice(3, 0, 5), c.map, phi); });
  refused(forward, "phi", [&] { apply_features(c.x_view(), c.map, phi.slice(3, 0, 5)); });
  refused(forward, "phi", [&] { apply_features(c.x_view(), c.map, MutView4()); });
  const std::vector<double> wrong(1000);
  refused(forward, "x has", [&] { apply_features(View4(wrong.data(), c.shape), c.map, phi); });
  const char* backward = "apply_features_backward";
  refused(backward, "x has", [&] { apply_features_backward(c.x_view().slice(3, 0, 5), c.map, c.dphi_view(), dx); });
  refused(backward, "dphi", [&] { apply_features_backward(c.x_view(), c.map, c.dphi_view().slice(1, 0, 3), dx); });
  refused(backward, "dx", [&] { apply_features_backward(c.x_view(), c.map, c.dphi_view(), dx.slice(3, 0, 5)); });
  refused(backward, "sigma", [&] {
    apply_features_backward(c.x_view(), c.map, c.dphi_view(), dx, {.sigma = MutView2(floats.data(), {1, 6})});
  });
  refused(backward, "bias", [&] {
    apply_features_backward(c.x_view(), c.map, c.dphi_view(), dx, {.bias = MutView2(floats.data(), {2, 7})});
  });
}

}  // namespace
}  // namespace raffia::internal::linear_tests
