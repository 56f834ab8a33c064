#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/arrays.h"

namespace raffia::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Problem {
  struct Sizes {
    int64_t batch = 1, queries = 4, keys = 4, heads = 2, key_heads = 2, dim = 3;
  };

  explicit Problem(const Sizes& sizes) {
    Numbers numbers(53);
    q = Array4({sizes.batch, sizes.queries, sizes.heads, sizes.dim}, numbers);
    k = Array4({sizes.batch, sizes.keys, sizes.key_heads, sizes.dim}, numbers);
    v = Array4({sizes.batch, sizes.keys, sizes.key_heads, 2}, numbers);
    key_bias = Array3({sizes.batch, sizes.keys, sizes.key_heads}, numbers);
    dout = Array4({sizes.batch, sizes.queries, sizes.heads, 2}, numbers);
    out = Array4(dout.shape);
    logsumexp = Array3({sizes.batch, sizes.queries, sizes.heads});
  }

  const std::vector<double>& forward() {
    reference::softmax_attention(q.view(), k.view(), v.view(), out.mut(), options, logsumexp.mut());
    return out.values;
  }

  void expect_gradients() {
    options.key_bias = key_bias.view();
    Array4 dq(q.shape), dk(k.shape), dv(v.shape);
    Array3 dbias(key_bias.shape);
    reference::softmax_attention_backward(q.view(), k.view(), v.view(), dout.view(), {dq.mut(), dk.mut(), dv.mut(), dbias.mut()},
                                          options);
    const auto loss = [this] { return inner(forward(), dout.values); };
    expect_derivatives("q", q.values, dq.values, loss);
    expect_derivatives("k", k.values, dk.values, loss);
    expect_derivatives("v", v.values, dv.values, loss);
    expect_derivatives("key_bias", key_bias.values, dbias.values, loss);
  }

  void poison_key(int64_t b, int64_t t) {
    for (int64_t h = 0; h < k.shape[2]; ++h) {
      for (int64_t i = 0; i < k.shape[3]; ++i) k.mut().set(kNan, b, t, h, i);
      for (int64_t i = 0; i < v.shape[3]; ++i) v.mut().set(kNan, b, t, h, i);
      key_bias.mut().set(kNan, b, t, h);
    }
  }

  Array4 q, k, v, out, dout;
  Array3 key_bias, logsumexp;
  SoftmaxOptions options;
};

TEST(SoftmaxTwin, EqualsItsFormula) {
  Problem problem({.heads = 4});
  problem.options.key_bias = problem.key_bias.view();
  problem.options.scale = 0.75F;
  problem.forward();
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t h = 0; h < 4; ++h) {
      double sum = 0, first = 0;
      for (int64_t j = 0; j < 4; ++j) {
        double logit = problem.key_bias.view()(0, j, h / 2);
        for (int64_t i = 0; i < 3; ++i) logit += 0.75 * problem.q.view()(0, t, h, i) * problem.k.view()(0, j, h / 2, i);
        sum += std::exp(logit);
        first += std::exp(logit) * problem.v.view()(0, j, h / 2, 0);
      }
      EXPECT_NEAR(problem.out.view()(0, t, h, 0), first / sum, 1e-14);  // some ten roundings of numbers below 10
      EXPECT_NEAR(problem.logsumexp.view()(0, t, h), std::log(sum), 1e-14);
    }
  }
}

TEST(SoftmaxTwin, EqualValuesComeBack) {
  Problem problem({});
  std::ranges::fill(problem.v.values, 0.75);
  problem.options.causal = true;
  for (double value : problem.forward()) EXPECT_NEAR(value, 0.75, 1e-15);  // 4 probabilities, whose sum is 1 up to rounding
}

TEST(SoftmaxTwin, SurvivesLogitsThatOverflowExp) {
  Problem problem({});
  const std::vector<double> expected = problem.forward();
  std::ranges::fill(problem.key_bias.values, 1e4);
  problem.options.key_bias = problem.key_bias.view();
  // The bias cancels, after costing the logits 1e4 * 1.1e-16 each.
  EXPECT_LT(greatest_difference(problem.forward(), expected), 1e-11);
}

TEST(SoftmaxTwin, CausalQueriesAreTheLastOnesOfTheirKeys) {
  Problem problem({.queries = 6, .keys = 6});
  problem.options.causal = true;
  problem.forward();
  Array4 last({1, 2, 2, 2});
  reference::softmax_attention(problem.q.view().slice(1, 4, 2), problem.k.view(), problem.v.view(), last.mut(), {.causal = true});
  EXPECT_TRUE(std::equal(last.values.begin(), last.values.end(), problem.out.values.begin() + 4 * 4));
  // More queries than keys: the first see none.
  Array4 early({1, 6, 2, 2});
  reference::softmax_attention(problem.q.view(), problem.k.view().slice(1, 0, 4), problem.v.view().slice(1, 0, 4), early.mut(),
                               {.causal = true});
  EXPECT_EQ(early.view()(0, 1, 0, 0), 0);
  EXPECT_EQ(early.view()(0, 2, 1, 1), problem.v.view()(0, 0, 1, 1));
}

TEST(SoftmaxTwin, CausalOutputsNeverSeeALaterKey) {
  Problem problem({});
  problem.options.causal = true;
  const std::vector<double> before = problem.forward();
  problem.poison_key(0, 3);
  const std::vector<double>& after = problem.forward();
  EXPECT_TRUE(std::equal(after.begin(), after.begin() + 3 * 4, before.begin()));
}

TEST(SoftmaxTwin, AbsentKeysAreAsIfCutOut) {
  Problem problem({.batch = 2});
  const std::vector<uint8_t> valid{1, 1, 1, 0, 0, 0, 0, 0};
  problem.options.layout.valid = View2(valid.data(), {2, 4});
  problem.options.key_bias = problem.key_bias.view();
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = b == 0 ? 3 : 0; t < 4; ++t) problem.poison_key(b, t);
  }
  problem.forward();
  Array4 cut({1, 4, 2, 2});
  reference::softmax_attention(problem.q.view().slice(0, 0, 1), problem.k.view().slice(0, 0, 1).slice(1, 0, 3),
                               problem.v.view().slice(0, 0, 1).slice(1, 0, 3), cut.mut(),
                               {.key_bias = problem.key_bias.view().slice(0, 0, 1).slice(1, 0, 3)});
  EXPECT_TRUE(std::equal(cut.values.begin(), cut.values.end(), problem.out.values.begin()));
  EXPECT_EQ(problem.out.view()(1, 2, 1, 0), 0);
  EXPECT_EQ(problem.logsumexp.view()(1, 2, 1), -kInfinity);
}

TEST(SoftmaxTwin, BiasesOfMinusInfinityMaskToo) {
  Problem problem({});
  std::ranges::fill(problem.key_bias.values, -kInfinity);
  problem.options.key_bias = problem.key_bias.view();
  for (double value : problem.forward()) EXPECT_EQ(value, 0);
  problem.key_bias.mut().set(0, 0, 2, 0);
  problem.forward();
  EXPECT_EQ(problem.out.view()(0, 1, 0, 1), problem.v.view()(0, 2, 0, 1));
}

TEST(SoftmaxTwin, PackedSequencesDoNotSeeEachOther) {
  const std::vector<int64_t> cu_seqlens{0, 1, 4}, cu_seqlens_k{0, 3, 5};
  Problem problem({.queries = 4, .keys = 5});
  problem.options.layout = {.cu_seqlens = cu_seqlens, .cu_seqlens_k = cu_seqlens_k};
  problem.options.causal = true;
  problem.forward();
  Array4 second({1, 3, 2, 2});
  reference::softmax_attention(problem.q.view().slice(1, 1, 3), problem.k.view().slice(1, 3, 2), problem.v.view().slice(1, 3, 2),
                               second.mut(), {.causal = true});
  EXPECT_TRUE(std::equal(second.values.begin(), second.values.end(), problem.out.values.begin() + 4));
}

TEST(SoftmaxTwin, LengthsOfACacheCountKeysAlone) {
  const std::vector<int64_t> lengths{3, 1};
  Problem problem({.batch = 2, .queries = 1, .keys = 5});
  problem.options.layout.lengths = lengths;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = lengths[static_cast<size_t>(b)]; t < 5; ++t) problem.poison_key(b, t);
  }
  problem.forward();
  EXPECT_EQ(problem.out.view()(1, 0, 1, 0), problem.v.view()(1, 0, 1, 0));
  Array4 first({1, 1, 2, 2});
  reference::softmax_attention(problem.q.view().slice(0, 0, 1), problem.k.view().slice(0, 0, 1).slice(1, 0, 3),
                               problem.v.view().slice(0, 0, 1).slice(1, 0, 3), first.mut());
  EXPECT_TRUE(std::equal(first.values.begin(), first.values.end(), problem.out.values.begin()));
}

TEST(SoftmaxTwinGradients, MatchFiniteDifferences) { Problem({.batch = 2, .heads = 4}).expect_gradients(); }

TEST(SoftmaxTwinGradients, CausalOnesMatchFiniteDifferences) {
  for (int64_t queries : {2, 4, 5}) {
    Problem problem({.queries = queries, .keys = 4});
    problem.options.causal = true;
    problem.expect_gradients();
  }
}

TEST(SoftmaxTwinGradients, MaskedOnesMatchFiniteDifferences) {
  const std::vector<uint8_t> valid{1, 0, 1, 1, 0, 0, 0, 0};
  Problem problem({.batch = 2});
  problem.options.layout.valid = View2(valid.data(), {2, 4});
  problem.options.scale = 1.5F;
  problem.expect_gradients();
}

TEST(SoftmaxTwinGradients, PackedOnesMatchFiniteDifferences) {
  const std::vector<int64_t> cu_seqlens{0, 1, 4}, cu_seqlens_k{0, 3, 5};
  Problem problem({.queries = 4, .keys = 5});
  problem.options.layout = {.cu_seqlens = cu_seqlens, .cu_seqlens_k = cu_seqlens_k};
  problem.options.causal = true;
  problem.expect_gradients();
}

TEST(SoftmaxTwinGradients, OnesWithLengthsMatchFiniteDifferences) {
  const std::vector<int64_t> lengths{3, 1};
  Problem problem({.batch = 2});
  problem.options.layout.lengths = lengths;
  problem.expect_gradients();
}

// With D features a kernel value has a standard deviation of at most (2D)^-1/2; the output moves by sum_j e_j (v_j - out_t) over
// sum_j w_tj. Here |v_j - out_t| <= 2 and w_tj >= exp(-2 max sigma^2). Five standard deviations, as if all e_j were equal.
TEST(GaussianTwin, IsWhatTrigFeaturesApproach) {
  const int64_t count = 1 << 17;
  Problem problem({.queries = 4, .keys = 4, .heads = 2, .key_heads = 1, .dim = 4});
  Map map(FeatureMap::trig({.dim = 4, .count = count, .heads = 1, .seed = 2}));
  map.sigma = {0.4, 0.6, 0.8, 0.5};
  const double tolerance = 5 * 2 / std::sqrt(2.0 * count) / std::exp(-2 * 0.8 * 0.8);
  Array4 estimate(problem.out.shape);
  rfa_attention(problem.q.view(), problem.k.view(), problem.v.view(), map, estimate.mut());
  const View2 sigma(map.sigma.data(), {1, 4});
  gaussian_attention(problem.q.view(), problem.k.view(), problem.v.view(), sigma, problem.out.mut());
  EXPECT_LT(greatest_difference(problem.out.values, estimate.values), tolerance);

  Memory memory(StateShape{1, 1, map.features, 2});
  causal_attention(problem.q.view(), problem.k.view(), problem.v.view(), map, memory, estimate.mut());
  gaussian_attention(problem.q.view(), problem.k.view(), problem.v.view(), sigma, problem.out.mut(), {.causal = true});
  EXPECT_LT(greatest_difference(problem.out.values, estimate.values), tolerance);
}

// For unit vectors and sigma = s everywhere, |q^ - k^|^2 = 2 - 2 q^ . k^, so the kernel is exp(s^2 q^ . k^) times a constant.
TEST(GaussianTwin, IsSoftmaxOfUnitVectorsWhereSigmaIsConstant) {
  Problem problem({});
  for (Array4* array : {&problem.q, &problem.k}) {
    for (size_t at = 0; at < array->values.size(); at += 3) {
      const std::span<double> x = std::span(array->values).subspan(at, 3);
      const double norm = std::sqrt(inner(x, x));
      for (double& value : x) value /= norm;
    }
  }
  problem.options.scale = 6.25F;
  problem.forward();
  const std::vector<double> sigma(6, 2.5);
  Array4 gaussian(problem.out.shape);
  gaussian_attention(problem.q.view(), problem.k.view(), problem.v.view(), View2(sigma.data(), {2, 3}), gaussian.mut());
  // Logits of at most 2 * 6.25 carry a few roundings each: some 12.5 * 4 * 1.1e-16.
  EXPECT_LT(greatest_difference(problem.out.values, gaussian.values), 1e-14);
}

}  // namespace
}  // namespace raffia::reference
