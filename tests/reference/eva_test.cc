#include <gtest/gtest.h>

#include "reference/sampled_case.h"
#include "reference/terms.h"

namespace raffia::reference {

using namespace internal;
using namespace internal::twins;
namespace {

TwinOp eva(EvaOptions options) {
  return [=](View4 q, View4 k, View4 v, const Layout& layout, MutView4 out, MutView3 log_sum) mutable {
    options.layout = layout;
    reference::eva_attention(q, k, v, out, options, log_sum);
  };
}

TwinOp causal_eva(CausalEvaOptions options) {
  return [=](View4 q, View4 k, View4 v, const Layout& layout, MutView4 out, MutView3 log_sum) mutable {
    options.layout = layout;
    reference::causal_eva_attention(q, k, v, out, options, log_sum);
  };
}

// Rounding of some 30 terms with logits below 10.
constexpr double kRounding = 1e-13;

TEST(EvaTwin, OneWindowIsExact) {
  SampledCase in, exact;
  exact.softmax({});
  EXPECT_LT(greatest_difference(outputs(in, eva({.samples = 4, .window = 13})), exact.out.values), kRounding);
  EXPECT_LT(greatest_difference(in.log_sum.values, exact.log_sum.values), kRounding);
}

TEST(EvaTwin, ChunksOfOneTokenAreExact) {
  SampledCase in, exact;
  exact.softmax({});
  EXPECT_LT(greatest_difference(outputs(in, eva({.samples = 13, .window = 3})), exact.out.values), kRounding);
  EXPECT_LT(greatest_difference(in.log_sum.values, exact.log_sum.values), kRounding);
  exact.softmax({.causal = true});
  const auto op = causal_eva({.window = 3, .chunk = 1, .summaries = 0});
  EXPECT_LT(greatest_difference(outputs(in, op), exact.out.values), kRounding);
  EXPECT_LT(greatest_difference(in.log_sum.values, exact.log_sum.values), kRounding);
}

// Five tokens, two samples: chunks {0, 1, 2} and {3, 4}, and a window of 2 that is rounded up to 3.
TEST(EvaTwin, EqualsItsFormula) {
  SampledCase in({.queries = 5, .keys = 5, .heads = 1, .key_heads = 1});
  outputs(in, eva({.samples = 2, .window = 2, .scale = 0.49F}));
  const double root = std::sqrt(static_cast<double>(0.49F));
  Rows q, k;
  for (int64_t t = 0; t < 5; ++t) {
    q.push_back(scaled_row(in.q.view(), 0, t, 0, root));
    k.push_back(scaled_row(in.k.view(), 0, t, 0, root));
  }
  for (size_t n = 0; n < 5; ++n) {
    const size_t own = n < 3 ? 0 : 3, own_end = n < 3 ? 3 : 5, far = n < 3 ? 3 : 0, far_end = n < 3 ? 5 : 3;
    double numerator = 0, denominator = 0;
    for (size_t m = own; m < own_end; ++m) {
      numerator += std::exp(inner(q[n], k[m])) * in.v.values[m * 3 + 1];
      denominator += std::exp(inner(q[n], k[m]));
    }
    std::vector<double> w(4), k_mean(4);
    const double count = static_cast<double>(far_end - far);
    for (size_t m = far; m < far_end; ++m) {
      for (size_t i = 0; i < 4; ++i) {
        k_mean[i] += k[m][i] / count;
        w[i] += (q[m][i] + k[m][i]) / count;
      }
    }
    double beta = 0, z = 0;
    for (size_t m = far; m < far_end; ++m) {
      const double xi = std::exp(inner(w, k[m]) - inner(k[m], k[m]) / 2);
      beta += xi * in.v.values[m * 3 + 1];
      z += xi;
    }
    numerator += count * std::exp(inner(q[n], k_mean)) * beta / z;
    denominator += count * std::exp(inner(q[n], k_mean));
    EXPECT_NEAR(in.out.view()(0, static_cast<int64_t>(n), 0, 1), numerator / denominator, kRounding);
    EXPECT_NEAR(in.log_sum.view()(0, static_cast<int64_t>(n), 0), std::log(denominator), kRounding);
  }
}

TEST(EvaTwin, HullAndLayouts) {
  expect_hull(eva({.samples = 4, .window = 3}));
  expect_layouts(eva({.samples = 5, .window = 4}));
  expect_layouts(eva({.samples = 26, .window = 1}));
}

TEST(CausalEvaTwin, OneWindowIsExact) {
  SampledCase in, exact;
  exact.softmax({.causal = true});
  EXPECT_LT(greatest_difference(outputs(in, causal_eva({.window = 16, .chunk = 4})), exact.out.values), kRounding);
}

TEST(CausalEvaTwin, EnoughSummariesAreAsGoodAsAll) {
  const SampledSizes sizes{.queries = 26, .keys = 26};
  SampledCase in(sizes);
  // 26 tokens of windows of 4: six whole windows, twelve chunks.
  const std::vector<double> all = outputs(in, causal_eva({.window = 4, .chunk = 2, .summaries = 0}));
  EXPECT_EQ(outputs(in, causal_eva({.window = 4, .chunk = 2, .summaries = 12})), all);
  const std::vector<double> fewer = outputs(in, causal_eva({.window = 4, .chunk = 2, .summaries = 10}));
  SampledCase other(sizes);
  other.out.values = all;
  EXPECT_EQ(tokens_of(in.out, 0, 0, 24), tokens_of(other.out, 0, 0, 24));
  EXPECT_NE(fewer, all);
}

// The far past as the recurrence of a state: decayed by a constant, then a window is added.
TEST(CausalEvaTwin, FoldsWindowByWindowWithDecay) {
  SampledCase in({.queries = 18, .keys = 18, .heads = 1, .key_heads = 1});
  const float decay = 0.75F;
  outputs(in, causal_eva({.window = 4, .chunk = 4, .summaries = 1, .features = 6, .decay = decay, .seed = 8}));
  const double root = root_scale(in.q.view(), {});
  std::vector<float> draws(6 * 4);
  draw_projection({.seed = 8}, Draws::orthogonal, 6, 4, draws);
  Rows q, k, k_mean, beta;
  for (int64_t t = 0; t < 18; ++t) {
    q.push_back(scaled_row(in.q.view(), 0, t, 0, root));
    k.push_back(scaled_row(in.k.view(), 0, t, 0, root));
  }
  std::vector<double> z(6), sums(6 * 3);  // of windows that are folded: sum of weights, and of weights times beta
  for (size_t p = 0; p < 18; ++p) {
    const size_t b = p / 4;
    if (p % 4 == 0 && b >= 1) {  // the window that has ended
      const Rows ks(k.begin() + static_cast<std::ptrdiff_t>(p - 4), k.begin() + static_cast<std::ptrdiff_t>(p));
      const Rows qs(q.begin() + static_cast<std::ptrdiff_t>(p - 4), q.begin() + static_cast<std::ptrdiff_t>(p));
      Rows vs;
      for (size_t m = p - 4; m < p; ++m) vs.push_back(row(in.v.view(), 0, static_cast<int64_t>(m), 0));
      k_mean.push_back(mean_of(ks));
      beta.push_back(read_keys({plus(mean_of(qs), mean_of(ks))}, ks, vs).f[0]);
    }
    if (p % 4 == 0 && b >= 2) {  // the one before it is folded
      for (size_t r = 0; r < 6; ++r) {
        double exponent = -inner(k_mean[b - 2], k_mean[b - 2]) / 2;
        for (size_t i = 0; i < 4; ++i) exponent += static_cast<double>(draws[r * 4 + i]) * k_mean[b - 2][i];
        z[r] = static_cast<double>(decay) * z[r] + 4 * std::exp(exponent);
        for (size_t e = 0; e < 3; ++e) {
          sums[r * 3 + e] = static_cast<double>(decay) * sums[r * 3 + e] + 4 * std::exp(exponent) * beta[b - 2][e];
        }
      }
    }
    std::vector<double> numerator(3);
    double denominator = 0;
    const auto add = [&](double weight, std::span<const double> value) {
      for (size_t e = 0; e < 3; ++e) numerator[e] += weight * value[e];
      denominator += weight;
    };
    for (size_t m = b * 4; m <= p; ++m) add(std::exp(inner(q[p], k[m])), row(in.v.view(), 0, static_cast<int64_t>(m), 0));
    if (b >= 1) add(4 * std::exp(inner(q[p], k_mean[b - 1])), beta[b - 1]);
    for (size_t r = 0; r < 6 && b >= 2; ++r) {
      double exponent = -inner(q[p], q[p]) / 2;
      for (size_t i = 0; i < 4; ++i) exponent += static_cast<double>(draws[r * 4 + i]) * q[p][i];
      for (size_t e = 0; e < 3; ++e) numerator[e] += std::exp(exponent) / 6 * sums[r * 3 + e];
      denominator += std::exp(exponent) / 6 * z[r];
    }
    for (size_t e = 0; e < 3; ++e) {
      EXPECT_NEAR(in.out.view()(0, static_cast<int64_t>(p), 0, static_cast<int64_t>(e)), numerator[e] / denominator, kRounding);
    }
    EXPECT_NEAR(in.log_sum.view()(0, static_cast<int64_t>(p), 0), std::log(denominator), kRounding);
  }
}

TEST(CausalEvaTwin, HullCausalityAndLayouts) {
  for (int64_t summaries : {0, 2, 4}) {
    const auto op = causal_eva({.window = 4, .chunk = 2, .summaries = summaries, .features = 5, .decay = 0.5F});
    expect_hull(op, {.queries = 22, .keys = 22});
    expect_causal(op);
    expect_layouts(op);
  }
}

}  // namespace
}  // namespace raffia::reference
