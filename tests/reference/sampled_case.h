// Properties that the twins of sampling and windows share, whatever they compute.
#ifndef RAFFIA_TESTS_REFERENCE_SAMPLED_CASE_H_
#define RAFFIA_TESTS_REFERENCE_SAMPLED_CASE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "raffia/reference_sampled.h"
#include "reference/arrays.h"

namespace raffia::reference {

inline constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

struct SampledSizes {
  int64_t batch = 1, queries = 13, keys = 13, heads = 4, key_heads = 2, dim = 4, value_dim = 3;
  double range = 1.5;  // of q and k
};

struct SampledCase {
  explicit SampledCase(const SampledSizes& sizes = {}, uint64_t seed = 71) {
    Numbers numbers(seed);
    q = Array4({sizes.batch, sizes.queries, sizes.heads, sizes.dim}, numbers, -sizes.range, sizes.range);
    k = Array4({sizes.batch, sizes.keys, sizes.key_heads, sizes.dim}, numbers, -sizes.range, sizes.range);
    v = Array4({sizes.batch, sizes.keys, sizes.key_heads, sizes.value_dim}, numbers);
    out = Array4({sizes.batch, sizes.queries, sizes.heads, sizes.value_dim});
    log_sum = Array3({sizes.batch, sizes.queries, sizes.heads});
  }
  // All that token t holds becomes `value`.
  void overwrite(int64_t b, int64_t t, double value) {
    for (Array4* array : {&q, &k, &v}) {
      if (t >= array->shape[1]) continue;
      for (int64_t h = 0; h < array->shape[2]; ++h) {
        for (int64_t i = 0; i < array->shape[3]; ++i) array->mut().set(value, b, t, h, i);
      }
    }
  }
  // Exact attention, into out and log_sum.
  void softmax(const SoftmaxOptions& options) {
    reference::softmax_attention(q.view(), k.view(), v.view(), out.mut(), options, log_sum.mut());
  }

  Array4 q, k, v, out;
  Array3 log_sum;
};

using TwinOp = std::function<void(View4 q, View4 k, View4 v, const Layout& layout, MutView4 out, MutView3 log_sum)>;

inline std::vector<double> outputs(SampledCase& in, const TwinOp& op, const Layout& layout = {}) {
  op(in.q.view(), in.k.view(), in.v.view(), layout, in.out.mut(), in.log_sum.mut());
  return in.out.values;
}

inline std::vector<double> tokens_of(const Array4& array, int64_t b, int64_t begin, int64_t count) {
  const int64_t width = array.shape[2] * array.shape[3];
  const auto first = array.values.begin() + (b * array.shape[1] + begin) * width;
  return {first, first + count * width};
}

// Outputs are averages of values: per coordinate between the least and the greatest, up to rounding of probabilities that sum to
// 1 within some 100 operations of 1.1e-16.
inline void expect_hull(const TwinOp& op, const SampledSizes& sizes = {}) {
  SampledCase in(sizes);
  outputs(in, op);
  for (int64_t b = 0; b < sizes.batch; ++b) {
    for (int64_t h = 0; h < sizes.heads; ++h) {
      const int64_t g = h / (sizes.heads / sizes.key_heads);
      for (int64_t e = 0; e < sizes.value_dim; ++e) {
        double min = 2, greatest = -2;
        for (int64_t t = 0; t < sizes.keys; ++t) {
          min = std::min(min, in.v.view()(b, t, g, e));
          greatest = std::max(greatest, in.v.view()(b, t, g, e));
        }
        for (int64_t t = 0; t < sizes.queries; ++t) {
          EXPECT_GE(in.out.view()(b, t, h, e), min - 1e-13);
          EXPECT_LE(in.out.view()(b, t, h, e), greatest + 1e-13);
        }
      }
    }
  }
  std::ranges::fill(in.v.values, 0.75);
  for (double value : outputs(in, op)) EXPECT_NEAR(value, 0.75, 1e-13);
}

inline void expect_causal(const TwinOp& op, int64_t length = 26) {
  SampledCase in({.queries = length, .keys = length});
  outputs(in, op);
  for (int64_t from : {int64_t{1}, length / 2, length - 1}) {
    SampledCase changed({.queries = length, .keys = length});
    for (int64_t t = from; t < length; ++t) changed.overwrite(0, t, kNotANumber);
    outputs(changed, op);
    EXPECT_EQ(tokens_of(changed.out, 0, 0, from), tokens_of(in.out, 0, 0, from)) << from;
  }
}

// Whatever absent tokens hold; padding by lengths, by valid and by cutting; sequences end to end.
inline void expect_layouts(const TwinOp& op, int64_t length = 26) {
  const std::vector<int64_t> lengths{length, length - 7};
  std::vector<uint8_t> padding(static_cast<size_t>(2 * length), 1), holes(padding);
  std::fill(padding.end() - 7, padding.end(), uint8_t{0});
  for (size_t t : {0U, 3U, 8U, 9U, 10U, 11U, 17U}) holes[t] = holes[static_cast<size_t>(length) + t + 1] = 0;

  SampledCase in({.batch = 2, .queries = length, .keys = length});
  outputs(in, op, {.valid = View2(holes.data(), {2, length})});
  SampledCase other = in;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = 0; t < length; ++t) {
      if (holes[static_cast<size_t>(b * length + t)] == 0) other.overwrite(b, t, kNotANumber);
    }
  }
  outputs(other, op, {.valid = View2(holes.data(), {2, length})});
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = 0; t < length; ++t) {
      if (holes[static_cast<size_t>(b * length + t)] == 0) continue;
      EXPECT_EQ(tokens_of(other.out, b, t, 1), tokens_of(in.out, b, t, 1)) << b << " " << t;
    }
  }

  SampledCase padded({.batch = 2, .queries = length, .keys = length});
  for (int64_t t = length - 7; t < length; ++t) padded.overwrite(1, t, kNotANumber);
  outputs(padded, op, {.lengths = lengths});
  SampledCase masked = padded;
  outputs(masked, op, {.valid = View2(padding.data(), {2, length})});
  EXPECT_EQ(tokens_of(masked.out, 0, 0, length), tokens_of(padded.out, 0, 0, length));
  EXPECT_EQ(tokens_of(masked.out, 1, 0, length - 7), tokens_of(padded.out, 1, 0, length - 7));
  for (double value : tokens_of(padded.out, 1, length - 7, 7)) EXPECT_EQ(value, 0);
  Array4 cut({1, length - 7, 4, 3});
  const auto part = [&](const Array4& array) { return array.view().slice(0, 1, 1).slice(1, 0, length - 7); };
  op(part(padded.q), part(padded.k), part(padded.v), {}, cut.mut(), {});
  EXPECT_EQ(cut.values, tokens_of(padded.out, 1, 0, length - 7));

  SampledCase packed({.queries = length, .keys = length});
  const std::vector<int64_t> ends{0, 9, 9, length};
  outputs(packed, op, {.cu_seqlens = ends});
  Array4 second({1, length - 9, 4, 3});
  const auto rest = [&](const Array4& array) { return array.view().slice(1, 9, length - 9); };
  op(rest(packed.q), rest(packed.k), rest(packed.v), {}, second.mut(), {});
  EXPECT_EQ(second.values, tokens_of(packed.out, 0, 9, length - 9));

  const std::vector<uint8_t> none(static_cast<size_t>(2 * length), 0);
  for (double value : outputs(padded, op, {.valid = View2(none.data(), {2, length})})) EXPECT_EQ(value, 0);
}

// A mean over independent draws, and how far it may be from what is expected.
struct Statistic {
  void add(double value) {
    count += 1;
    sum += value;
    squares += value * value;
  }
  double mean() const { return sum / count; }
  // Standard error of the mean. Where nothing is random, rounding may leave a variance below 0.
  double error() const { return std::sqrt(std::max(squares / count - mean() * mean(), 0.0) / count); }
  double count = 0, sum = 0, squares = 0;
};

// Denominators and numerators relative to the exact denominators: their means over draws are 1 and the exact outputs. All queries
// of a draw share its noise, so each draw counts once, with the mean over its queries; single queries get 5 standard errors.
inline void expect_unbiased(SampledCase& in, const SoftmaxOptions& exact_options, int draws,
                            const std::function<void(SampledCase&, uint64_t seed)>& op, double greatest_error) {
  SampledCase exact = in;
  exact.softmax(exact_options);
  const size_t rows = exact.log_sum.values.size(), width = exact.out.values.size() / rows;
  std::vector<Statistic> single(rows), numerators(rows);
  Statistic whole;
  for (int draw = 0; draw < draws; ++draw) {
    op(in, static_cast<uint64_t>(1000 + draw));
    double mean = 0;
    for (size_t r = 0; r < rows; ++r) {
      const double ratio = std::exp(in.log_sum.values[r] - exact.log_sum.values[r]);
      single[r].add(ratio);
      numerators[r].add(ratio * in.out.values[r * width]);
      mean += ratio / static_cast<double>(rows);
    }
    whole.add(mean);
  }
  EXPECT_LT(whole.error(), greatest_error);
  EXPECT_NEAR(whole.mean(), 1, 4 * whole.error() + 1e-12);
  for (size_t r = 0; r < rows; ++r) {
    EXPECT_NEAR(single[r].mean(), 1, 5 * single[r].error() + 1e-12) << r;
    EXPECT_NEAR(numerators[r].mean(), exact.out.values[r * width], 5 * numerators[r].error() + 1e-12) << r;
  }
}

}  // namespace raffia::reference

#endif  // RAFFIA_TESTS_REFERENCE_SAMPLED_CASE_H_
