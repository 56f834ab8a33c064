// AdamW and the sum of squares against their formulas in double, on every ISA, at lengths around those of vectors and blocks.
// What lies behind the runs is NaN and must not change.
#include "kernels/adamw.h"

#include <gtest/gtest.h>

#include "reference/layers.h"
#include "support/arrays.h"

namespace raffia::internal {
namespace {

constexpr size_t kLengths[] = {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 100, 1023, 1025};
constexpr size_t kBehind = 20;

std::vector<float> run_of(size_t count, uint64_t seed, float scale) {
  std::vector<float> values = normals(count, seed, 0, scale);
  values.resize(count + kBehind, kNan);
  return values;
}

struct State {
  explicit State(size_t length) : count(length), p(run_of(count, 1, 1)), g(run_of(count, 2, 5)), m(run_of(count, 3, 0.1f)) {
    v = run_of(count, 4, 0.1f);
    for (float& each : v) each *= each;
  }
  AdamwRun run() {
    return {.parameters = std::span(p).first(count),
            .gradients = std::span(g).first(count),
            .mean = std::span(m).first(count),
            .square = std::span(v).first(count)};
  }

  size_t count;
  std::vector<float> p, g, m, v;
};

constexpr AdamwFactors kFactors{.scale = 0.125, .keep = 0.99, .rate = 0.02, .root = 0.5};

TEST(Adamw, EqualsReference) {
  for_each_isa([] {
    for (const size_t count : kLengths) {
      State made(count);
      const auto wide = [&](const std::vector<float>& floats) { return std::vector<double>(floats.begin(), floats.end()); };
      std::vector<double> p = wide(made.p), g = wide(made.g), m = wide(made.m), v = wide(made.v);
      const std::vector<double> before = p, mean_before = m;
      const Extents<1> shape{static_cast<int64_t>(count)};
      twins::adamw(MutView1(p.data(), shape), View1(g.data(), shape), MutView1(m.data(), shape), MutView1(v.data(), shape),
                   kFactors);
      adamw(made.run(), kFactors);
      for (size_t i = 0; i < count; ++i) {
        // Four roundings of a product and a sum, and of its factors. Sums of squares have no cancellation.
        const double sizes = std::abs(kFactors.beta1 * mean_before[i]) + std::abs((1 - kFactors.beta1) * kFactors.scale * g[i]);
        ASSERT_LE(std::abs(static_cast<double>(made.m[i]) - m[i]), 5 * kUnit * sizes) << count << " at " << i;
        ASSERT_LE(std::abs(static_cast<double>(made.v[i]) - v[i]), 7 * kUnit * v[i]) << count << " at " << i;
        // The error of the mean, and 8 roundings of the quotient: the root halves those of v.
        const double root = std::sqrt(v[i]) / kFactors.root + kFactors.eps;
        const double bound = kFactors.rate / root * (5 * kUnit * sizes + 12 * kUnit * std::abs(m[i])) +
                             3 * kUnit * std::abs(before[i]) + kUnit * std::abs(p[i]);
        ASSERT_LE(std::abs(static_cast<double>(made.p[i]) - p[i]), bound) << count << " at " << i;
      }
      for (const auto* values : {&made.p, &made.m, &made.v}) {
        for (size_t i = count; i < values->size(); ++i) EXPECT_TRUE(std::isnan((*values)[i]));
      }
    }
  });
}

TEST(Adamw, HasTheSameBitsHoweverARunIsCut) {
  for_each_isa([] {
    State whole(1025), cut(1025);
    adamw(whole.run(), kFactors);
    size_t begin = 0;
    for (const size_t count : {size_t{3}, size_t{500}, size_t{522}}) {
      const AdamwRun all = cut.run();
      adamw({.parameters = all.parameters.subspan(begin, count),
             .gradients = all.gradients.subspan(begin, count),
             .mean = all.mean.subspan(begin, count),
             .square = all.square.subspan(begin, count)},
            kFactors);
      begin += count;
    }
    for (const auto& [a, b] : {std::pair(&whole.p, &cut.p), std::pair(&whole.m, &cut.m), std::pair(&whole.v, &cut.v)}) {
      EXPECT_TRUE(same_bits(std::span(*a).first(1025), std::span(*b).first(1025)));
    }
  });
}

TEST(Adamw, RefusesRunsOfOtherLengths) {
  State made(4);
  AdamwRun run = made.run();
  run.mean = run.mean.first(3);
  EXPECT_EQ(refusal_of([&] { adamw(run, {}); }), "adamw: 4 gradients, 3 means and 4 squares, expected 4 (parameters)");
}

TEST(SumOfSquares, EqualsReference) {
  for_each_isa([] {
    for (const size_t count :
         {size_t{0}, size_t{1}, size_t{15}, size_t{17}, size_t{1000}, size_t{1024}, size_t{1025}, size_t{5000}}) {
      const std::vector<float> values = run_of(count, 7, 3);
      double expected = 0;
      for (size_t i = 0; i < count; ++i) expected += std::pow(static_cast<double>(values[i]), 2);
      // No cancellation: a product, and up to 1024 sums in fp32.
      EXPECT_LE(std::abs(sum_of_squares(std::span(values).first(count)) - expected), 1025 * kUnit * expected) << count;
    }
  });
}

}  // namespace
}  // namespace raffia::internal
