#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "estimators/ra/drawn_keys.h"
#include "estimators/sampled_case.h"
#include "raffia/reference_sampled.h"
#include "raffia/threads.h"

namespace raffia::internal::sampled_tests {
namespace {

RaOptions options_of(const Case& c, RaOptions options) {
  options.layout = c.layout;
  return options;
}

std::vector<float> run(const Case& c, const RaOptions& options) {
  std::vector<float> out(size_of_shape(c.out_shape()), kNan);
  ra_attention(c.q_view(), c.k_view(), c.v_view(), MutView4(out.data(), c.out_shape()), options_of(c, options));
  return out;
}

// The keys that the op draws, as tokens of k, as the twin counts them.
std::vector<int64_t> drawn_by_op(const Case& c, const RaOptions& options) {
  const std::vector<int32_t> drawn = ra_drawn_keys(c.q_view(), c.k_view(), options_of(c, options));
  std::vector<int64_t> tokens(drawn.begin(), drawn.end());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || c.cu_seqlens.empty()) continue;
    const int64_t t = static_cast<int64_t>(i) / options.draws / c.shape.heads;
    size_t n = 0;
    while (c.cu_seqlens[n + 1] <= t) ++n;
    tokens[i] += c.cu_seqlens_k.empty() ? c.cu_seqlens[n] : c.cu_seqlens_k[n];
  }
  return tokens;
}

// Logits of unit normals are at most about 40; see lara_test.cc.
constexpr double kTolerance = 4e-5;

void expect_matches_twin(const Case& c, const RaOptions& options, const std::string& what = "") {
  const std::vector<int64_t> keys = drawn_by_op(c, options);
  std::vector<double> expected(c.dout.size());
  reference::ra_attention(c.q_view(), c.k_view(), c.v_view(), keys, MutView4(expected.data(), c.out_shape()),
                          options_of(c, options));
  expect_close(run(c, options), expected, kTolerance * (1 + greatest(c.v)), what + c.shape.text());

  // Both draw the same keys, unless the uniform is as near to a boundary as rounding of the sum of probabilities: logits err by
  // 40 u, so one in about 1e5 draws differs. More than one in a few hundred would be an error.
  const std::vector<int64_t> expected_keys = reference::ra_keys(c.q_view(), c.k_view(), options_of(c, options));
  ASSERT_EQ(keys.size(), expected_keys.size());
  size_t differing = 0;
  for (size_t i = 0; i < keys.size(); ++i) differing += keys[i] != expected_keys[i] ? 1 : 0;
  EXPECT_LE(differing, keys.size() / 300) << what << c.shape.text();
}

TEST(Ra, EqualsTwinAtEveryLength) {
  for_each_isa([] {
    for (int64_t length : kLengths) {
      for (bool causal : {false, true}) {
        const Case c({.queries = length, .keys = length, .dim = 12, .value_dim = 20});
        expect_matches_twin(c, {.draws = 2, .causal = causal, .seed = 5});
      }
    }
  });
}

TEST(Ra, EqualsTwinAcrossLengthsWithMasksAndGroups) {
  for_each_isa([] {
    for (auto [queries, keys] : {std::pair{1, 150}, {150, 1}, {7, 140}, {40, 7}, {10, 0}, {0, 10}}) {
      for (bool causal : {false, true}) {
        Case c({.batch = 2, .queries = queries, .keys = keys, .heads = 4, .groups = 2, .dim = 9, .value_dim = 5});
        expect_matches_twin(c, {.draws = 3, .causal = causal, .seed = 2, .layer = 4, .draw = 3, .scale = 0.5F});
        if (keys == 0) continue;
        c.add_mask("x.xx..");
        c.set_lengths({keys, keys / 2});
        expect_matches_twin(c, {.draws = 1, .causal = causal}, "masked ");
      }
    }
  });
}

TEST(Ra, PackedSequencesEqualTwin) {
  Case c({.queries = 60, .keys = 50, .heads = 2});
  c.set_cu_seqlens({0, 20, 20, 21, 60}, {0, 5, 7, 30, 50});
  expect_matches_twin(c, {.draws = 2}, "cross ");
  Case self({.queries = 60, .keys = 60, .heads = 2});
  self.add_mask("xx.");
  self.set_cu_seqlens({0, 20, 20, 21, 60});
  expect_matches_twin(self, {.draws = 2, .causal = true}, "self ");
}

TEST(Ra, MaskedTokensOutputZeroWhereAttentionIsCausal) {
  Case c({.batch = 2, .queries = 30, .keys = 30, .heads = 2});
  c.add_mask("xx.");
  const auto is_zero = [&](const std::vector<float>& out, int64_t t) {
    const std::vector<float> row = tokens_of(View4(out.data(), c.out_shape()), 1, t, 1);
    return row == std::vector<float>(row.size(), 0.0F);
  };
  const std::vector<float> causal = run(c, {.draws = 2, .causal = true}), whole = run(c, {.draws = 2});
  for (int64_t t = 0; t < 30; ++t) {
    EXPECT_EQ(is_zero(causal, t), t % 3 == 2) << t;
    EXPECT_FALSE(is_zero(whole, t)) << t;
  }
}

TEST(Ra, GivesZeroWhereNothingIsSeen) {
  Case c({.batch = 2, .queries = 30, .keys = 30, .heads = 2});
  c.add_mask(".");
  EXPECT_EQ(run(c, {.draws = 2}), std::vector<float>(c.dout.size(), 0.0F));
}

// A key that no other can rival is drawn; so is, with large logits, what rounding leaves of the sums.
TEST(Ra, DrawsWithinTheVisibleKeysAtAnyScale) {
  for_each_isa([] {
    for (float scale : {1.0F, 16.0F, 1e4F}) {
      Case c({.queries = 140, .keys = 140, .heads = 2, .dim = 64, .scale = scale});
      c.add_mask("xxx.x");
      const std::vector<int64_t> keys = drawn_by_op(c, {.draws = 4, .causal = true});
      for (size_t i = 0; i < keys.size(); ++i) {
        const int64_t t = static_cast<int64_t>(i) / 8;
        ASSERT_TRUE(keys[i] >= 0 && keys[i] <= t && keys[i] % 5 != 3) << t << " drew " << keys[i];
      }
      for (float x : run(c, {.draws = 2, .causal = true})) ASSERT_TRUE(std::isfinite(x)) << scale;
    }
  });
}

TEST(Ra, IsUnbiased) {
  const Case c({.queries = 6, .keys = 6, .dim = 4, .value_dim = 2});
  const std::vector<float> mean = run(c, {.draws = 20000});
  std::vector<double> exact(mean.size());
  reference::softmax_attention(c.q_view(), c.k_view(), c.v_view(), MutView4(exact.data(), c.out_shape()), {});
  // Outputs are within +-3 and have deviations below 1, so means of 20,000 have at most 0.0071: four of these.
  expect_close(mean, exact, 0.03, "mean over draws");
}

TEST(Ra, RoundsBf16OnceAtEachEnd) {
  for (int64_t draws : {1, 3}) {
    Case c({.batch = 2, .queries = 40, .keys = 40, .heads = 4, .groups = 2, .dim = 20});
    const std::vector<BFloat16> q = round_to_bf16(c.q), k = round_to_bf16(c.k), v = round_to_bf16(c.v);
    std::vector<BFloat16> out(c.dout.size());
    ra_attention(View4(q.data(), c.q_shape()), View4(k.data(), c.k_shape()), View4(v.data(), c.v_shape()),
                 MutView4(out.data(), c.out_shape()), {.draws = draws});
    const std::vector<float> expected = run(c, {.draws = draws});
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i].bits, BFloat16::from_float(expected[i]).bits) << i;
  }
}

TEST(Ra, EntriesOfABatchDoNotMeet) {
  const Case c({.batch = 3, .queries = 50, .keys = 50, .heads = 2});
  const std::vector<float> whole = run(c, {.draws = 2});
  for (int64_t b = 0; b < 3; ++b) {
    std::vector<float> out(whole.size() / 3, kNan);
    ra_attention(c.q_view().slice(0, b, 1), c.k_view().slice(0, b, 1), c.v_view().slice(0, b, 1),
                 MutView4(out.data(), {1, 50, 2, 8}), {.draws = 2});
    EXPECT_TRUE(same_bits(out, tokens_of(View4(whole.data(), c.out_shape()), b, 0, 50)));
  }
}

struct Backward {
  std::vector<float> q, k, v;
};

Backward run_backward(const Case& c, const RaOptions& options) {
  Backward d{std::vector<float>(c.q.size(), kNan), std::vector<float>(c.k.size(), kNan), std::vector<float>(c.v.size(), kNan)};
  ra_attention_backward(
      c.q_view(), c.k_view(), c.v_view(), c.dout_view(),
      {.q = MutView4(d.q.data(), c.q_shape()), .k = MutView4(d.k.data(), c.k_shape()), .v = MutView4(d.v.data(), c.v_shape())},
      options_of(c, options));
  return d;
}

void expect_gradients(const Case& c, const RaOptions& options, const std::string& what) {
  for_each_isa([&] {
    const std::vector<int64_t> keys = drawn_by_op(c, options);
    const Gradients expected = differences(
        c, [&](View4 q, View4 k, View4 v, MutView4 out) { reference::ra_attention(q, k, v, keys, out, options_of(c, options)); });
    const Backward found = run_backward(c, options);
    // Gradients of order one, through logits within kTolerance, summed over at most 20 tokens.
    expect_close(found.q, expected.q, 2e-4, what + " dq " + c.shape.text());
    expect_close(found.k, expected.k, 2e-4, what + " dk " + c.shape.text());
    expect_close(found.v, expected.v, 2e-4, what + " dv " + c.shape.text());
  });
}

TEST(RaBackward, EqualsDifferencesOfTheTwinWithTheSameKeys) {
  for (bool causal : {false, true}) {
    Case c({.batch = 2, .queries = 6, .keys = 6, .heads = 4, .groups = 2, .dim = 3, .value_dim = 2});
    expect_gradients(c, {.draws = 2, .causal = causal}, "plain");
    c.add_mask("xx.x");
    c.set_lengths({6, 4});
    expect_gradients(c, {.draws = 1, .causal = causal, .scale = 0.7F}, "masked");
    Case packed({.queries = 9, .keys = 7, .heads = 2, .dim = 3, .value_dim = 2});
    packed.set_cu_seqlens({0, 4, 4, 9}, {0, 2, 5, 7});
    expect_gradients(packed, {.draws = 2, .causal = causal}, "packed");
  }
}

TEST(RaBackward, WhatMaskedTokensHoldReachesNoGradient) {
  for_each_isa([] {
    Case c({.batch = 2, .queries = 18, .keys = 18, .heads = 4, .groups = 2});
    c.add_mask("xx.xxxx.x");
    const Backward expected = run_backward(c, {.draws = 2});
    c.poison_masked_queries();
    const Backward found = run_backward(c, {.draws = 2});
    EXPECT_TRUE(same_bits(found.q, expected.q) && same_bits(found.k, expected.k) && same_bits(found.v, expected.v));
    for (float x : found.k) ASSERT_TRUE(std::isfinite(x));
  });
}

TEST(Ra, PaddingOnTheLeftMayHoldAnything) {
  for_each_isa([] {
    Case c({.queries = 20, .keys = 20, .heads = 2});
    c.add_mask("...xxxxxxxxxxxxxxxxx");
    const std::vector<float> expected = run(c, {.draws = 3, .causal = true});
    c.poison_masked_queries();
    const std::vector<float> found = run(c, {.draws = 3, .causal = true});
    const size_t padding = 3 * static_cast<size_t>(c.shape.heads * c.shape.value_dim);
    EXPECT_TRUE(same_bits(std::span(found).subspan(padding), std::span(expected).subspan(padding)));
  });
}

TEST(Ra, LaterTokensChangeNoEarlierBit) {
  for_each_isa([] {
    Case c({.queries = 20, .keys = 20, .heads = 2});
    const std::vector<float> before = run(c, {.draws = 2, .causal = true});
    c.poison_key(0, 13);
    const std::vector<float> after = run(c, {.draws = 2, .causal = true});
    const size_t earlier = 13 * static_cast<size_t>(c.shape.heads * c.shape.value_dim);
    EXPECT_TRUE(same_bits(std::span(after).first(earlier), std::span(before).first(earlier)));
  });
}

// Steps are such calls: a query is drawn for by its position, however many others are asked for beside it.
TEST(Ra, TheLastQueriesAloneEqualThoseOfTheWhole) {
  for_each_isa([] {
    constexpr int64_t kLength = 300;
    const Case c({.batch = 2, .queries = kLength, .keys = kLength, .heads = 4, .groups = 2, .dim = 20});
    RaOptions options{.draws = 3, .causal = true, .seed = 4, .layer = 1};
    const std::vector<float> whole = run(c, options);
    const std::vector<float> dq = run_backward(c, options).q;
    for (int64_t last : {1, 2, 9, 200}) {
      options.first_query = kLength - last;
      const View4 q = c.q_view().slice(1, kLength - last, last), dout = c.dout_view().slice(1, kLength - last, last);
      std::vector<float> out(whole.size(), kNan), dq_last(dq.size(), kNan);
      const MutView4 to = MutView4(out.data(), c.out_shape()).slice(1, kLength - last, last);
      const MutView4 gradient = MutView4(dq_last.data(), c.q_shape()).slice(1, kLength - last, last);
      ra_attention(q, c.k_view(), c.v_view(), to, options);
      ra_attention_backward(q, c.k_view(), c.v_view(), dout, {.q = gradient}, options);
      for (int64_t b : {0, 1}) {
        const auto rows = [&](const std::vector<float>& x, const Extents<4>& shape) {
          return tokens_of(View4(x.data(), shape), b, kLength - last, last);
        };
        EXPECT_TRUE(same_bits(rows(out, c.out_shape()), rows(whole, c.out_shape()))) << last;
        EXPECT_TRUE(same_bits(rows(dq_last, c.q_shape()), rows(dq, c.q_shape()))) << last;
      }
    }
  });
}

TEST(Ra, ThreadsDoNotChangeABit) {
  const Case c({.batch = 2, .queries = 250, .keys = 250, .heads = 4, .groups = 2, .dim = 20});
  RaOptions options{.draws = 2, .run = {.threads = 1}};
  const std::vector<float> expected = run(c, options);
  const Backward d = run_backward(c, options);
  for (int threads : {2, 3}) {
    const std::unique_ptr<Executor> pool = make_thread_pool(threads);
    options.run.threads = threads;
    options.run.executor = pool.get();
    EXPECT_TRUE(same_bits(run(c, options), expected));
    const Backward other = run_backward(c, options);
    EXPECT_TRUE(same_bits(other.q, d.q) && same_bits(other.k, d.k) && same_bits(other.v, d.v));
  }
}

TEST(Ra, RefusesWhatDoesNotFitAndWritesNothing) {
  const Case c({.batch = 2, .queries = 6, .keys = 6, .heads = 4, .groups = 2, .dim = 3, .value_dim = 5});
  std::vector<float> out(c.dout.size(), 7.0F);
  const auto refusal = [&](const RaOptions& options, const Extents<4>& shape) {
    return refusal_of([&] { ra_attention(c.q_view(), c.k_view(), c.v_view(), MutView4(out.data(), shape), options); });
  };
  EXPECT_EQ(refusal({.draws = 0}, c.out_shape()), "ra_attention: draws is 0, expected at least 1");
  EXPECT_EQ(refusal({.draws = int64_t{1} << 40}, c.out_shape()),
            "ra_attention: draws is 1099511627776 for 6 queries, expected at most 238609294 (one random stream)");
  EXPECT_EQ(refusal({.first_query = -1}, c.out_shape()), "ra_attention: first_query is -1, expected 0 to 4294967295");
  EXPECT_EQ(refusal({.draws = 2, .first_query = int64_t{1} << 31}, c.out_shape()),
            "ra_attention: draws is 2 for 2147483654 queries, expected at most 0 (one random stream)");
  EXPECT_EQ(refusal({.scale = -1.0F}, c.out_shape()), "ra_attention: scale is -1, expected a positive number");
  EXPECT_EQ(refusal({}, {2, 6, 4, 4}),
            "ra_attention: out has shape [2, 6, 4, 4], expected [2, 6, 4, 5] (batch, length and heads of q, dimensions of v)");
  EXPECT_EQ(out, std::vector<float>(out.size(), 7.0F));
  std::vector<float> dk(c.k.size(), 7.0F);
  EXPECT_EQ(refusal_of([&] {
              ra_attention_backward(c.q_view(), c.k_view(), c.v_view(), c.dout_view(), {.k = MutView4(dk.data(), {2, 6, 2, 1})});
            }),
            "ra_attention_backward: gradients.k has shape [2, 6, 2, 1], expected [2, 6, 2, 3] (shape of the input)");
  EXPECT_EQ(dk, std::vector<float>(dk.size(), 7.0F));
}

}  // namespace
}  // namespace raffia::internal::sampled_tests
