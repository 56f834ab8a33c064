#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "estimators/softmax_case.h"
#include "raffia/error.h"
#include "raffia/threads.h"

namespace raffia::internal::softmax_tests {
namespace {

void expect_close(const std::vector<float>& found, const std::vector<double>& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    if (std::isinf(expected[i])) {
      ASSERT_EQ(static_cast<double>(found[i]), expected[i]) << what << " at " << i;
    } else {
      ASSERT_LE(std::abs(static_cast<double>(found[i]) - expected[i]), tolerance) << what << " at " << i;  // NaN fails too
    }
  }
}

void expect_matches_reference(const Case& c) {
  const Outputs found = forward(c);
  std::vector<double> out(found.out.size()), logsumexp(found.logsumexp.size());
  SoftmaxOptions options = c.options;
  reference::softmax_attention(c.q_view(), c.k_view(), c.v_view(), MutView4(out.data(), c.out_shape()), options,
                               MutView3(logsumexp.data(), c.row_shape()));
  expect_close(found.out, out, c.out_error(), c.shape.text() + " out");
  // log sum exp errs as much as the greatest logit does, plus the relative error of the sum and of the logarithm's rounding.
  const double error = c.probability_error() + kUnit * (c.greatest_logit() + std::log(static_cast<double>(c.shape.keys + 1)));
  expect_close(found.logsumexp, logsumexp, error, c.shape.text() + " logsumexp");
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

constexpr int64_t kLengths[] = {0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 257};

TEST(SoftmaxAttention, EqualsReferenceAtEveryLength) {
  EachIsa().run([] {
    for (int64_t length : kLengths) {
      for (bool causal : {false, true}) {
        expect_matches_reference(Case({.queries = length, .keys = length, .dim = 20, .value_dim = 20, .causal = causal}));
      }
    }
  });
}

TEST(SoftmaxAttention, EqualsReferenceAtEveryDimension) {
  EachIsa().run([] {
    for (int64_t dim : {1, 3, 16, 60, 64, 100, 128}) {
      for (int64_t value_dim : {int64_t{1}, int64_t{17}, dim}) {
        expect_matches_reference(Case({.queries = 35, .keys = 35, .dim = dim, .value_dim = value_dim, .causal = dim % 3 == 0}));
      }
    }
  });
}

TEST(SoftmaxAttention, EqualsReferenceAcrossLengths) {
  EachIsa().run([] {
    for (auto [queries, keys] : {std::pair{1, 200}, {200, 1}, {7, 150}, {150, 7}, {100, 0}, {0, 100}, {130, 131}, {131, 130}}) {
      for (bool causal : {false, true}) {
        expect_matches_reference(Case({.queries = queries, .keys = keys, .heads = 2, .groups = 2, .causal = causal}));
      }
    }
  });
}

TEST(SoftmaxAttention, MoreWindowsThanThereAreAreAllOfThem) {
  EachIsa().run([] {
    for (int64_t length : {0, 1, 3, 33}) {
      Case c({.queries = length, .keys = length, .dim = 20, .value_dim = 20, .causal = true});
      c.options.window = 2;
      for (int64_t before : {int64_t{0}, int64_t{1}, length, length + 1, int64_t{1} << 40}) {
        c.options.before = before;
        expect_matches_reference(c);
      }
    }
  });
}

TEST(SoftmaxAttention, EqualsReferenceWithMaskBiasAndGroups) {
  EachIsa().run([] {
    for (int64_t length : {1, 33, 150}) {
      for (bool causal : {false, true}) {
        Case c({.batch = 2,
                .queries = length,
                .keys = length,
                .heads = 6,
                .groups = 2,
                .dim = 12,
                .value_dim = 9,
                .causal = causal});
        c.add_bias();
        c.options.scale = -0.7F;
        expect_matches_reference(c);
        c.add_mask();
        expect_matches_reference(c);
      }
    }
  });
}

TEST(SoftmaxAttention, RowsWithoutKeysAreZero) {
  EachIsa().run([] {
    Case c({.batch = 2, .queries = 40, .keys = 40, .heads = 2});
    c.valid.assign(80, 0);
    c.options.layout.valid = View2(c.valid.data(), {2, 40});
    c.poison_absent_keys();
    const Outputs found = forward(c);
    EXPECT_EQ(found.out, std::vector<float>(found.out.size(), 0.0F));
    EXPECT_EQ(found.logsumexp, std::vector<float>(found.logsumexp.size(), -std::numeric_limits<float>::infinity()));
  });
}

TEST(SoftmaxAttention, LengthsCutKeysAndTheirQueries) {
  EachIsa().run([] {
    for (int64_t queries : {int64_t{140}, int64_t{20}}) {
      for (bool causal : {false, true}) {
        Case c({.batch = 3, .queries = queries, .keys = 140, .heads = 2, .groups = 1, .causal = causal});
        const std::vector<int64_t> lengths = {0, 133, 17};
        c.options.layout.lengths = lengths;
        for (int64_t b = 0; b < 3; ++b) {
          for (int64_t j = lengths[static_cast<size_t>(b)]; j < 140; ++j) c.poison_key(b, j);
        }
        expect_matches_reference(c);
      }
    }
  });
}

TEST(SoftmaxAttention, PackedSequencesDoNotSeeEachOther) {
  EachIsa().run([] {
    for (bool causal : {false, true}) {
      Case c({.queries = 200, .keys = 170, .heads = 2, .causal = causal});
      const std::vector<int64_t> of_queries = {0, 1, 1, 98, 200}, of_keys = {0, 30, 40, 40, 170};
      c.options.layout.cu_seqlens = of_queries;
      c.options.layout.cu_seqlens_k = of_keys;
      c.add_bias();
      expect_matches_reference(c);
    }
  });
}

TEST(SoftmaxAttention, ReadsAndWritesAnyStrides) {
  EachIsa().run([] {
    const Case c({.batch = 2, .queries = 70, .keys = 70, .heads = 3, .groups = 3, .dim = 24, .value_dim = 24, .causal = true});
    const Outputs expected = forward(c);
    // [B, D, H, T]: no unit stride where kernels want one.
    const auto reversed = [&](const std::vector<float>& values) {
      std::vector<float> moved(values.size());
      const View4 from(values.data(), {2, 70, 3, 24});
      const MutView4 to(moved.data(), {2, 24, 3, 70});
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t t = 0; t < 70; ++t) {
          for (int64_t h = 0; h < 3; ++h) {
            for (int64_t i = 0; i < 24; ++i) to.set(from(b, t, h, i), b, i, h, t);
          }
        }
      }
      return moved;
    };
    const std::vector<float> q = reversed(c.q), k = reversed(c.k), v = reversed(c.v);
    const auto view = [](const std::vector<float>& values) {
      return View4(values.data(), {2, 24, 3, 70}).permuted({0, 3, 2, 1});
    };
    std::vector<float> out(c.q.size(), kNan);
    softmax_attention(view(q), view(k), view(v), MutView4(out.data(), {2, 24, 3, 70}).permuted({0, 3, 2, 1}), c.options);
    EXPECT_TRUE(same_bits(out, reversed(expected.out)));
  });
}

TEST(SoftmaxAttention, RoundsBf16OnceAtTheEnd) {
  EachIsa().run([] {
    Case c({.queries = 40, .keys = 40, .dim = 24, .value_dim = 24});
    const auto rounded = [](std::vector<float>& values) {
      std::vector<BFloat16> short_values;
      for (float& value : values) {
        short_values.push_back(BFloat16::from_float(value));
        value = short_values.back().to_float();
      }
      return short_values;
    };
    const std::vector<BFloat16> q = rounded(c.q), k = rounded(c.k), v = rounded(c.v);
    const Outputs exact = forward(c);
    const Extents<4> shape = {1, 40, 1, 24};
    std::vector<BFloat16> out(exact.out.size());
    softmax_attention(View4(q.data(), shape), View4(k.data(), shape), View4(v.data(), shape), MutView4(out.data(), shape),
                      c.options);
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i].bits, BFloat16::from_float(exact.out[i]).bits) << i;
  });
}

TEST(SoftmaxAttention, HasTheSameBitsForAnyNumberOfThreads) {
  Case c({.batch = 2, .queries = 300, .keys = 300, .heads = 4, .groups = 2, .dim = 32, .value_dim = 32, .causal = true});
  c.add_mask();
  const Outputs expected = forward(c, 1);
  for (int threads : {2, 7}) {
    const std::unique_ptr<Executor> executor = make_thread_pool(threads);
    const Outputs found = forward(c, threads, executor.get());
    EXPECT_TRUE(same_bits(found.out, expected.out)) << threads;
    EXPECT_TRUE(same_bits(found.logsumexp, expected.logsumexp)) << threads;
  }
}

// Not even NaN comes through from a later token, and a prefix has the bits that it has in the whole.
TEST(SoftmaxAttention, NeverLooksAtLaterTokens) {
  EachIsa().run([] {
    const Shape shape = {.queries = 290, .keys = 290, .dim = 24, .value_dim = 40, .causal = true};
    const Outputs whole = forward(Case(shape));
    for (int64_t cut : {1, 5, 100, 128, 201}) {
      Case c(shape);
      for (int64_t t = cut; t < 290; ++t) {
        c.poison_key(0, t);
        std::fill_n(c.q.begin() + t * 24, 24, kNan);
      }
      const Outputs found = forward(c);
      EXPECT_EQ(std::memcmp(found.out.data(), whole.out.data(), static_cast<size_t>(cut * 40) * sizeof(float)), 0) << cut;
      EXPECT_EQ(std::memcmp(found.logsumexp.data(), whole.logsumexp.data(), static_cast<size_t>(cut) * sizeof(float)), 0) << cut;
    }
  });
}

// At 1e30 logits overflow, and count as infinite ones.
TEST(SoftmaxAttention, SurvivesHugeLogits) {
  EachIsa().run([] {
    for (float magnitude : {1e3F, 1e9F, 1e18F, 1e30F}) {
      for (bool causal : {false, true}) {
        const Case c({.queries = 150, .keys = 150, .dim = 1, .value_dim = 8, .causal = causal}, 3, magnitude);
        const Outputs found = forward(c);
        // Outputs are means of values: finite, and within their range up to the rounding of a mean of n terms.
        const double bound = greatest(c.v) * (1 + kUnit * 4 * 150);
        for (float value : found.out) ASSERT_LE(std::abs(static_cast<double>(value)), bound) << magnitude;
        for (float value : found.logsumexp) ASSERT_TRUE(std::isfinite(value) || magnitude > 1e18F) << magnitude;
      }
    }
  });
}

TEST(SoftmaxAttention, RefusesShapesThatDoNotFit) {
  const Case c({.queries = 4, .keys = 5, .heads = 4, .groups = 2});
  std::vector<float> out(4 * 4 * 8);
  const auto message = [&](View4 k, MutView4 to, const SoftmaxOptions& options) -> std::string {
    try {
      softmax_attention(c.q_view(), k, c.v_view(), to, options);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  const MutView4 to(out.data(), c.out_shape());
  EXPECT_EQ(message(c.k_view().slice(1, 0, 4), to, {}),
            "softmax_attention: v has shape [1, 5, 2, 8], expected [1, 4, 2, 8] (batch of q, length and heads of k)");
  EXPECT_EQ(
      message(c.k_view(), to.slice(3, 0, 7), {}),
      "softmax_attention: out has shape [1, 4, 4, 7], expected [1, 4, 4, 8] (batch, length and heads of q, dimensions of v)");
  const std::vector<int64_t> lengths = {6};
  EXPECT_EQ(message(c.k_view(), to, {.layout = {.lengths = lengths}}),
            "softmax_attention: lengths[0] is 6, expected 0 to 5 (length of k)");
  const std::vector<int64_t> offsets = {0, 3};
  EXPECT_EQ(message(c.k_view(), to, {.layout = {.cu_seqlens = offsets}}),
            "softmax_attention: cu_seqlens goes from 0 to 3, expected 0 to 4");
}

}  // namespace
}  // namespace raffia::internal::softmax_tests
