// Linear layers over stored weights: against the twin, and bit for bit against themselves however they are cut.
#include "estimators/shared/products.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/dispatch.h"
#include "reference/layers.h"
#include "support/arrays.h"

namespace raffia::internal {
namespace {

constexpr WeightType kTypes[] = {WeightType::f32, WeightType::bf16, WeightType::int8, WeightType::int4};

bool by_integers(WeightType type) { return format_of(type).by_integers; }

// Weights in their stored form, and what they stand for exactly. Stored bytes begin one element into an allocation that ends with
// them, so that no vector is aligned and AddressSanitizer sees what is read past the end; what surrounds x and y is NaN.
class Layer {
 public:
  Layer(WeightType type, int64_t rows, int64_t columns, bool biased, uint64_t seed = 1)
      : exact_(static_cast<size_t>(rows * columns)) {
    const std::vector<float> weights = normals(exact_.size(), seed, 0.0f, 0.5f);
    if (biased) bias_ = normals(static_cast<size_t>(rows), seed + 1);
    stored_ = store_weights("w", View2(weights.data(), {rows, columns}), type);
    const size_t offset = format_of(type).element_bytes;
    bytes_.assign(offset + stored_.elements.size(), std::byte{127});
    std::copy(stored_.elements.begin(), stored_.elements.end(), bytes_.begin() + static_cast<ptrdiff_t>(offset));
    matrix_ = stored_.matrix;
    matrix_.data = bytes_.data() + offset;
    // A stored element times its scale is exact in double: rows are read with a scale of 1.
    StoredWeights elements = stored_;
    const WeightFormat& format = format_of(type);
    const float one = 1.0f;
    const BFloat16 half_one = BFloat16::from_float(1.0f);
    for (size_t i = 0; i < elements.scales.size(); i += format.scale_bytes) {
      std::memcpy(elements.scales.data() + i, format.scale_bytes == 4 ? static_cast<const void*>(&one) : &half_one,
                  format.scale_bytes);
    }
    elements.matrix.data = elements.elements.data();
    elements.matrix.scales = elements.scales.data();
    std::vector<float> row(static_cast<size_t>(columns));
    for (int64_t r = 0; r < rows; ++r) {
      copy_row(elements.matrix, r, row);
      for (int64_t c = 0; c < columns; ++c) {
        double scale = 1;
        if (format.scales == WeightFormat::Scales::row) scale = matrix_.row_scales()[r];
        if (format.scales == WeightFormat::Scales::group) scale = matrix_.group_scales(r)[c / format.group].to_float();
        exact_[static_cast<size_t>(r * columns + c)] = scale * row[static_cast<size_t>(c)];
      }
    }
  }
  Layer(const Layer&) = delete;

  const WeightMatrix& weights() const { return matrix_; }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }
  View1 bias_view() const { return bias_.empty() ? View1() : View1(bias_.data(), {matrix_.rows}); }
  View2 exact() const { return View2(exact_.data(), {matrix_.rows, matrix_.columns}); }
  std::string text(int64_t tokens) const {
    return fmt::format("{} [{} x {}] -> {} isa {}{}", name_of(matrix_.type), tokens, matrix_.columns, matrix_.rows,
                       name_of(active_isa()), vnni_is_active() ? " with VNNI" : "");
  }

 private:
  StoredWeights stored_;
  std::vector<std::byte> bytes_;
  WeightMatrix matrix_;
  std::vector<float> bias_;
  std::vector<double> exact_;
};

// Rows of x end in NaN that must not be read, and rows of y in numbers that must not change.
constexpr int64_t kGap = 5;
std::vector<float> activations(int64_t tokens, int64_t columns, uint64_t seed = 7) {
  std::vector<float> x(static_cast<size_t>(tokens * (columns + kGap)), kNan);
  const std::vector<float> values = normals(static_cast<size_t>(tokens * columns), seed);
  for (int64_t n = 0; n < tokens; ++n) std::copy_n(values.begin() + n * columns, columns, x.begin() + n * (columns + kGap));
  return x;
}

View2 rows_with_gap(const std::vector<float>& x, int64_t tokens, int64_t columns) {
  return View2(x.data(), {tokens, columns}, {columns + kGap, 1});
}

std::vector<float> product(const Layer& layer, View2 x, bool any_company = true) {
  const int64_t tokens = x.extent(0), rows = layer.weights().rows;
  std::vector<float> y(static_cast<size_t>(tokens * (rows + kGap)), -1.0f);
  const LinearTask task{.weights = layer.weights(),
                        .bias = layer.bias(),
                        .x = x,
                        .y = MutView2(y.data(), {tokens, rows}, {rows + kGap, 1}),
                        .any_company = any_company};
  linear(std::span(&task, 1), {.threads = 1});
  for (int64_t n = 0; n < tokens; ++n) {
    for (int64_t i = rows; i < rows + kGap; ++i) EXPECT_EQ(y[static_cast<size_t>(n * (rows + kGap) + i)], -1.0f);
  }
  return y;
}

// `values` are `tokens` rows with gaps.
void expect_matches_reference(const Layer& layer, std::span<const float> values, int64_t tokens, bool any_company) {
  const int64_t rows = layer.weights().rows, columns = layer.weights().columns;
  const View2 x(values.data(), {tokens, columns}, {columns + kGap, 1});
  const std::vector<float> found = product(layer, x, any_company);
  std::vector<double> expected(static_cast<size_t>(tokens * rows));
  // What products with integers multiply is part of their definition; how far it is from x is another test.
  std::vector<double> seen(static_cast<size_t>(tokens * columns));
  const MutView2 seen_view(seen.data(), {tokens, columns});
  if (by_integers(layer.weights().type)) {
    twins::quantized(x, seen_view);
  } else {
    for (int64_t n = 0; n < tokens; ++n) {
      for (int64_t i = 0; i < columns; ++i) seen_view.set(x(n, i), n, i);
    }
  }
  twins::linear(seen_view, layer.exact(), layer.bias_view(), MutView2(expected.data(), {tokens, rows}));
  for (int64_t n = 0; n < tokens; ++n) {
    for (int64_t o = 0; o < rows; ++o) {
      // A product and a sum round once for each column, the scale and the bias twice more: relative to the sum of magnitudes.
      // Integers round a product of scales, a product and a sum for each block of 32 columns, and the same at the end: a block's
      // two products and one sum are at most columns + 3 for any number of them.
      double magnitude = layer.bias() == nullptr ? 0.0 : std::abs(layer.bias_view()(o));
      for (int64_t i = 0; i < columns; ++i) magnitude += std::abs(View2(seen_view)(n, i) * layer.exact()(o, i));
      const double error = 1.01 * static_cast<double>(columns + 3) * kUnit * magnitude;
      ASSERT_LE(std::abs(static_cast<double>(found[static_cast<size_t>(n * (rows + kGap) + o)]) -
                         expected[static_cast<size_t>(n * rows + o)]),
                error)
          << layer.text(tokens) << " at " << n << ", " << o;
    }
  }
}

void expect_matches_reference(const Layer& layer, int64_t tokens, bool any_company = true) {
  expect_matches_reference(layer, activations(tokens, layer.weights().columns), tokens, any_company);
}

// AVX-512 has two variants of products with integers.
template <class Body>
void for_each_isa_and_type(const Body& body) {
  for_each_isa([&] {
    for (WeightType type : kTypes) body(type);
    if (!vnni_is_active()) return;
    allow_vnni(false);
    for (WeightType type : kTypes) {
      if (by_integers(type)) body(type);
    }
    allow_vnni(true);
  });
}

TEST(Linear, EqualsReferenceAtEveryNumberOfColumns) {
  for_each_isa_and_type([](WeightType type) {
    for (int64_t columns : {0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 511, 512, 513, 1031}) {
      const Layer layer(type, 13, columns, true);
      for (int64_t tokens : {1, 2, 3, 4, 26}) expect_matches_reference(layer, tokens);
    }
  });
}

TEST(Linear, EqualsReferenceAtEveryNumberOfRows) {
  for_each_isa_and_type([](WeightType type) {
    // 52 and 104 rows are a whole block of tiles for few tokens, of 4 and of 8 rows.
    for (int64_t rows : {1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 24, 25, 50, 51, 52, 53, 103, 104, 105, 121, 217}) {
      const Layer layer(type, rows, 40, rows % 2 == 0);
      for (int64_t tokens : {1, 2, 3, 5, 25}) expect_matches_reference(layer, tokens);
    }
  });
}

// Blocks of weights have 256 rows and 256 columns, panels 16 rows; 24 tokens are the first that use them.
TEST(Linear, TokensOfOneTextEqualTheReference) {
  for_each_isa_and_type([](WeightType type) {
    for (int64_t columns : {1, 15, 16, 17, 40, 255, 256, 257, 513}) {
      const Layer layer(type, 35, columns, true);
      for (int64_t tokens : {1, 23, 24, 26, 47}) expect_matches_reference(layer, tokens, false);
    }
    for (int64_t rows : {1, 2, 15, 16, 17, 31, 32, 33, 48, 127, 129, 255, 256, 257, 300}) {
      const Layer layer(type, rows, 40, rows % 2 == 0);
      for (int64_t tokens : {24, 25, 33}) expect_matches_reference(layer, tokens, false);
    }
    expect_matches_reference(Layer(type, 300, 513, true), 26, false);  // several blocks of both
  });
}

TEST(Linear, TokensOfOneTextHaveTheSameBitsInAnyNumberOfThem) {
  for_each_isa_and_type([](WeightType type) {
    const int64_t rows = 61, columns = 531, max = 120;
    const Layer layer(type, rows, columns, true);
    const std::vector<float> x = activations(max, columns);
    const std::vector<float> all = product(layer, rows_with_gap(x, max, columns), false);
    for (int64_t tokens : {24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 40, 97}) {
      for (int64_t first : {int64_t{0}, int64_t{5}, max - tokens}) {
        const std::vector<float> some = product(layer, rows_with_gap(x, max, columns).slice(0, first, tokens), false);
        const std::span<const float> expected = std::span(all).subspan(static_cast<size_t>(first * (rows + kGap)), some.size());
        ASSERT_TRUE(same_bits(some, expected)) << layer.text(tokens) << " from " << first;
      }
    }
  });
}

// 300 tokens are more than one block of them, 1031 columns more than two blocks.
TEST(Linear, TokensHaveTheSameBitsInAnyCompany) {
  for_each_isa_and_type([](WeightType type) {
    const int64_t rows = 29, columns = 1031, max = 300;
    const Layer layer(type, rows, columns, true);
    const std::vector<float> x = activations(max, columns);
    const std::vector<float> all = product(layer, rows_with_gap(x, max, columns));
    for (int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 23, 24, 25, 26, 27, 64, 70, 257}) {
      for (int64_t first : {int64_t{0}, max - tokens}) {
        const std::vector<float> some = product(layer, rows_with_gap(x, max, columns).slice(0, first, tokens));
        const std::span<const float> expected = std::span(all).subspan(static_cast<size_t>(first * (rows + kGap)), some.size());
        ASSERT_TRUE(same_bits(some, expected)) << layer.text(tokens) << " from " << first;
      }
    }
  });
}

TEST(Linear, EveryNumberOfTokensUpTo70HasTheSameBits) {
  for (WeightType type : kTypes) {
    const Layer layer(type, 14, 72, false);
    const std::vector<float> x = activations(70, 72);
    const std::vector<float> all = product(layer, rows_with_gap(x, 70, 72));
    for (int64_t tokens = 1; tokens < 70; ++tokens) {
      const std::vector<float> some = product(layer, rows_with_gap(x, tokens, 72));
      ASSERT_TRUE(same_bits(some, std::span(all).first(some.size()))) << layer.text(tokens);
    }
  }
}

void expect_same_bits_for_threads_and_tasks(WeightType type, int64_t tokens, bool any_company) {
  const std::unique_ptr<Executor> pool = make_thread_pool(3);
  const int64_t columns = 513;
  const Layer wide(type, 701, columns, true, 1), narrow(type, 5, columns, false, 2), middle(type, 350, columns, true, 3);
  const std::vector<float> x = activations(tokens, columns);
  const View2 rows = rows_with_gap(x, tokens, columns);
  const auto task = [&](const Layer& layer, std::vector<float>& y) {
    y.resize(static_cast<size_t>(tokens * layer.weights().rows));
    return LinearTask{layer.weights(), layer.bias(), rows, MutView2(y.data(), {tokens, layer.weights().rows}), any_company};
  };
  for (int threads : {1, 2, 3}) {
    std::vector<float> together[3], alone;
    const LinearTask tasks[] = {task(wide, together[0]), task(narrow, together[1]), task(middle, together[2])};
    linear(tasks, {.threads = threads, .executor = pool.get()});
    size_t i = 0;
    for (const Layer* layer : {&wide, &narrow, &middle}) {
      const LinearTask one = task(*layer, alone);
      linear(std::span(&one, 1), {.threads = 1, .executor = pool.get()});
      ASSERT_TRUE(same_bits(alone, together[i++])) << layer->text(tokens) << " threads " << threads;
    }
  }
}

TEST(Linear, ThreadsAndFusedTasksChangeNoBit) {
  for_each_isa_and_type([](WeightType type) {
    for (int64_t tokens : {1, 3, 40}) {
      for (bool any_company : {true, false}) expect_same_bits_for_threads_and_tasks(type, tokens, any_company);
    }
  });
}

TEST(Linear, IntegersHaveTheSameBitsOnEveryIsaAndInAnyCompany) {
  for (WeightType type : kTypes) {
    if (!by_integers(type)) continue;
    for (int64_t columns : {40, 512, 1300}) {
      const Layer layer(type, 37, columns, true);
      const std::vector<float> x = activations(30, columns);
      const std::vector<float> all = product(layer, rows_with_gap(x, 30, columns));
      for_each_isa_and_type([&](WeightType one) {
        if (one != type) return;
        for (int64_t tokens : {1, 2, 7, 30}) {
          for (bool any_company : {true, false}) {
            const std::vector<float> some = product(layer, rows_with_gap(x, tokens, columns), any_company);
            ASSERT_TRUE(same_bits(some, std::span(all).first(some.size()))) << layer.text(tokens);
          }
        }
      });
    }
  }
}

// A block of 32 columns each: very large, small, so small that it counts as 0, zeros, and numbers halfway between two steps.
TEST(Linear, ActivationsOfAnySizeEqualTheReference) {
  constexpr int64_t kColumns = 32, kCount = 7;
  for_each_isa_and_type([](WeightType type) {
    const Layer layer(type, 21, kColumns, true);
    for (const float scale : {1e30f, 1.0f, 1e-25f, 1e-29f, 1e-36f, 0.0f}) {
      std::vector<float> x = activations(kCount, kColumns);
      for (float& value : x) value *= scale;
      for (int64_t tokens : {int64_t{1}, kCount}) expect_matches_reference(layer, x, tokens, true);
    }
    std::vector<float> halves = activations(kCount, kColumns);
    for (int64_t n = 0; n < kCount; ++n) {
      for (int64_t i = 0; i < kColumns; ++i) {
        halves[static_cast<size_t>(n * (kColumns + kGap) + i)] = i == n ? 127.0f : static_cast<float>(i - 16) + 0.5f;
      }
    }
    for (int64_t tokens : {int64_t{1}, kCount}) expect_matches_reference(layer, halves, tokens, true);
  });
}

TEST(Linear, QuantizedActivationsAreWithinHalfAStep) {
  const int64_t columns = 300;
  std::vector<float> x = normals(static_cast<size_t>(columns), 4);
  for (size_t i = 64; i < 96; ++i) x[i] *= 1e30f;
  for (size_t i = 96; i < 128; ++i) x[i] *= 1e-25f;
  for (size_t i = 128; i < 160; ++i) x[i] *= 1e-36f;
  std::vector<double> seen(x.size());
  twins::quantized(View2(x.data(), {1, columns}), MutView2(seen.data(), {1, columns}));
  for (size_t first = 0; first < x.size(); first += 32) {
    const std::span<const float> block = std::span(x).subspan(first, std::min<size_t>(32, x.size() - first));
    double max = 0;
    for (const float value : block) max = std::max(max, std::abs(static_cast<double>(value)));
    // Half a step, and four roundings of at most 127 steps: of the inverse scale, the product, and the scale twice. Below 2^-100
    // all is 0.
    const double bound = max < 0x1p-100 ? max : max / 127 * (0.5 + 4 * 127 * kUnit);
    for (size_t i = 0; i < block.size(); ++i) EXPECT_LE(std::abs(seen[first + i] - block[i]), bound) << first + i;
  }
}

TEST(Linear, AnActivationThatIsNotFiniteMakesItsTokenNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  for_each_isa_and_type([&](WeightType type) {
    if (!by_integers(type)) return;
    const int64_t columns = 100, tokens = 5;
    const Layer layer(type, 21, columns, true);
    for (const float bad : {kNan, infinity, -infinity}) {
      std::vector<float> x = activations(tokens, columns);
      const std::vector<float> sound = product(layer, rows_with_gap(x, tokens, columns));
      x[static_cast<size_t>(2 * (columns + kGap) + 97)] = bad;
      const std::vector<float> y = product(layer, rows_with_gap(x, tokens, columns));
      for (int64_t n = 0; n < tokens; ++n) {
        for (int64_t o = 0; o < 21; ++o) {
          const auto i = static_cast<size_t>(n * (21 + kGap) + o);
          if (n == 2) {
            EXPECT_TRUE(std::isnan(y[i])) << layer.text(tokens);
          } else {
            EXPECT_EQ(y[i], sound[i]) << layer.text(tokens);
          }
        }
      }
      EXPECT_TRUE(std::isnan(product(layer, rows_with_gap(x, tokens, columns).slice(0, 2, 1))[20])) << layer.text(1);
    }
  });
}

// Sums of extremes stay exact, also where instructions saturate sums of 16 bits: all elements of the largest magnitude, with
// products of the same sign, or with signs that change from pair to pair or within a pair.
TEST(Linear, ExtremeIntegersDoNotOverflow) {
  for_each_isa_and_type([](WeightType type) {
    if (!by_integers(type)) return;
    const int64_t rows = 37, columns = 160, most = 17;
    const bool nibbles = type == WeightType::int4;
    const std::vector<float> row_scales(static_cast<size_t>(rows), 1.0f);
    const std::vector<BFloat16> group_scales(static_cast<size_t>(rows * columns / 32), BFloat16::from_float(1.0f));
    for (const int byte : {0x80, 0x81, 0x7F, 0x00, 0xFF}) {  // -128, -127, 127; nibbles -8 and 7
      const int element = nibbles ? (byte & 15) - 8 : static_cast<int8_t>(byte);
      if (nibbles && byte != 0x00 && byte != 0xFF) continue;
      const std::vector<std::byte> stored(static_cast<size_t>(rows) * format_of(type).row_bytes(columns),
                                          static_cast<std::byte>(byte));
      const WeightMatrix weights{type, stored.data(), nibbles ? static_cast<const void*>(group_scales.data()) : row_scales.data(),
                                 rows, columns};
      for (const int64_t period : {1, 2, 4, 3}) {  // columns from a change of sign to the next one
        std::vector<float> x(static_cast<size_t>(most * columns));
        std::vector<int64_t> sums(static_cast<size_t>(most));
        for (int64_t n = 0; n < most; ++n) {
          for (int64_t c = 0; c < columns; ++c) {
            const int sign = (period == 1 ? n : n + c / (period - 1)) % 2 == 0 ? 1 : -1;
            x[static_cast<size_t>(n * columns + c)] = static_cast<float>(127 * sign);
            sums[static_cast<size_t>(n)] += 127 * sign * element;
          }
        }
        for (int64_t tokens : {1, 2, 3, 4, 5, 8, 9, 17}) {
          std::vector<float> y(static_cast<size_t>(tokens * rows));
          const LinearTask task{weights, nullptr, View2(x.data(), {tokens, columns}), MutView2(y.data(), {tokens, rows})};
          linear(std::span(&task, 1), {.threads = 1});
          for (size_t i = 0; i < y.size(); ++i) {
            ASSERT_EQ(y[i], static_cast<float>(sums[i / static_cast<size_t>(rows)]))
                << name_of(type) << " element " << element << " period " << period << " tokens " << tokens << " isa "
                << name_of(active_isa());
          }
        }
      }
    }
  });
}

TEST(Linear, TasksWithTheSameInputGiveTheSameBits) {
  const std::unique_ptr<Executor> pool = make_thread_pool(2);
  for (WeightType type : kTypes) {
    const int64_t rows = 400, columns = 3072;
    const Layer layer(type, rows, columns, true);
    const std::vector<float> x = activations(1, columns), other = activations(1, columns, 8);
    std::vector<float> y(static_cast<size_t>(3 * rows));
    const auto task = [&](const std::vector<float>& from, int64_t place) {
      return LinearTask{layer.weights(), layer.bias(), rows_with_gap(from, 1, columns),
                        MutView2(y.data() + place * rows, {1, rows})};
    };
    const LinearTask tasks[] = {task(x, 0), task(other, 1), task(x, 2)};
    for (int threads : {1, 2}) linear(tasks, {.threads = threads, .executor = pool.get()});
    EXPECT_TRUE(same_bits(std::span<const float>(y).first(static_cast<size_t>(rows)),
                          std::span<const float>(y).last(static_cast<size_t>(rows))));
  }
}

TEST(Linear, NoTokensAndNoTasksAreNoWork) {
  const Layer layer(WeightType::f32, 4, 8, true);
  float x = kNan, y = -1.0f;
  const LinearTask task{layer.weights(), layer.bias(), View2(&x, {0, 8}), MutView2(&y, {0, 4})};
  linear(std::span(&task, 1));
  linear({});
  EXPECT_EQ(y, -1.0f);
}

TEST(Linear, RefusesWhatDoesNotFit) {
  const Layer layer(WeightType::int8, 4, 8, false);
  std::vector<float> x(32), y(32);
  const auto refusal = [&](const LinearTask& task) { return refusal_of([&] { linear(std::span(&task, 1)); }); };
  const MutView2 out(y.data(), {2, 4});
  EXPECT_EQ(refusal({layer.weights(), nullptr, View2(x.data(), {2, 9}), out}),
            "linear: x has shape [2, 9], expected [2, 8] (columns of the weights)");
  EXPECT_EQ(refusal({layer.weights(), nullptr, View2(x.data(), {3, 8}), out}),
            "linear: y has shape [2, 4], expected [3, 4] (tokens of x, rows of the weights)");
  EXPECT_EQ(refusal({layer.weights(), nullptr, View2(x.data(), {2, 8}, {1, 2}), out}),
            "linear: columns of x are 2 elements apart, those of y 1, expected 1");
  WeightMatrix unscaled = layer.weights();
  unscaled.scales = nullptr;
  EXPECT_EQ(refusal({unscaled, nullptr, View2(x.data(), {2, 8}), out}),
            "linear: weights is int8 without scales, expected 1 for each of 4 rows");
}

}  // namespace
}  // namespace raffia::internal
