// Arrays of doubles with seeded contents, and derivatives by finite differences, for the tests of the twins.
#ifndef RAFFIA_TESTS_REFERENCE_ARRAYS_H_
#define RAFFIA_TESTS_REFERENCE_ARRAYS_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "raffia/reference.h"

namespace raffia::reference {

// Uniform numbers, the same with every standard library.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : engine_(seed) {}
  double between(double low, double high) { return low + (high - low) * static_cast<double>(engine_() >> 11) * 0x1p-53; }
  void fill(std::span<double> values, double low, double high) {
    for (double& value : values) value = between(low, high);
  }

 private:
  std::mt19937_64 engine_;
};

template <size_t Rank>
struct Array {
  Array() = default;
  explicit Array(const Extents<Rank>& of) : shape(of) {
    size_t size = 1;
    for (int64_t extent : shape) size *= static_cast<size_t>(extent);
    values.resize(size);
  }
  Array(const Extents<Rank>& of, Numbers& numbers, double low = -1, double high = 1) : Array(of) {
    numbers.fill(values, low, high);
  }
  View<Rank> view() const { return View<Rank>(values.data(), shape); }
  MutView<Rank> mut() { return MutView<Rank>(values.data(), shape); }

  Extents<Rank> shape{};
  std::vector<double> values;
};

using Array2 = Array<2>;
using Array3 = Array<3>;
using Array4 = Array<4>;

inline double inner(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline double greatest_difference(std::span<const double> a, std::span<const double> b) {
  EXPECT_EQ(a.size(), b.size());
  double greatest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (std::isnan(difference)) return difference;
    greatest = std::max(greatest, difference);
  }
  return greatest;
}

// Compares `gradient` with the derivatives of `loss` in `values`, by the five-point rule
//   f' = (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h.
// Truncation is 4 h^4 f^(5) / 5!. A function whose nearest singularity is r away has f^(5) / 5! of about |f| / r^5, so at h =
// 1e-4 and r >= 0.1 that is 4e-11 |f|. Rounding of the loss, 1e-15 or so for these sizes times a conditioning below 100, is
// divided by h: 1e-9. The tolerance of 1e-7, relative to the greatest entry, leaves room for |f| of about 10.
inline void expect_derivatives(const std::string& name, std::span<double> values, std::span<const double> gradient,
                               const std::function<double()>& loss, double h = 1e-4) {
  ASSERT_EQ(values.size(), gradient.size()) << name;
  double scale = 1;
  for (double entry : gradient) scale = std::max(scale, std::abs(entry));
  for (size_t i = 0; i < values.size(); ++i) {
    const double at = values[i];
    const auto moved = [&](double by) {
      values[i] = at + by;
      return loss();
    };
    const double derivative = (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h);
    values[i] = at;
    EXPECT_NEAR(gradient[i], derivative, 1e-7 * scale) << name << " " << i;
  }
}

constexpr MapKind kAllKinds[] = {MapKind::identity,  MapKind::trig, MapKind::arccos, MapKind::positive,
                                 MapKind::positive2, MapKind::elu,  MapKind::relu};

// A map of any kind with parameters away from their initial values: sigma in [0.4, 0.9], which also keeps the denominators of the
// signed maps away from 0.
inline Map any_map(MapKind kind, int64_t dim, int64_t count, int64_t heads) {
  Numbers numbers(17);
  if (kind == MapKind::identity) return Map(FeatureMap::identity(dim, heads));
  if (kind == MapKind::elu) return Map(FeatureMap::elu(dim, heads));
  if (kind == MapKind::relu) {
    std::vector<float> weight(static_cast<size_t>(heads * count * dim)), bias(static_cast<size_t>(heads * count));
    for (float& value : weight) value = static_cast<float>(numbers.between(-1, 1));
    for (float& value : bias) value = static_cast<float>(numbers.between(0, 1));
    return Map(FeatureMap::relu(View3(weight.data(), {heads, count, dim}), View2(bias.data(), {heads, count})));
  }
  Map map(FeatureMap::random(kind, {.dim = dim, .count = count, .heads = heads, .seed = 5}));
  numbers.fill(map.sigma, 0.4, 0.9);
  return map;
}

}  // namespace raffia::reference

#endif  // RAFFIA_TESTS_REFERENCE_ARRAYS_H_
