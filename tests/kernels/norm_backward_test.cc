// Gradients of norms against their twins, on every ISA, at lengths around those of vectors. Rows end in NaN that must not be
// read.
#include "kernels/norm_backward.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "reference/layers.h"
#include "support/arrays.h"

namespace raffia::internal {
namespace {

constexpr int64_t kColumns[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 100, 512};
constexpr int64_t kRowCount = 5, kGap = 3;
constexpr float kEps = 1e-5f;

// Rows with NaN between them.
std::vector<float> rows_of(int64_t columns, uint64_t seed, float mean = 0) {
  const std::vector<float> drawn = normals(static_cast<size_t>(kRowCount * columns), seed, mean);
  std::vector<float> values(static_cast<size_t>(kRowCount * (columns + kGap)), kNan);
  for (int64_t t = 0; t < kRowCount; ++t)
    std::copy_n(drawn.begin() + t * columns, columns, values.begin() + t * (columns + kGap));
  return values;
}
View2 view_of(const std::vector<float>& rows, int64_t columns) {
  return View2(rows.data(), {kRowCount, columns}, {columns + kGap, 1});
}
MutView2 view_of(std::vector<float>& rows, int64_t columns) {
  return MutView2(rows.data(), {kRowCount, columns}, {columns + kGap, 1});
}

struct Case {
  explicit Case(int64_t count, bool centred) : columns(count), is_centred(centred) {
    const auto size = static_cast<size_t>(columns);
    x = rows_of(columns, 1, 0.5f), dy = rows_of(columns, 2), added = rows_of(columns, 3), dx = rows_of(columns, 9);
    weight = normals(size, 4), dweight = normals(size, 5), dbias = normals(size, 6);
  }
  NormGradients of(bool adds) {
    return {.x = view_of(std::as_const(x), columns),
            .weight = weight,
            .eps = kEps,
            .dy = view_of(std::as_const(dy), columns),
            .added = adds ? view_of(std::as_const(added), columns) : View2(),
            .dx = view_of(dx, columns),
            .dweight = dweight,
            .dbias = is_centred ? std::span(dbias) : std::span<float>()};
  }
  void run(bool adds) { is_centred ? layer_norm_backward(of(adds)) : rms_norm_backward(of(adds)); }

  int64_t columns;
  bool is_centred;
  std::vector<float> x, dy, added, dx, weight, dweight, dbias;
};

void expect_matches_reference(int64_t columns, bool is_centred, bool adds) {
  Case made(columns, is_centred);
  const auto size = static_cast<size_t>(columns);
  std::vector<double> dx(size * kRowCount), dweight(made.dweight.begin(), made.dweight.end()),
      dbias(made.dbias.begin(), made.dbias.end());
  const MutView2 expected(dx.data(), {kRowCount, columns});
  const View2 x = view_of(std::as_const(made.x), columns), dy = view_of(std::as_const(made.dy), columns),
              added = view_of(std::as_const(made.added), columns);
  const View1 weight(made.weight.data(), {columns});
  const MutView1 sums(dweight.data(), {columns});
  if (is_centred) {
    twins::layer_norm_backward(x, weight, kEps, dy, expected, sums, MutView1(dbias.data(), {columns}));
  } else {
    twins::rms_norm_backward(x, weight, kEps, dy, expected, sums);
  }
  made.run(adds);

  std::vector<double> weight_error(size, 0), bias_error(size, 0);
  for (int64_t t = 0; t < kRowCount; ++t) {
    const double count = static_cast<double>(columns);
    double mean = 0, spread = 0, size_x = 0, size_g = 0, size_gn = 0;
    for (int64_t i = 0; i < columns; ++i) {
      mean += is_centred ? x(t, i) / count : 0.0;
      size_x += is_centred ? std::abs(x(t, i)) / count : 0.0;
    }
    for (int64_t i = 0; i < columns; ++i) spread += std::pow(x(t, i) - mean, 2) / count;
    const double inverse = 1 / std::sqrt(spread + kEps);
    // The mean is off by E roundings of what is summed, n by that and, relatively, by E roundings of the variance; then a few
    // more.
    const auto n_error = [&](int64_t i) {
      const double n = std::abs(x(t, i) - mean) * inverse, mean_error = (count + 2) * kUnit * size_x * inverse;
      return mean_error * (1 + n + mean_error * n) + (count + 12) * kUnit * n;
    };
    const auto g = [&](int64_t i) { return std::abs(dy(t, i) * weight(i)); };
    double gn_error = 0;
    for (int64_t i = 0; i < columns; ++i) {
      const double n = std::abs(x(t, i) - mean) * inverse;
      size_g += g(i) / count, size_gn += g(i) * n / count, gn_error += g(i) * n_error(i) / count;
    }
    gn_error += (count + 4) * kUnit * size_gn;
    for (int64_t i = 0; i < columns; ++i) {
      const double n = std::abs(x(t, i) - mean) * inverse, more = adds ? added(t, i) : 0.0;
      const double terms = g(i) + (is_centred ? size_g : 0.0) + n * size_gn;
      const double mean_error = (count + 2) * kUnit * size_x * inverse;
      const double relative = (count + 12) * kUnit + mean_error * mean_error;  // of the inverse
      const double error = inverse * (relative * terms + (is_centred ? (count + 4) * kUnit * size_g : 0.0) +
                                      n_error(i) * size_gn + n * gn_error + 8 * kUnit * terms) +
                           2 * kUnit * std::abs(more);
      const double found = view_of(std::as_const(made.dx), columns)(t, i);
      ASSERT_LE(std::abs(found - expected(t, i) - more), 1.01 * error + 1e-30) << fmt::format(
          "{} columns, centred {}, added {}, isa {}, at {}, {}", columns, is_centred, adds, name_of(active_isa()), t, i);
      const auto at = static_cast<size_t>(i);
      weight_error[at] += std::abs(dy(t, i)) * (n_error(i) + (kRowCount + 2) * kUnit * n);
      bias_error[at] += (kRowCount + 2) * kUnit * std::abs(dy(t, i));
    }
    for (int64_t gap = 0; gap < kGap; ++gap) {
      EXPECT_TRUE(std::isnan(made.dx[static_cast<size_t>(t * (columns + kGap) + columns + gap)]));
    }
  }
  const std::vector<float> weight_before = normals(size, 5), bias_before = normals(size, 6);
  for (size_t i = 0; i < size; ++i) {
    const auto held = [](float before) { return (kRowCount + 2) * kUnit * std::abs(static_cast<double>(before)); };
    EXPECT_LE(std::abs(static_cast<double>(made.dweight[i]) - dweight[i]), 1.01 * (weight_error[i] + held(weight_before[i])))
        << columns;
    if (!is_centred) continue;
    EXPECT_LE(std::abs(static_cast<double>(made.dbias[i]) - dbias[i]), 1.01 * (bias_error[i] + held(bias_before[i]))) << columns;
  }
}

TEST(NormBackward, EqualsReference) {
  for_each_isa([] {
    for (const int64_t columns : kColumns) {
      for (const bool is_centred : {false, true}) {
        for (const bool adds : {false, true}) expect_matches_reference(columns, is_centred, adds);
      }
    }
  });
}

TEST(NormBackward, WorksInPlaceAndRowByRow) {
  for_each_isa([] {
    for (const bool is_centred : {false, true}) {
      Case whole(33, is_centred), in_place(33, is_centred), cut(33, is_centred);
      whole.run(true);
      NormGradients of = in_place.of(true);
      of.dx = view_of(in_place.dy, 33);
      is_centred ? layer_norm_backward(of) : rms_norm_backward(of);
      for (int64_t t = 0; t < kRowCount; ++t) {
        NormGradients row = cut.of(true);
        row.x = row.x.slice(0, t, 1), row.dy = row.dy.slice(0, t, 1), row.added = row.added.slice(0, t, 1),
        row.dx = row.dx.slice(0, t, 1);
        is_centred ? layer_norm_backward(row) : rms_norm_backward(row);
      }
      for (int64_t t = 0; t < kRowCount; ++t) {
        const auto row = [t](const std::vector<float>& all) {
          return std::span(all).subspan(static_cast<size_t>(t * (33 + kGap)), 33);
        };
        EXPECT_TRUE(same_bits(row(whole.dx), row(in_place.dy)));
        EXPECT_TRUE(same_bits(row(whole.dx), row(cut.dx)));
      }
      EXPECT_TRUE(same_bits(whole.dweight, cut.dweight));
      EXPECT_TRUE(same_bits(whole.dbias, cut.dbias));
    }
  });
}

TEST(NormBackward, RefusesWhatDoesNotFit) {
  Case made(4, true);
  NormGradients of = made.of(false);
  of.dweight = of.dweight.first(3);
  EXPECT_EQ(refusal_of([&] { layer_norm_backward(of); }),
            "layer_norm_backward: weight has 4 elements, dweight 3, dbias 4, expected 4 (columns of x), for dbias also 0");
  of = made.of(false);
  of.dy = of.dy.slice(0, 0, 2);
  EXPECT_EQ(refusal_of([&] { rms_norm_backward(of); }), "rms_norm_backward: dy has shape [2, 4], expected [5, 4] (shape of x)");
}

}  // namespace
}  // namespace raffia::internal
