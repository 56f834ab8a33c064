// Products of two matrices in any layout: against the twin on every ISA, and bit for bit against themselves however they are cut.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "estimators/shared/products.h"
#include "reference/layers.h"
#include "support/arrays.h"

namespace raffia::internal {
namespace {

// [rows, columns], stored by rows or by columns. With a gap, what is between rows is NaN.
struct Matrix {
  Matrix(int64_t rows, int64_t columns, bool turned, int64_t gap, uint64_t seed)
      : shape{rows, columns}, strides{turned ? Extents<2>{1, rows + gap} : Extents<2>{columns + gap, 1}} {
    values.assign(static_cast<size_t>((turned ? columns : rows) * ((turned ? rows : columns) + gap)), kNan);
    const std::vector<float> drawn = normals(static_cast<size_t>(rows * columns), seed);
    for (int64_t i = 0; i < rows * columns; ++i) {
      values[static_cast<size_t>(i / columns * strides[0] + i % columns * strides[1])] = drawn[static_cast<size_t>(i)];
    }
  }
  View2 view() const { return View2(values.data(), shape, strides); }

  Extents<2> shape, strides;
  std::vector<float> values;
};

constexpr int64_t kGap = 3;

struct Case {
  int64_t m, k, n;
  bool a_turned, b_turned, biased;
  std::string text() const {
    return fmt::format("[{}, {}] x [{}, {}]{}{}{} isa {}", m, k, k, n, a_turned ? " a turned" : "", b_turned ? " b turned" : "",
                       biased ? " biased" : "", name_of(active_isa()));
  }
};

// c, of which the gaps between rows must not change. b by columns has no gaps.
std::vector<float> product(const Matrix& a, const Matrix& b, const std::vector<float>& bias, const RunOptions& run) {
  const int64_t rows = a.shape[0], columns = b.shape[1];
  std::vector<float> c(static_cast<size_t>(rows * (columns + kGap)), -1.0f);
  multiply({.a = a.view(),
            .b = b.view(),
            .bias = bias.empty() ? nullptr : bias.data(),
            .c = MutView2(c.data(), {rows, columns}, {columns + kGap, 1})},
           run);
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = columns; n < columns + kGap; ++n) EXPECT_EQ(c[static_cast<size_t>(m * (columns + kGap) + n)], -1.0f);
  }
  return c;
}

void expect_matches_reference(const Case& of) {
  const Matrix a(of.m, of.k, of.a_turned, kGap, 1), b(of.k, of.n, of.b_turned, of.b_turned ? 0 : kGap, 2);
  const std::vector<float> bias = normals(of.biased ? static_cast<size_t>(of.n) : 0, 3);
  const std::vector<float> found = product(a, b, bias, {.threads = 1});
  const View1 added = of.biased ? View1(bias.data(), {of.n}) : View1();
  std::vector<double> expected(static_cast<size_t>(of.m * of.n));
  twins::multiply(a.view(), b.view(), added, MutView2(expected.data(), {of.m, of.n}));
  for (int64_t m = 0; m < of.m; ++m) {
    for (int64_t n = 0; n < of.n; ++n) {
      // A product and a sum round once for each term, the bias twice more: relative to the sum of magnitudes.
      double magnitude = of.biased ? std::abs(added(n)) : 0.0;
      for (int64_t k = 0; k < of.k; ++k) magnitude += std::abs(a.view()(m, k) * b.view()(k, n));
      const double error = 1.01 * static_cast<double>(of.k + 3) * kUnit * magnitude;
      ASSERT_LE(std::abs(static_cast<double>(found[static_cast<size_t>(m * (of.n + kGap) + n)]) -
                         expected[static_cast<size_t>(m * of.n + n)]),
                error)
          << of.text() << " at " << m << ", " << n;
    }
  }
}

// Blocks have 256 columns of b and 256 terms, panels 16 columns, tiles up to 16 rows.
TEST(Multiply, EqualsReferenceInEveryLayout) {
  for_each_isa([] {
    for (bool a_turned : {false, true}) {
      for (bool b_turned : {false, true}) {
        for (int64_t m : {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 33})
          expect_matches_reference({m, 40, 35, a_turned, b_turned, true});
        for (int64_t k : {1, 2, 15, 16, 17, 255, 256, 257, 513}) expect_matches_reference({9, k, 35, a_turned, b_turned, true});
        for (int64_t n : {1, 2, 15, 16, 17, 32, 33, 255, 257, 300}) {
          expect_matches_reference({11, 20, n, a_turned, b_turned, n % 2 == 0});
        }
      }
    }
  });
}

TEST(Multiply, ThreadsChangeNoBit) {
  const std::unique_ptr<Executor> pool = make_thread_pool(3);
  for (bool turned : {false, true}) {
    const Matrix a(301, 130, turned, kGap, 1), b(130, 523, !turned, 0, 2);
    const std::vector<float> alone = product(a, b, {}, {.threads = 1, .executor = pool.get()});
    for (int threads : {2, 3}) EXPECT_TRUE(same_bits(product(a, b, {}, {.threads = threads, .executor = pool.get()}), alone));
  }
}

TEST(Multiply, RowsHaveTheSameBitsInAnyNumberOfThem) {
  for_each_isa([] {
    const Matrix a(50, 270, false, kGap, 1), b(270, 40, false, kGap, 2);
    const std::vector<float> all = product(a, b, {}, {.threads = 1});
    for (int64_t rows : {1, 7, 8, 23, 24, 49}) {
      std::vector<float> some(static_cast<size_t>(rows * (40 + kGap)), -1.0f);
      multiply({.a = a.view().slice(0, 0, rows), .b = b.view(), .c = MutView2(some.data(), {rows, 40}, {40 + kGap, 1})});
      EXPECT_TRUE(same_bits(some, std::span(all).first(some.size()))) << rows;
    }
  });
}

// [m, k] x [k, n] in parts of k, around the 256 terms of a block.
TEST(Multiply, AccumulatedPartsHaveTheBitsOfTheWhole) {
  for_each_isa([] {
    for (const bool turned : {false, true}) {
      const Matrix a(37, 700, turned, kGap, 1), b(700, 300, false, kGap, 2);
      const std::vector<float> whole = product(a, b, {}, {.threads = 1});
      std::vector<float> parts(whole.size(), -1.0f);
      const MutView2 c(parts.data(), {37, 300}, {300 + kGap, 1});
      int64_t begin = 0;
      for (const int64_t count : {1, 256, 0, 300, 143}) {
        multiply({.a = a.view().slice(1, begin, count), .b = b.view().slice(0, begin, count), .c = c, .accumulates = begin > 0},
                 {.threads = 1});
        begin += count;
      }
      EXPECT_TRUE(same_bits(parts, whole)) << turned;
    }
  });
}

TEST(Multiply, NoTermsGiveTheBiasAndNothingIsNoWork) {
  float c[] = {kNan, kNan, kNan, kNan};
  const float bias[] = {2, 3}, none[] = {kNan};
  multiply({.a = View2(none, {2, 0}), .b = View2(none, {0, 2}), .bias = bias, .c = MutView2(c, {2, 2})});
  EXPECT_TRUE(same_bits(c, std::vector<float>{2, 3, 2, 3}));
  multiply({.a = View2(none, {0, 1}), .b = View2(none, {1, 1}), .c = MutView2(c, {0, 1})});
  EXPECT_EQ(c[0], 2);
}

TEST(Multiply, RefusesWhatDoesNotFit) {
  std::vector<float> values(64);
  const auto view = [&](int64_t rows, int64_t columns, const Extents<2>& strides) {
    return MutView2(values.data(), {rows, columns}, strides);
  };
  const auto refusal = [&](const MatrixProduct& product) { return refusal_of([&] { multiply(product); }); };
  const MutView2 good = view(2, 2, {2, 1});
  EXPECT_EQ(refusal({.a = good, .b = view(3, 2, {2, 1}), .c = good}),
            "multiply: b has shape [3, 2], expected [2, 2] (columns of a)");
  EXPECT_EQ(refusal({.a = good, .b = good, .c = view(3, 2, {2, 1})}),
            "multiply: c has shape [3, 2], expected [2, 2] (rows of a, columns of b)");
  EXPECT_EQ(refusal({.a = view(2, 2, {4, 2}), .b = good, .c = good}),
            "multiply: elements of a are 4 and 2 apart, expected 1 along an axis");
  EXPECT_EQ(refusal({.a = good, .b = view(2, 2, {1, 3}), .c = good}),
            "multiply: elements of b are 1 and 3 apart, expected 1 along the rows, or columns side by side");
  EXPECT_EQ(refusal({.a = good, .b = good, .c = view(2, 2, {1, 2})}), "multiply: columns of c are 2 elements apart, expected 1");
}

}  // namespace
}  // namespace raffia::internal
