// The small operations of a layer against their twins, on every ISA, at lengths around those of vectors. Rows end in NaN that
// must not be read, outputs in numbers that must not change.
#include "kernels/layer_ops.h"

#include <gtest/gtest.h>

#include <functional>

#include "reference/layers.h"
#include "support/arrays.h"

namespace raffia::internal {
namespace {

constexpr int64_t kColumns[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100, 512};
constexpr int64_t kGap = 3;

// Rows with a gap between them.
struct Matrix {
  Matrix(int64_t row_count, int64_t column_count, float filling = kNan)
      : rows(row_count), columns(column_count), values(static_cast<size_t>(rows * (columns + kGap)), filling) {}
  static Matrix random(int64_t rows, int64_t columns, uint64_t seed, float mean = 0.0f, float scale = 1.0f) {
    Matrix matrix(rows, columns);
    const std::vector<float> drawn = normals(static_cast<size_t>(rows * columns), seed, mean, scale);
    for (int64_t t = 0; t < rows; ++t) std::copy_n(drawn.begin() + t * columns, columns, matrix.row(t));
    return matrix;
  }

  float* row(int64_t t) { return values.data() + t * (columns + kGap); }
  Extents<2> shape() const { return {rows, columns}; }
  View2 view() const { return View2(values.data(), shape(), {columns + kGap, 1}); }
  MutView2 out() { return MutView2(values.data(), shape(), {columns + kGap, 1}); }

  int64_t rows, columns;
  std::vector<float> values;
};

// In double, row-major.
struct Expected {
  explicit Expected(const Matrix& like) : shape(like.shape()), values(size_of_shape(shape)) {}
  MutView2 out() { return MutView2(values.data(), shape); }
  double operator()(int64_t t, int64_t i) const { return values[static_cast<size_t>(t * shape[1] + i)]; }

  Extents<2> shape;
  std::vector<double> values;
};

using Op = std::function<void(View2 x, MutView2 y)>;

// Computes y from x; checks that the gaps are untouched, that rows alone give the same bits, and that y may be x.
Matrix run(const Op& op, Matrix x) {
  Matrix y(x.rows, x.columns, -1.0f);
  op(x.view(), y.out());
  for (int64_t t = 0; t < y.rows; ++t) {
    for (int64_t i = 0; i < kGap; ++i) EXPECT_EQ(y.row(t)[y.columns + i], -1.0f);
    std::vector<float> alone(static_cast<size_t>(y.columns));
    op(x.view().slice(0, t, 1), MutView2(alone.data(), {1, y.columns}));
    EXPECT_TRUE(same_bits(alone, std::span(y.row(t), alone.size()))) << "row " << t << " of " << y.columns << " columns";
  }
  op(x.view(), x.out());
  for (int64_t t = 0; t < y.rows; ++t) {
    const size_t count = static_cast<size_t>(y.columns);
    EXPECT_TRUE(same_bits(std::span(x.row(t), count), std::span(y.row(t), count))) << "in place";
  }
  return y;
}

double norm_of(const std::function<double(int64_t)>& term, int64_t columns) {
  double sum = 0;
  for (int64_t i = 0; i < columns; ++i) sum += term(i);
  return sum;
}

TEST(LayerNorm, EqualsReference) {
  for_each_isa([] {
    for (int64_t columns : kColumns) {
      for (bool biased : {false, true}) {
        const Matrix x = Matrix::random(3, columns, 1, 2.0f, 0.5f);
        const std::vector<float> weight = normals(static_cast<size_t>(columns), 2);
        const std::vector<float> bias = normals(biased ? static_cast<size_t>(columns) : 0, 3);
        const Matrix y = run([&](View2 in, MutView2 out) { layer_norm(in, weight, bias, 1e-5f, out); }, x);
        Expected expected(x);
        twins::layer_norm(x.view(), View1(weight.data(), {columns}), biased ? View1(bias.data(), {columns}) : View1(), 1e-5f,
                          expected.out());
        for (int64_t t = 0; t < 3; ++t) {
          const double count = static_cast<double>(columns);
          const double mean = norm_of([&](int64_t i) { return x.view()(t, i); }, columns) / count;
          const double size = norm_of([&](int64_t i) { return std::abs(x.view()(t, i)); }, columns) / count;
          const double variance = norm_of([&](int64_t i) { return std::pow(x.view()(t, i) - mean, 2); }, columns) / count;
          for (int64_t i = 0; i < columns; ++i) {
            // The mean is off by E roundings of what is summed; the variance, relatively, by E and a few, and by what the
            // error of the mean adds; then a handful of roundings.
            const double mean_error = (count + 1) * kUnit * size;
            const double inverse = 1.0 / std::sqrt(variance + 1e-5);
            const double normal = std::abs(x.view()(t, i) - mean) * inverse;
            const double error = (mean_error + kUnit * size) * inverse * (1.0 + normal) +
                                 mean_error * mean_error * inverse * inverse * normal + (count + 12) * kUnit * normal;
            const auto at = static_cast<size_t>(i);
            const double bound = 1.01 * (error * std::abs(static_cast<double>(weight[at])) +
                                         2 * kUnit * (biased ? std::abs(static_cast<double>(bias[at])) : 0.0)) +
                                 1e-30;
            ASSERT_LE(std::abs(y.view()(t, i) - expected(t, i)), bound) << columns << " columns, at " << t << ", " << i;
          }
        }
      }
    }
  });
}

// E roundings in the sum, halved by the root, and a handful after it.
double rms_error(int64_t columns) { return (0.5 * static_cast<double>(columns) + 8) * kUnit; }

TEST(RmsNorm, EqualsReference) {
  for_each_isa([] {
    for (int64_t columns : kColumns) {
      const Matrix x = Matrix::random(3, columns, 4);
      const std::vector<float> weight = normals(static_cast<size_t>(columns), 5);
      const Matrix y = run([&](View2 in, MutView2 out) { rms_norm(in, weight, 1e-5f, out); }, x);
      Expected expected(x);
      twins::rms_norm(x.view(), View1(weight.data(), {columns}), 1e-5f, expected.out());
      for (int64_t t = 0; t < 3; ++t) {
        for (int64_t i = 0; i < columns; ++i) {
          ASSERT_LE(std::abs(y.view()(t, i) - expected(t, i)), rms_error(columns) * std::abs(expected(t, i))) << columns;
        }
      }
    }
  });
}

TEST(HeadNorm, IsTheRmsNormOfEachHead) {
  for_each_isa([] {
    for (int64_t dim : {1, 7, 16, 60, 64}) {
      const int64_t tokens = 4, heads = 3;
      const Matrix x = Matrix::random(tokens, heads * dim, 6);
      Matrix y(tokens, heads * dim, -1.0f), alone(tokens, dim);
      const std::vector<float> weight = normals(static_cast<size_t>(heads * dim), 7);
      const Extents<3> shape{tokens, heads, dim}, strides{heads * dim + kGap, dim, 1};
      head_norm(View3(x.values.data(), shape, strides), weight, 1e-6f, MutView3(y.values.data(), shape, strides));
      for (int64_t h = 0; h < heads; ++h) {
        rms_norm(x.view().slice(1, h * dim, dim),
                 std::span(weight).subspan(static_cast<size_t>(h * dim), static_cast<size_t>(dim)), 1e-6f, alone.out());
        for (int64_t t = 0; t < tokens; ++t) {
          const size_t count = static_cast<size_t>(dim);
          ASSERT_TRUE(same_bits(std::span(y.row(t) + h * dim, count), std::span(alone.row(t), count)));
        }
      }
    }
  });
}

TEST(Gelu, IsWithinItsBoundOverADenseGrid) {
  for_each_isa([] {
    const int64_t columns = 24007;
    Matrix x(1, columns);
    for (int64_t i = 0; i < columns; ++i) x.row(0)[i] = -12.0f + 0.001f * static_cast<float>(i);
    const Matrix y = run(gelu, x);
    Expected expected(x);
    twins::gelu(x.view(), expected.out());
    for (int64_t i = 0; i < columns; ++i) {
      const double found = y.view()(0, i), size = std::abs(x.view()(0, i));
      ASSERT_LE(std::abs(found - expected(0, i)), 1e-7 + kUnit * std::abs(expected(0, i))) << x.row(0)[i];
      // Small inputs keep their digits: 5 roundings of Phi, the fit, the product and the difference.
      if (size < 1.0) {
        ASSERT_LE(std::abs(found - expected(0, i)), 8 * kUnit * size) << x.row(0)[i];
      }
    }
  });
}

TEST(Gelu, KeepsExtremesAndNan) {
  for_each_isa([] {
    const std::vector<float> x = {0.0f, 1e30f, -1e30f, 7.0f, -7.0f, kNan, 1e-30f};
    std::vector<float> y(x.size());
    gelu(View2(x.data(), {1, 7}), MutView2(y.data(), {1, 7}));
    EXPECT_EQ(y[0], 0.0f);
    EXPECT_EQ(y[1], 1e30f);
    EXPECT_EQ(y[2], 0.0f);
    EXPECT_EQ(y[3], 7.0f);
    EXPECT_EQ(y[4], 0.0f);
    EXPECT_TRUE(std::isnan(y[5]));
    EXPECT_NEAR(y[6], 0.5e-30f, 1e-36f);
  });
}

TEST(Gelu, EqualsItselfAtEveryLength) {
  for_each_isa([] {
    for (int64_t columns : kColumns) run(gelu, Matrix::random(2, columns, 8));
  });
}

TEST(GeluBackward, IsWithinItsBoundOverADenseGrid) {
  for_each_isa([] {
    const int64_t columns = 24007;
    Matrix x(1, columns), ones(1, columns);
    for (int64_t i = 0; i < columns; ++i) x.row(0)[i] = -12.0f + 0.001f * static_cast<float>(i);
    for (int64_t i = 0; i < columns; ++i) ones.row(0)[i] = 1.0f;
    const Matrix slope = run([&](View2 dy, MutView2 dx) { gelu_backward(x.view(), dy, dx); }, ones);
    Expected expected(x);
    twins::gelu_backward(x.view(), ones.view(), expected.out());
    for (int64_t i = 0; i < columns; ++i) ASSERT_LE(std::abs(slope.view()(0, i) - expected(0, i)), 3e-7) << x.row(0)[i];
  });
}

TEST(GeluBackward, EqualsReferenceAtEveryLengthAndKeepsExtremes) {
  for_each_isa([] {
    for (int64_t columns : kColumns) {
      const Matrix x = Matrix::random(1, columns, 8), dy = Matrix::random(1, columns, 9);
      const Matrix dx = run([&](View2 from, MutView2 to) { gelu_backward(x.view(), from, to); }, dy);
      Expected expected(x);
      twins::gelu_backward(x.view(), dy.view(), expected.out());
      for (int64_t i = 0; i < columns; ++i) {
        ASSERT_LE(std::abs(dx.view()(0, i) - expected(0, i)), (3e-7 + 2 * kUnit) * std::abs(dy.view()(0, i)));
      }
    }
    const std::vector<float> x = {1e30f, -1e30f, 7.0f, -7.0f, 0.0f}, ones(x.size(), 1.0f);
    std::vector<float> slope(x.size());
    gelu_backward(View2(x.data(), {1, 5}), View2(ones.data(), {1, 5}), MutView2(slope.data(), {1, 5}));
    EXPECT_TRUE(same_bits(slope, std::vector<float>{1, 0, 1, 0, 0.5f}));
    float nan_slope = 0.0f;
    gelu_backward(View2(&kNan, {1, 1}), View2(ones.data(), {1, 1}), MutView2(&nan_slope, {1, 1}));
    EXPECT_TRUE(std::isnan(nan_slope));
  });
}

TEST(Swiglu, EqualsReference) {
  for_each_isa([] {
    for (int64_t columns : kColumns) {
      const Matrix gate = Matrix::random(3, columns, 9, 0.0f, 20.0f);
      const Matrix up = Matrix::random(3, columns, 10);
      Matrix y(3, columns, -1.0f);
      Expected expected(gate);
      swiglu(gate.view(), up.view(), y.out());
      twins::swiglu(gate.view(), up.view(), expected.out());
      for (int64_t t = 0; t < 3; ++t) {
        for (int64_t i = 0; i < columns; ++i) {
          // 4 of e^x, then a sum, a quotient and two products. e^x is 0 below -87.3.
          ASSERT_LE(std::abs(y.view()(t, i) - expected(t, i)), 10 * kUnit * std::abs(expected(t, i)) + 1e-35);
        }
        for (int64_t i = 0; i < kGap; ++i) EXPECT_EQ(y.row(t)[columns + i], -1.0f);
      }
    }
  });
}

TEST(SwigluBackward, EqualsReferenceAndMayOverwriteItsInputs) {
  for_each_isa([] {
    for (int64_t columns : kColumns) {
      Matrix gate = Matrix::random(3, columns, 9, 0.0f, 20.0f);
      gate.row(1)[0] = -1.2784645f;  // where the slope is 0: its terms cancel
      const Matrix up = Matrix::random(3, columns, 10), dy = Matrix::random(3, columns, 11);
      Matrix dgate(3, columns, -1.0f), dup(3, columns, -1.0f);
      Expected expected_gate(gate), expected_up(gate);
      swiglu_backward(gate.view(), up.view(), dy.view(), dgate.out(), dup.out());
      twins::swiglu_backward(gate.view(), up.view(), dy.view(), expected_gate.out(), expected_up.out());
      for (int64_t t = 0; t < 3; ++t) {
        for (int64_t i = 0; i < columns; ++i) {
          const double g = gate.view()(t, i), sigmoid = 1 / (1 + std::exp(-g));
          const double terms = std::abs(dy.view()(t, i) * up.view()(t, i)) * sigmoid * (1 + std::abs(g) / (1 + std::exp(g)));
          // 4 of e^x, then a sum, a quotient and up to five products and sums. e^x is 0 below -87.3.
          ASSERT_LE(std::abs(dgate.view()(t, i) - expected_gate(t, i)), 16 * kUnit * terms + 1e-35) << g;
          ASSERT_LE(std::abs(dup.view()(t, i) - expected_up(t, i)), 10 * kUnit * std::abs(expected_up(t, i)) + 1e-35) << g;
        }
        for (int64_t i = 0; i < kGap; ++i) {
          EXPECT_EQ(dgate.row(t)[columns + i], -1.0f);
          EXPECT_EQ(dup.row(t)[columns + i], -1.0f);
        }
        Matrix own_gate = gate, own_up = up;
        swiglu_backward(own_gate.view(), own_up.view(), dy.view(), own_gate.out(), own_up.out());
        const auto count = static_cast<size_t>(columns);
        EXPECT_TRUE(same_bits(std::span(own_gate.row(t), count), std::span(dgate.row(t), count)));
        EXPECT_TRUE(same_bits(std::span(own_up.row(t), count), std::span(dup.row(t), count)));
      }
    }
    const float gate[] = {kNan, 1e30f, -1e30f}, ones[] = {1, 1, 1};
    float dgate[3], dup[3];
    swiglu_backward(View2(gate, {1, 3}), View2(ones, {1, 3}), View2(ones, {1, 3}), MutView2(dgate, {1, 3}),
                    MutView2(dup, {1, 3}));
    EXPECT_TRUE(std::isnan(dgate[0]) && std::isnan(dup[0]));
    EXPECT_EQ(dgate[1], 1.0f);
    EXPECT_EQ(dup[1], 1e30f);
    EXPECT_EQ(dgate[2], 0.0f);
    EXPECT_EQ(dup[2], 0.0f);
  });
}

TEST(AddRows, AddsEachElement) {
  for_each_isa([] {
    for (int64_t columns : kColumns) {
      const Matrix x = Matrix::random(2, columns, 11), before = Matrix::random(2, columns, 12);
      Matrix y = before;
      add_rows(x.view(), y.out());
      for (int64_t t = 0; t < 2; ++t) {
        for (int64_t i = 0; i < columns; ++i) {
          ASSERT_EQ(y.view()(t, i), static_cast<double>(static_cast<float>(x.view()(t, i) + before.view()(t, i))));
        }
      }
    }
  });
}

TEST(Rotary, EqualsReferenceAtAnyPosition) {
  for_each_isa([] {
    for (int64_t dim : {2, 6, 16, 34, 64}) {
      for (int64_t position : {int64_t{0}, int64_t{131072}, int64_t{10'000'000}}) {
        const int64_t tokens = 3, heads = 2;
        const Matrix x = Matrix::random(tokens, heads * dim, 13);
        const Extents<3> shape{tokens, heads, dim}, strides{heads * dim + kGap, dim, 1};
        const View3 in(x.values.data(), shape, strides);
        const Rotary rotary(dim, 10000.0);
        std::vector<float> turns(static_cast<size_t>(tokens * dim)), y(size_of_shape(shape));
        std::vector<double> expected(y.size());
        for (int64_t t = 0; t < tokens; ++t) {
          rotary.fill(position + t, std::span(turns).subspan(static_cast<size_t>(t * dim), static_cast<size_t>(dim)));
        }
        rotate(in, View2(turns.data(), {tokens, dim}), MutView3(y.data(), shape));
        twins::rotary(in, position, 10000.0, MutView3(expected.data(), shape));
        for (int64_t t = 0, at = 0; t < tokens; ++t) {
          for (int64_t h = 0; h < heads; ++h) {
            for (int64_t i = 0; i < dim; ++i, ++at) {
              const int64_t other = i < dim / 2 ? i + dim / 2 : i - dim / 2;
              const double size = std::abs(in(t, h, i)) + std::abs(in(t, h, other));
              // Each of the two turns and its product round, and the sum does.
              ASSERT_LE(std::abs(static_cast<double>(y[static_cast<size_t>(at)]) - expected[static_cast<size_t>(at)]),
                        3 * kUnit * size)
                  << dim << " at position " << position;
            }
          }
        }
        std::vector<float> in_place = elements_of(View4(x.values.data(), {1, tokens, heads, dim}, {0, strides[0], dim, 1}));
        rotate(View3(in_place.data(), shape), View2(turns.data(), {tokens, dim}), MutView3(in_place.data(), shape));
        ASSERT_TRUE(same_bits(in_place, y));
      }
    }
  });
}

// Taps as model files hold them, [E, J], and the transpose that the kernel takes.
Matrix transposed(const Matrix& matrix) {
  Matrix result(matrix.columns, matrix.rows);
  for (int64_t r = 0; r < matrix.rows; ++r) {
    for (int64_t c = 0; c < matrix.columns; ++c) result.out().set(matrix.view()(r, c), c, r);
  }
  return result;
}

TEST(ShortConvolution, EqualsReferenceAndGoesOnWhereItStopped) {
  for_each_isa([] {
    for (int64_t taps : {1, 2, 4, 7}) {
      for (int64_t columns : {1, 5, 16, 33}) {
        const int64_t tokens = 11;
        const Matrix x = Matrix::random(tokens, columns, 14), weight = Matrix::random(columns, taps, 15);
        const Matrix by_tap = transposed(weight);
        const Matrix history = Matrix::random(taps - 1, columns, 16);
        Expected expected(x);
        twins::short_convolution(x.view(), weight.view(), history.view(), expected.out());
        Matrix whole(tokens, columns, -1.0f), after = history;
        short_convolution(x.view(), by_tap.view(), after.out(), whole.out());
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t c = 0; c < columns; ++c) {
            double size = 0;
            for (int64_t j = 0; j < taps; ++j) {
              const int64_t from = t - taps + 1 + j;
              size += std::abs(weight.view()(c, j) * (from < 0 ? history.view()(taps - 1 + from, c) : x.view()(from, c)));
            }
            ASSERT_LE(std::abs(whole.view()(t, c) - expected(t, c)), static_cast<double>(taps + 1) * kUnit * size);
          }
        }
        for (int64_t j = 0; j + 1 < taps; ++j) {
          for (int64_t c = 0; c < columns; ++c) ASSERT_EQ(after.view()(j, c), x.view()(tokens - taps + 1 + j, c));
        }
        // In parts of 0, 1, 2, .. tokens, in place.
        Matrix parts = x, between = history;
        for (int64_t t = 0, count = 0; t < tokens; t += count++) {
          count = std::min(count, tokens - t);
          short_convolution(parts.view().slice(0, t, count), by_tap.view(), between.out(), parts.out().slice(0, t, count));
        }
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t c = 0; c < columns; ++c) ASSERT_EQ(parts.view()(t, c), whole.view()(t, c)) << taps << " taps";
        }
      }
    }
  });
}

TEST(LayerOps, NoTokensAreNoWork) {
  float x = kNan, y = -1.0f;
  const std::vector<float> weight(4, 1.0f);
  const View2 in(&x, {0, 4});
  const MutView2 out(&y, {0, 4});
  layer_norm(in, weight, {}, 1e-5f, out);
  rms_norm(in, weight, 1e-5f, out);
  gelu(in, out);
  swiglu(in, in, out);
  swiglu_backward(in, in, in, out, out);
  add_rows(in, out);
  rotate(View3(&x, {0, 2, 2}), View2(&x, {0, 2}), MutView3(&y, {0, 2, 2}));
  EXPECT_EQ(y, -1.0f);
}

TEST(LayerOps, RefuseWhatDoesNotFit) {
  std::vector<float> x(8), y(8), weight(3);
  const View2 in(x.data(), {2, 4});
  const MutView2 out(y.data(), {2, 4});
  EXPECT_EQ(refusal_of([&] { rms_norm(in, weight, 1e-5f, out); }), "rms_norm: weight has 3 elements, expected 4 (columns of x)");
  EXPECT_EQ(refusal_of([&] { gelu(in, MutView2(y.data(), {4, 2})); }), "gelu: y has shape [4, 2], expected [2, 4] (shape of x)");
  EXPECT_EQ(refusal_of([&] {
              gelu(View2(x.data(), {2, 4}, {1, 2}), out);
            }),
            "gelu: columns of x are 2 elements apart, expected 1");
  EXPECT_EQ(refusal_of([] { Rotary(7, 10000.0); }), "Rotary: head_dim is 7, expected an even number");
}

}  // namespace
}  // namespace raffia::internal
