#include <gtest/gtest.h>

#include "reference/sampled_case.h"
#include "reference/terms.h"

namespace raffia::reference {

using namespace internal;
using namespace internal::twins;
namespace {

constexpr Proposals kAllProposals[] = {Proposals::chunk_mean, Proposals::qk_mixed, Proposals::standard};

TwinOp lara(LaraOptions options) {
  return [=](View4 q, View4 k, View4 v, const Layout& layout, MutView4 out, MutView3 log_sum) mutable {
    options.layout = layout;
    reference::lara_attention(q, k, v, out, options, log_sum);
  };
}

TwinOp causal_lara(CausalLaraOptions options) {
  return [=](View4 q, View4 k, View4 v, const Layout& layout, MutView4 out, MutView3 log_sum) mutable {
    options.layout = layout;
    reference::causal_lara_attention(q, k, v, out, options, log_sum);
  };
}

TwinOp ra(RaOptions options) {
  return [=](View4 q, View4 k, View4 v, const Layout& layout, MutView4 out, MutView3) mutable {
    options.layout = layout;
    reference::ra_attention(q, k, v, out, options);
  };
}

TEST(LaraTwin, StandardProposalsEqualRfaWithPositiveFeatures) {
  for (Draws draws : {Draws::iid, Draws::orthogonal}) {
    SampledCase in;
    const Map map(FeatureMap::positive({.dim = 4, .count = 10, .heads = 2, .seed = 5, .layer = 2, .draw = 3, .draws = draws}));
    Array4 expected(in.out.shape);
    rfa_attention(in.q.view(), in.k.view(), in.v.view(), map, expected.mut(), {.eps = 0.0F});
    const auto op = lara({.samples = 10, .proposals = Proposals::standard, .draws = draws, .seed = 5, .layer = 2, .draw = 3});
    // Positive sums of 13 x 10 terms, exponents of some 10: 1e-15 times a few tens.
    EXPECT_LT(greatest_difference(outputs(in, op), expected.values), 1e-13);
  }
}

// Chunks of three tokens by hand, exponentials without any logarithm.
TEST(LaraTwin, EqualsItsFormula) {
  const SampledSizes sizes{.queries = 12, .keys = 12, .heads = 1, .key_heads = 1};
  for (Proposals proposals : kAllProposals) {
    for (SampleWeights weights : {SampleWeights::balance, SampleWeights::mis_opt}) {
      if (proposals == Proposals::standard && weights == SampleWeights::mis_opt) continue;
      SampledCase in(sizes);
      const LaraOptions options{.samples = 8,
                                .samples_per_proposal = 2,
                                .proposals = proposals,
                                .weights = weights,
                                .mis_opt_strength = 0.25F,
                                .seed = 3,
                                .scale = 0.64F};
      outputs(in, lara(options));
      const double root = std::sqrt(static_cast<double>(0.64F));
      Rows q, k, qbar(4, std::vector<double>(4)), kbar = qbar, mu = qbar;
      for (int64_t t = 0; t < 12; ++t) {
        q.push_back(scaled_row(in.q.view(), 0, t, 0, root));
        k.push_back(scaled_row(in.k.view(), 0, t, 0, root));
        for (size_t i = 0; i < 4; ++i) qbar[static_cast<size_t>(t / 3)][i] += q.back()[i] / 3;
        for (size_t i = 0; i < 4; ++i) kbar[static_cast<size_t>(t / 3)][i] += k.back()[i] / 3;
      }
      for (size_t c = 0; c < 4; ++c) {
        if (proposals == Proposals::standard) continue;
        double total = 0;
        for (size_t other = 0; other < 4; ++other) total += std::exp(inner(qbar[c], kbar[other]));
        for (size_t i = 0; i < 4; ++i) {
          mu[c][i] = qbar[c][i];
          if (proposals == Proposals::chunk_mean) mu[c][i] += kbar[c][i];
          if (proposals == Proposals::chunk_mean) continue;
          for (size_t other = 0; other < 4; ++other) mu[c][i] += std::exp(inner(qbar[c], kbar[other])) / total * kbar[other][i];
        }
      }
      std::vector<float> noise(8 * 4);
      draw_projection({.seed = 3}, Draws::orthogonal, 8, 4, noise);
      for (size_t n = 0; n < 12; ++n) {
        std::vector<double> r;
        for (size_t c = 0; c < 4; ++c) {
          double sum = 0;
          for (size_t other = 0; other < 12; ++other) sum += std::exp(inner(q[other], qbar[c]));
          r.push_back(std::exp(inner(q[n], qbar[c])) / sum);
        }
        double numerator = 0, denominator = 0;
        for (size_t s = 0; s < 8; ++s) {
          std::vector<double> w = mu[s / 2];
          for (size_t i = 0; i < 4; ++i) w[i] += static_cast<double>(noise[s * 4 + i]);
          const auto density = [&](size_t c) { return std::exp(inner(w, mu[c]) - inner(mu[c], mu[c]) / 2); };
          const double mixture = density(0) + density(1) + density(2) + density(3);
          double weight = 1 / mixture;
          if (weights == SampleWeights::mis_opt) {
            const double mean = (r[0] + r[1] + r[2] + r[3]) / 4;
            weight = std::max(1e-8, density(s / 2) / mixture + 0.25 * (r[s / 2] - mean)) / density(s / 2);
          }
          for (size_t m = 0; m < 12; ++m) {
            const double term =
                weight / 2 * std::exp(inner(w, q[n]) - inner(q[n], q[n]) / 2) * std::exp(inner(w, k[m]) - inner(k[m], k[m]) / 2);
            numerator += term * in.v.values[m * 3];
            denominator += term;
          }
        }
        const int64_t t = static_cast<int64_t>(n);
        EXPECT_NEAR(in.out.view()(0, t, 0, 0), numerator / denominator, 1e-12);
        EXPECT_NEAR(in.log_sum.view()(0, t, 0), std::log(denominator), 1e-12);
      }
    }
  }
}

// A sample of N(0, I) is lognormal in the kernel: its logarithm has the variance |q + k|^2. Inputs are small enough for that to
// stay below 3.2, or the standard error of 3,000 draws would miss the tail that carries the mean.
TEST(LaraTwin, KernelSumsAreUnbiased) {
  for (Proposals proposals : kAllProposals) {
    for (int64_t per : {1, 2}) {
      SampledCase in({.queries = 6, .keys = 6, .heads = 2, .key_heads = 1, .dim = 2, .range = 0.75});
      expect_unbiased(
          in, {}, 3000,
          [&](SampledCase& at, uint64_t seed) {
            outputs(at, lara({.samples = 4, .samples_per_proposal = per, .proposals = proposals, .seed = seed}));
          },
          0.05);
    }
  }
}

TEST(LaraTwin, OutputsAreInTheHullOfValues) {
  for (Proposals proposals : kAllProposals) expect_hull(lara({.samples = 6, .proposals = proposals}));
  expect_hull(lara({.samples = 6, .mean = true}));
  expect_hull(lara({.samples = 6, .weights = SampleWeights::mis_opt}));
  expect_hull(lara({.samples = 8}), {.queries = 3, .keys = 2});  // more chunks than tokens
}

TEST(LaraTwin, AbsentTokensChangeNothing) {
  for (Proposals proposals : kAllProposals)
    expect_layouts(lara({.samples = 6, .samples_per_proposal = 2, .proposals = proposals}));
  expect_layouts(lara({.samples = 6, .weights = SampleWeights::mis_opt}));
}

TEST(LaraTwin, MaskedKeysAreAsIfCutOut) {
  const std::vector<uint8_t> valid{1, 0, 1, 1, 1, 0, 1, 1};
  SampledCase in({.queries = 5, .keys = 8}), cut({.queries = 5, .keys = 6});
  cut.q = in.q;
  int64_t at = 0;
  for (int64_t t = 0; t < 8; ++t) {
    if (valid[static_cast<size_t>(t)] == 0) continue;
    for (int64_t g = 0; g < 2; ++g) {
      store_row(row(in.k.view(), 0, t, g), cut.k.mut(), 0, at, g);
      store_row(row(in.v.view(), 0, t, g), cut.v.mut(), 0, at, g);
    }
    ++at;
  }
  const auto op = lara({.samples = 4});
  EXPECT_EQ(outputs(in, op, {.valid = View2(valid.data(), {1, 8})}), outputs(cut, op));
}

TEST(LaraTwin, MeanModeHasNoNoise) {
  SampledCase in;
  const auto first = outputs(in, lara({.samples = 4, .mean = true, .seed = 1}));
  EXPECT_EQ(first, outputs(in, lara({.samples = 4, .mean = true, .seed = 2})));
  EXPECT_NE(first, outputs(in, lara({.samples = 4, .seed = 2})));
}

// One sample per query, drawn from the query's own distribution, that counts for this query alone.
TEST(LaraTwin, DeltaWeightsOverOneProposalPerQueryAreRandomizedAttention) {
  SampledCase in;
  const RaOptions options{.seed = 4, .layer = 1};
  outputs(in, ra(options));
  const std::vector<int64_t> drawn = ra_keys(in.q.view(), in.k.view(), options);
  const double root = root_scale(in.q.view(), {});
  for (int64_t h = 0; h < 4; ++h) {
    Rows w, k, v;
    for (int64_t t = 0; t < 13; ++t) {
      std::vector<float> noise(4);
      randomized_draw({.seed = 4, .layer = 1, .head = static_cast<uint32_t>(h)}, t, 1, 0, noise);
      const std::vector<double> e(noise.begin(), noise.end());
      k.push_back(scaled_row(in.k.view(), 0, t, h / 2, root));
      v.push_back(row(in.v.view(), 0, t, h / 2));
      const std::vector<double> k_m = scaled_row(in.k.view(), 0, drawn[static_cast<size_t>(t * 4 + h)], h / 2, root);
      w.push_back(plus(plus(scaled_row(in.q.view(), 0, t, h, root), k_m), e));
    }
    const Samples samples = read_keys(w, k, v);
    for (int64_t n = 0; n < 13; ++n) {
      std::vector<double> delta(13, -kInfinity);
      delta[static_cast<size_t>(n)] = 0;
      const std::vector<double> out = read_samples(samples, scaled_row(in.q.view(), 0, n, h, root), delta).mean();
      EXPECT_LT(greatest_difference(out, row(in.out.view(), 0, n, h)), 1e-14);
    }
  }
}

// Noise of another size than 1 is biased, and these draws are enough to see it.
TEST(RaTwin, IsUnbiased) {
  for (bool causal : {false, true}) {
    SampledCase in({.queries = 6, .keys = 6, .heads = 2, .key_heads = 1, .range = 2});
    SampledCase exact = in;
    exact.softmax({.causal = causal, .scale = 1.0F});
    std::vector<Statistic> right(in.out.values.size()), wrong(right);
    for (uint64_t seed = 0; seed < 4000; ++seed) {
      const RaOptions options{.draws = 2, .causal = causal, .seed = seed, .scale = 1.0F};
      const std::vector<double> out = outputs(in, ra(options));
      for (size_t i = 0; i < out.size(); ++i) right[i].add(out[i]);
      if (causal) continue;
      const std::vector<int64_t> drawn = ra_keys(in.q.view(), in.k.view(), options);
      for (int64_t t = 0; t < 6; ++t) {
        std::vector<float> noise(4);
        randomized_draw({.seed = seed}, t, 2, 0, noise);
        std::vector<double> w = plus(row(in.q.view(), 0, t, 0), row(in.k.view(), 0, drawn[static_cast<size_t>(t * 4)], 0));
        for (size_t i = 0; i < 4; ++i) w[i] += 0.35 * static_cast<double>(noise[i]);
        Rows k, v;
        for (int64_t m = 0; m < 6; ++m) {
          k.push_back(row(in.k.view(), 0, m, 0));
          v.push_back(row(in.v.view(), 0, m, 0));
        }
        const std::vector<double> f = read_keys({w}, k, v).f[0];
        for (size_t e = 0; e < 3; ++e) wrong[static_cast<size_t>(t) * 6 + e].add(f[e]);
      }
    }
    double greatest = 0;  // of the wrong ones, in standard errors
    for (size_t i = 0; i < right.size(); ++i) {
      EXPECT_NEAR(right[i].mean(), exact.out.values[i], 4 * right[i].error() + 1e-12) << causal << " " << i;
      if (wrong[i].count > 0) {
        greatest = std::max(greatest, std::abs(wrong[i].mean() - exact.out.values[i]) / wrong[i].error());
      }
    }
    EXPECT_TRUE(causal || greatest > 8) << greatest;
  }
}

TEST(RaTwin, DrawnKeysHaveTheProbabilitiesOfSoftmax) {
  SampledCase in({.queries = 1, .keys = 3, .heads = 1, .key_heads = 1});
  constexpr int64_t kDraws = 20000;
  const std::vector<int64_t> drawn = ra_keys(in.q.view(), in.k.view(), {.draws = kDraws});
  std::vector<double> logits;
  for (int64_t m = 0; m < 3; ++m) logits.push_back(inner(row(in.q.view(), 0, 0, 0), row(in.k.view(), 0, m, 0)) / 2);
  for (int64_t m = 0; m < 3; ++m) {
    const double p = std::exp(logits[static_cast<size_t>(m)] - log_sum_exp(logits));
    const double share = static_cast<double>(std::ranges::count(drawn, m)) / kDraws;
    EXPECT_NEAR(share, p, 4 * std::sqrt(p * (1 - p) / kDraws));
  }
}

TEST(RaTwin, GivenKeysAreThoseItDraws) {
  SampledCase in;
  const RaOptions options{.draws = 3, .causal = true, .seed = 9};
  const std::vector<double> drawn = outputs(in, ra(options));
  const std::vector<int64_t> keys = ra_keys(in.q.view(), in.k.view(), options);
  reference::ra_attention(in.q.view(), in.k.view(), in.v.view(), keys, in.out.mut(), options);
  EXPECT_EQ(in.out.values, drawn);
}

TEST(RaTwin, HullCausalityAndLayouts) {
  expect_hull(ra({.draws = 2}));
  expect_causal(ra({.draws = 2, .causal = true}));
  expect_layouts(ra({.draws = 2}));
  expect_layouts(ra({.causal = true}));
}

constexpr CausalLaraOptions kSmallWindows{.window = 4, .chunk = 2, .samples = 6};  // three windows of samples

TEST(CausalLaraTwin, OneWindowIsExact) {
  SampledCase in, exact;
  exact.softmax({.causal = true});
  EXPECT_LT(greatest_difference(outputs(in, causal_lara({.window = 16, .chunk = 4})), exact.out.values), 1e-14);
  EXPECT_LT(greatest_difference(in.log_sum.values, exact.log_sum.values), 1e-14);
}

TEST(CausalLaraTwin, KernelSumsAreUnbiased) {
  for (bool streaming : {true, false}) {
    for (int64_t per : {1, 2}) {
      SampledCase in({.queries = 14, .keys = 14, .heads = 2, .key_heads = 1, .dim = 2, .range = 1});
      expect_unbiased(
          in, {.causal = true}, 2000,
          [&](SampledCase& at, uint64_t seed) {
            outputs(at, causal_lara({.window = 4,
                                     .chunk = 2,
                                     .samples = 4 * per,  // those of the first two windows
                                     .samples_per_proposal = per,
                                     .streaming = streaming,
                                     .seed = seed}));
          },
          0.05);
    }
  }
}

TEST(CausalLaraTwin, StreamingAndFullAgreeWhileOneWindowIsPast) {
  SampledCase in({.queries = 12, .keys = 12}), other = in;
  CausalLaraOptions options = kSmallWindows;
  outputs(in, causal_lara(options));
  options.streaming = false;
  outputs(other, causal_lara(options));
  EXPECT_EQ(tokens_of(in.out, 0, 0, 8), tokens_of(other.out, 0, 0, 8));
  EXPECT_NE(tokens_of(in.out, 0, 8, 4), tokens_of(other.out, 0, 8, 4));
}

TEST(CausalLaraTwin, HullCausalityAndLayouts) {
  for (bool streaming : {true, false}) {
    CausalLaraOptions options = kSmallWindows;
    options.streaming = streaming;
    expect_hull(causal_lara(options), {.queries = 22, .keys = 22});
    expect_causal(causal_lara(options));
    expect_layouts(causal_lara(options));
  }
}

}  // namespace
}  // namespace raffia::reference
