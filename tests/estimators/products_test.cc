// Linear layers over stored weights: against the twin, and bit for bit against themselves however they are cut.
#include "estimators/shared/products.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "reference/layers.h"
#include "support/arrays.h"

namespace raffia::internal {
namespace {

constexpr WeightType kTypes[] = {WeightType::f32, WeightType::bf16, WeightType::int8};

// Weights in their stored form, and what they stand for exactly. Stored bytes begin `offset` elements into an allocation, so
// that no vector is aligned; what surrounds x and y is NaN.
class Layer {
 public:
  Layer(WeightType type, int64_t rows, int64_t columns, bool biased, uint64_t seed = 1)
      : type_(type), rows_(rows), columns_(columns), exact_(static_cast<size_t>(rows * columns)) {
    std::vector<float> weights = normals(exact_.size(), seed, 0.0f, 0.5f);
    if (biased) bias_ = normals(static_cast<size_t>(rows), seed + 1);
    floats_.assign(1 + weights.size(), kNan);
    halves_.resize(1 + weights.size(), BFloat16::from_float(kNan));
    bytes_.resize(3 + weights.size(), 127);
    scales_.resize(static_cast<size_t>(rows));
    quantize_rows("w", View2(weights.data(), {rows, columns}), std::span(bytes_).subspan(3), scales_);
    round_weights("w", weights, std::span(halves_).subspan(1));
    std::copy(weights.begin(), weights.end(), floats_.begin() + 1);
    for (size_t i = 0; i < exact_.size(); ++i) {
      const double scale = static_cast<double>(scales_[i / static_cast<size_t>(columns)]);
      exact_[i] = type == WeightType::f32    ? static_cast<double>(weights[i])
                  : type == WeightType::bf16 ? static_cast<double>(halves_[1 + i].to_float())
                                             : scale * bytes_[3 + i];
    }
  }

  WeightMatrix weights() const {
    const void* data = type_ == WeightType::f32    ? static_cast<const void*>(floats_.data() + 1)
                       : type_ == WeightType::bf16 ? static_cast<const void*>(halves_.data() + 1)
                                                   : static_cast<const void*>(bytes_.data() + 3);
    return {type_, data, type_ == WeightType::int8 ? scales_.data() : nullptr, rows_, columns_};
  }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }
  View1 bias_view() const { return bias_.empty() ? View1() : View1(bias_.data(), {rows_}); }
  View2 exact() const { return View2(exact_.data(), {rows_, columns_}); }
  std::string text(int64_t tokens) const {
    return fmt::format("{} [{} x {}] -> {} isa {}", name_of(type_), tokens, columns_, rows_, name_of(active_isa()));
  }

 private:
  WeightType type_;
  int64_t rows_, columns_;
  std::vector<float> floats_, scales_, bias_;
  std::vector<BFloat16> halves_;
  std::vector<int8_t> bytes_;
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

void expect_matches_reference(const Layer& layer, int64_t tokens, bool any_company = true) {
  const int64_t rows = layer.weights().rows, columns = layer.weights().columns;
  const std::vector<float> values = activations(tokens, columns);
  const View2 x = rows_with_gap(values, tokens, columns);
  const std::vector<float> found = product(layer, x, any_company);
  std::vector<double> expected(static_cast<size_t>(tokens * rows));
  twins::linear(x, layer.exact(), layer.bias_view(), MutView2(expected.data(), {tokens, rows}));
  for (int64_t n = 0; n < tokens; ++n) {
    for (int64_t o = 0; o < rows; ++o) {
      // A product and a sum round once for each column, the scale and the bias twice more: relative to the sum of magnitudes.
      double magnitude = layer.bias() == nullptr ? 0.0 : std::abs(layer.bias_view()(o));
      for (int64_t i = 0; i < columns; ++i) magnitude += std::abs(x(n, i) * layer.exact()(o, i));
      const double error = 1.01 * static_cast<double>(columns + 3) * kUnit * magnitude;
      ASSERT_LE(std::abs(static_cast<double>(found[static_cast<size_t>(n * (rows + kGap) + o)]) -
                         expected[static_cast<size_t>(n * rows + o)]),
                error)
          << layer.text(tokens) << " at " << n << ", " << o;
    }
  }
}

template <class Body>
void for_each_isa_and_type(const Body& body) {
  for_each_isa([&] {
    for (WeightType type : kTypes) body(type);
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
  for (WeightType type : kTypes) {
    for (int64_t tokens : {1, 3, 40}) {
      for (bool any_company : {true, false}) expect_same_bits_for_threads_and_tasks(type, tokens, any_company);
    }
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
            "linear: weights is int8 without scales, expected one for each of 4 rows");
}

}  // namespace
}  // namespace raffia::internal
