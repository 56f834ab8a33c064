// A softmax computed in parts equals the whole: intervals of visible keys, resumption, biases of queries, gradients of logsumexp.
#include "estimators/shared/softmax_part.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "support/arrays.h"

namespace raffia::internal {
namespace {

// Keys that query i sees, by definition.
using Sees = std::function<bool(int64_t i, int64_t j)>;

struct Rule {
  Visibility visible;
  Sees sees;
};

// One head of one sequence; two sets of keys, each with its own rule.
struct Problem {
  static constexpr int64_t kDim = 20, kValueDim = 18;

  Problem(int64_t n, int64_t keys_a, int64_t keys_b) : queries(n), keys{keys_a, keys_b} {
    q = normals(static_cast<size_t>(n * kDim), 1);
    dout = normals(static_cast<size_t>(n * kValueDim), 2);
    dlogsumexp = normals(static_cast<size_t>(n), 3);
    query_bias = normals(static_cast<size_t>(n), 4);
    for (size_t s = 0; s < 2; ++s) {
      k[s] = normals(static_cast<size_t>(keys[s] * kDim), 5 + s);
      v[s] = normals(static_cast<size_t>(keys[s] * kValueDim), 7 + s);
      bias[s] = normals(static_cast<size_t>(keys[s]), 9 + s);
    }
  }

  SoftmaxPart part(size_t s, const Visibility& visible) const {
    return {.q = View4(q.data(), {1, queries, 1, kDim}),
            .k = View4(k[s].data(), {1, keys[s], 1, kDim}),
            .v = View4(v[s].data(), {1, keys[s], 1, kValueDim}),
            .scale = 0.3F,
            .key_bias = View3(bias[s].data(), {1, keys[s], 1}),
            .query_bias = s == 1 ? View3(query_bias.data(), {1, queries, 1}) : View3(),
            .sequences = {{0, 0, 0, visible}},
            .workers = Workers({.threads = 1})};
  }

  double logit(size_t s, int64_t i, int64_t j) const {
    double sum = 0;
    for (int64_t e = 0; e < kDim; ++e) {
      sum += static_cast<double>(q[static_cast<size_t>(i * kDim + e)]) *
             static_cast<double>(k[s][static_cast<size_t>(j * kDim + e)]);
    }
    return static_cast<double>(0.3F) * sum + static_cast<double>(bias[s][static_cast<size_t>(j)]) +
           (s == 1 ? static_cast<double>(query_bias[static_cast<size_t>(i)]) : 0.0);
  }

  int64_t queries;
  int64_t keys[2];
  std::vector<float> q, dout, dlogsumexp, query_bias, k[2], v[2], bias[2];
};

struct Expected {
  std::vector<double> out, logsumexp, dq, dk[2], dv[2], dbias[2];
};

// out, logsumexp and the gradient of sum(out o dout) + sum(logsumexp o dlogsumexp), over all pairs.
Expected brute_force(const Problem& p, const Sees (&sees)[2]) {
  constexpr int64_t kD = Problem::kDim, kV = Problem::kValueDim;
  Expected e;
  e.out.resize(static_cast<size_t>(p.queries * kV));
  e.logsumexp.resize(static_cast<size_t>(p.queries));
  e.dq.resize(static_cast<size_t>(p.queries * kD));
  for (size_t s = 0; s < 2; ++s) {
    e.dk[s].resize(p.k[s].size());
    e.dv[s].resize(p.v[s].size());
    e.dbias[s].resize(p.bias[s].size());
  }
  for (int64_t i = 0; i < p.queries; ++i) {
    std::vector<std::pair<size_t, int64_t>> visible;
    for (size_t s = 0; s < 2; ++s) {
      for (int64_t j = 0; j < p.keys[s]; ++j) {
        if (sees[s](i, j)) visible.emplace_back(s, j);
      }
    }
    double sum = 0;
    for (auto [s, j] : visible) sum += std::exp(p.logit(s, i, j));
    e.logsumexp[static_cast<size_t>(i)] = std::log(sum);
    double delta = 0;
    for (auto [s, j] : visible) {
      const double probability = std::exp(p.logit(s, i, j)) / sum;
      for (int64_t c = 0; c < kV; ++c) {
        const double value = static_cast<double>(p.v[s][static_cast<size_t>(j * kV + c)]);
        e.out[static_cast<size_t>(i * kV + c)] += probability * value;
        delta += probability * value * static_cast<double>(p.dout[static_cast<size_t>(i * kV + c)]);
      }
    }
    for (auto [s, j] : visible) {
      const double probability = std::exp(p.logit(s, i, j)) / sum;
      double dp = 0;
      for (int64_t c = 0; c < kV; ++c) {
        const double dout = static_cast<double>(p.dout[static_cast<size_t>(i * kV + c)]);
        dp += dout * static_cast<double>(p.v[s][static_cast<size_t>(j * kV + c)]);
        e.dv[s][static_cast<size_t>(j * kV + c)] += probability * dout;
      }
      const double dlogit = probability * (dp - delta + static_cast<double>(p.dlogsumexp[static_cast<size_t>(i)]));
      e.dbias[s][static_cast<size_t>(j)] += dlogit;
      for (int64_t c = 0; c < kD; ++c) {
        const size_t at_q = static_cast<size_t>(i * kD + c), at_k = static_cast<size_t>(j * kD + c);
        e.dq[at_q] += dlogit * static_cast<double>(0.3F) * static_cast<double>(p.k[s][at_k]);
        e.dk[s][at_k] += dlogit * static_cast<double>(0.3F) * static_cast<double>(p.q[at_q]);
      }
    }
  }
  return e;
}

void expect_close(const std::vector<float>& found, const std::vector<double>& expected, const char* what) {
  ASSERT_EQ(found.size(), expected.size());
  // Logits of at most about 15 err by (d + 4) 15 u = 2e-5 each; sums of at most 300 terms of order one add 300 u.
  for (size_t i = 0; i < found.size(); ++i) {
    if (std::isinf(expected[i])) {
      ASSERT_EQ(static_cast<double>(found[i]), expected[i]) << what << " at " << i;
    } else {
      ASSERT_NEAR(static_cast<double>(found[i]), expected[i], 1e-4) << what << " at " << i;
    }
  }
}

void expect_parts_make_the_whole(int64_t queries, int64_t keys_a, int64_t keys_b, const Rule& a, const Rule& b) {
  const Problem p(queries, keys_a, keys_b);
  const Sees sees[2] = {a.sees, b.sees};
  const Expected expected = brute_force(p, sees);
  std::vector<float> out(expected.out.size(), kNan), logsumexp(expected.logsumexp.size(), kNan);
  const MutView4 out_view(out.data(), {1, queries, 1, Problem::kValueDim});
  const MutView3 logsumexp_view(logsumexp.data(), {1, queries, 1});
  const SoftmaxPart parts[2] = {p.part(0, a.visible), p.part(1, b.visible)};
  forward(parts[0], out_view, logsumexp_view);
  forward(parts[1], out_view, logsumexp_view, Start::resume);
  expect_close(out, expected.out, "out");
  expect_close(logsumexp, expected.logsumexp, "logsumexp");

  std::vector<float> dq(expected.dq.size(), kNan);
  for (size_t s = 0; s < 2; ++s) {
    // Gradients of keys are added to what is there.
    std::vector<float> dk(expected.dk[s].size(), 1.0F), dv(expected.dv[s].size(), 1.0F), dbias(expected.dbias[s].size(), 1.0F);
    backward(parts[s], out_view, logsumexp_view, View4(p.dout.data(), {1, queries, 1, Problem::kValueDim}),
             View3(p.dlogsumexp.data(), {1, queries, 1}),
             {.q = MutView4(dq.data(), {1, queries, 1, Problem::kDim}),
              .k = MutView4(dk.data(), {1, p.keys[s], 1, Problem::kDim}),
              .v = MutView4(dv.data(), {1, p.keys[s], 1, Problem::kValueDim}),
              .key_bias = MutView3(dbias.data(), {1, p.keys[s], 1})},
             {.q = s == 1, .k = true});
    for (std::vector<float>* gradient : {&dk, &dv, &dbias}) {
      for (float& x : *gradient) x -= 1.0F;
    }
    expect_close(dk, expected.dk[s], "dk");
    expect_close(dv, expected.dv[s], "dv");
    expect_close(dbias, expected.dbias[s], "dbias");
  }
  expect_close(dq, expected.dq, "dq");
}

const Rule& everything(int64_t queries, int64_t keys, Rule& rule) {
  rule = {Visibility::all(static_cast<size_t>(queries), static_cast<size_t>(keys)), [](int64_t, int64_t) { return true; }};
  return rule;
}

TEST(SoftmaxPart, RecentKeysThenEverythingElse) {
  for_each_isa([] {
    for (auto [n, lead, window, before] : {std::tuple{1, 0, 1, 0},
                                           {5, 0, 3, 1},
                                           {64, 0, 16, 0},
                                           {97, 0, 32, 1},
                                           {200, 32, 32, 1},
                                           {130, 7, 5, 2},
                                           {193, 40, 64, 1},
                                           {33, 0, 100, 1}}) {
      for (int64_t phase : {int64_t{0}, int64_t{window - 1}, int64_t{window / 2}}) {
        const int64_t keys = n + lead;
        Rule rest;
        const int64_t w = window, b = before, l = lead;
        expect_parts_make_the_whole(
            n, keys, 9,
            {Visibility::recent(static_cast<size_t>(n), static_cast<size_t>(keys), w, b, phase),
             [=](int64_t i, int64_t j) { return j <= i + l && (j + phase) / w + b >= (i + l + phase) / w; }},
            everything(n, 9, rest));
      }
    }
  });
}

TEST(SoftmaxPart, OwnEarlierAndLaterWindowsShareTheKeys) {
  for_each_isa([] {
    for (auto [n, window, stride] : {std::tuple{40, 16, 2}, {100, 10, 3}, {77, 7, 7}, {300, 32, 32}, {50, 1, 5}}) {
      const int64_t w = window, s = stride;
      const int64_t keys = (n + w - 1) / w * s - 1;
      const size_t queries_count = static_cast<size_t>(n), keys_count = static_cast<size_t>(keys);
      Rule rest;
      expect_parts_make_the_whole(
          n, keys, 5, {Visibility::own(queries_count, keys_count, w, s), [=](int64_t i, int64_t j) { return j / s == i / w; }},
          everything(n, 5, rest));
      Rule all;
      const Rule& first = everything(n, keys, all);
      expect_parts_make_the_whole(
          n, keys, keys, first,
          {Visibility::earlier(queries_count, keys_count, w, s), [=](int64_t i, int64_t j) { return j / s < i / w; }});
      expect_parts_make_the_whole(
          n, keys, keys, first,
          {Visibility::later(queries_count, keys_count, w, s), [=](int64_t i, int64_t j) { return j / s > i / w; }});
      const int64_t lead = 4, phase = w / 2, max = 2 * s;
      expect_parts_make_the_whole(
          n, keys, keys, first,
          {Visibility::earlier(queries_count, keys_count, w, s, lead, phase, max), [=](int64_t i, int64_t j) {
             const int64_t end = lead + (i + phase) / w * s;
             return j < end && j >= end - max;
           }});
    }
  });
}

// Logits that a query's bias lowers without end count for nothing: neither in the output nor in what the backward pass reads.
TEST(SoftmaxPart, ABiasOfMinusInfinityLeavesWhatWasThere) {
  for_each_isa([] {
    Problem p(20, 40, 30);
    p.query_bias[7] = -std::numeric_limits<float>::infinity();
    std::vector<float> out(20 * Problem::kValueDim, kNan), logsumexp(20, kNan);
    const MutView4 out_view(out.data(), {1, 20, 1, Problem::kValueDim});
    const MutView3 logsumexp_view(logsumexp.data(), {1, 20, 1});
    forward(p.part(0, Visibility::all(20, 40)), out_view, logsumexp_view);
    const std::vector<float> before = out, before_logsumexp = logsumexp;
    forward(p.part(1, Visibility::all(20, 30)), out_view, logsumexp_view, Start::resume);
    const size_t row = 7 * Problem::kValueDim;
    EXPECT_TRUE(same_bits(std::span(out).subspan(row, Problem::kValueDim), std::span(before).subspan(row, Problem::kValueDim)));
    EXPECT_EQ(logsumexp[7], before_logsumexp[7]);
    EXPECT_NE(logsumexp[8], before_logsumexp[8]);
    forward(p.part(1, Visibility::all(20, 30)), out_view, logsumexp_view);
    EXPECT_EQ(logsumexp[7], -std::numeric_limits<float>::infinity());
    EXPECT_EQ(out[row], 0.0F);
  });
}

TEST(SoftmaxPart, WithoutValuesGivesLogsumexpAndItsGradient) {
  for_each_isa([] {
    Problem p(37, 150, 1);
    SoftmaxPart part = p.part(0, Visibility::all(37, 150));
    part.v = View4(p.v[0].data(), {1, 150, 1, 0});
    std::vector<float> logsumexp(37, kNan), dq(p.q.size(), kNan), dk(p.k[0].size(), kNan);
    float nothing = 0;
    const MutView4 no_out(&nothing, {1, 37, 1, 0});
    forward(part, no_out, MutView3(logsumexp.data(), {1, 37, 1}));
    backward(part, no_out, View3(logsumexp.data(), {1, 37, 1}), no_out, View3(p.dlogsumexp.data(), {1, 37, 1}),
             {.q = MutView4(dq.data(), {1, 37, 1, Problem::kDim}), .k = MutView4(dk.data(), {1, 150, 1, Problem::kDim})});
    std::fill(p.dout.begin(), p.dout.end(), 0.0F);
    const Sees sees[2] = {[](int64_t, int64_t) { return true; }, [](int64_t, int64_t) { return false; }};
    const Expected expected = brute_force(p, sees);
    expect_close(logsumexp, expected.logsumexp, "logsumexp");
    expect_close(dq, expected.dq, "dq");
    expect_close(dk, expected.dk[0], "dk");
  });
}

}  // namespace
}  // namespace raffia::internal
