#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "estimators/softmax_case.h"
#include "raffia/error.h"
#include "raffia/threads.h"

namespace raffia::internal::softmax_tests {
namespace {

template <typename T>
struct Gradients {
  explicit Gradients(const Case& c)
      : shape(c.shape),
        q(c.q.size(), static_cast<T>(kNan)),
        k(c.k.size(), static_cast<T>(kNan)),
        v(c.v.size(), static_cast<T>(kNan)),
        bias(c.bias.size(), static_cast<T>(kNan)) {}

  SoftmaxGradients views() {
    SoftmaxGradients gradients = {.q = MutView4(q.data(), {shape.batch, shape.queries, shape.heads, shape.dim}),
                                  .k = MutView4(k.data(), {shape.batch, shape.keys, shape.groups, shape.dim}),
                                  .v = MutView4(v.data(), {shape.batch, shape.keys, shape.groups, shape.value_dim})};
    if (!bias.empty()) gradients.key_bias = MutView3(bias.data(), {shape.batch, shape.keys, shape.groups});
    return gradients;
  }

  Shape shape;
  std::vector<T> q, k, v, bias;
};

void backward(const Case& c, const SoftmaxGradients& gradients, int threads = 0, Executor* executor = nullptr) {
  const Outputs outputs = forward(c);
  SoftmaxOptions options = c.options;
  options.run.threads = threads;
  options.run.executor = executor;
  softmax_attention_backward(c.q_view(), c.k_view(), c.v_view(), View4(outputs.out.data(), c.out_shape()),
                             View3(outputs.logsumexp.data(), c.row_shape()), c.dout_view(), gradients, options);
}

void expect_close(const std::vector<float>& found, const std::vector<double>& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_LE(std::abs(static_cast<double>(found[i]) - expected[i]), tolerance) << what << " at " << i;  // NaN fails too
  }
}

// With e the relative error of a probability p (which errs by as much again through logsumexp), D = dv |dout| |v| a bound of
// dP and delta:  dP errs by dv u D, delta by |dout| dv times the error of an output plus dv u D; so dS = p (dP - delta) errs by p
// E,
//   E = 2 e 2 D + 2 dv u D + dv |dout| (error of an output).
// Sums over the n keys of a query have weights p that sum to 1, sums over queries (of the m query heads of a group) weights of
// at most 1 each; a sum of n terms adds n u of the sum of magnitudes.
void expect_matches_reference(const Case& c) {
  Gradients<float> found(c);
  backward(c, found.views());
  Gradients<double> expected(c);
  reference::softmax_attention_backward(c.q_view(), c.k_view(), c.v_view(), c.dout_view(), expected.views(), c.options);

  const double value_dim = static_cast<double>(c.shape.value_dim), keys = static_cast<double>(c.shape.keys);
  const double rows = static_cast<double>(c.shape.queries * c.shape.heads / c.shape.groups);
  const double scale = c.options.scale ? std::abs(*c.options.scale) : 1 / std::sqrt(static_cast<double>(c.shape.dim));
  const double greatest_dp = value_dim * greatest(c.dout) * greatest(c.v);
  const double e = 2 * c.probability_error();
  const double error = 2 * e * greatest_dp + 2 * value_dim * kUnit * greatest_dp + value_dim * greatest(c.dout) * c.out_error();
  const double dq_error = scale * greatest(c.k) * (error + 2 * greatest_dp * kUnit * (keys + 4));
  const double row_sum_error = rows * (error + 2 * greatest_dp * kUnit * (rows + 4));
  expect_close(found.q, expected.q, dq_error, c.shape.text() + " dq");
  expect_close(found.k, expected.k, scale * greatest(c.q) * row_sum_error, c.shape.text() + " dk");
  expect_close(found.v, expected.v, rows * greatest(c.dout) * (e + kUnit * (rows + 4)), c.shape.text() + " dv");
  expect_close(found.bias, expected.bias, row_sum_error, c.shape.text() + " dbias");
}

TEST(SoftmaxBackward, EqualsReferenceAtEveryLength) {
  EachIsa().run([] {
    for (int64_t length : {0, 1, 2, 15, 16, 17, 33, 63, 64, 65, 97, 129, 257}) {
      for (bool causal : {false, true}) {
        expect_matches_reference(Case({.queries = length, .keys = length, .dim = 20, .value_dim = 12, .causal = causal}));
      }
    }
  });
}

TEST(SoftmaxBackward, EqualsReferenceAtEveryDimension) {
  EachIsa().run([] {
    for (int64_t dim : {1, 3, 60, 64, 100, 128}) {
      for (int64_t value_dim : {int64_t{1}, int64_t{17}, dim}) {
        expect_matches_reference(Case({.queries = 21, .keys = 21, .dim = dim, .value_dim = value_dim, .causal = dim % 3 == 0}));
      }
    }
  });
}

TEST(SoftmaxBackward, EqualsReferenceAcrossLengths) {
  EachIsa().run([] {
    for (auto [queries, keys] : {std::pair{1, 150}, {150, 1}, {7, 130}, {130, 7}, {50, 0}, {0, 50}, {100, 101}}) {
      for (bool causal : {false, true}) {
        expect_matches_reference(Case({.queries = queries, .keys = keys, .heads = 2, .groups = 2, .causal = causal}));
      }
    }
  });
}

TEST(SoftmaxBackward, EqualsReferenceWithMaskBiasAndGroups) {
  EachIsa().run([] {
    for (int64_t length : {1, 33, 100}) {
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

TEST(SoftmaxBackward, EqualsReferenceInPaddedAndPackedLayouts) {
  EachIsa().run([] {
    const std::vector<int64_t> lengths = {0, 90, 17}, of_queries = {0, 1, 1, 60, 100}, of_keys = {0, 30, 40, 40, 90};
    for (bool causal : {false, true}) {
      Case padded({.batch = 3, .queries = 90, .keys = 90, .heads = 2, .causal = causal});
      padded.add_bias();
      padded.options.layout.lengths = lengths;
      for (int64_t b = 0; b < 3; ++b) {
        for (int64_t j = lengths[static_cast<size_t>(b)]; j < 90; ++j) {
          padded.poison_key(b, j);
          std::fill_n(padded.q.begin() + (b * 90 + j) * 2 * 8, 2 * 8, kNan);
          std::fill_n(padded.dout.begin() + (b * 90 + j) * 2 * 8, 2 * 8, kNan);
        }
      }
      expect_matches_reference(padded);
      Case packed({.queries = 100, .keys = 90, .heads = 2, .causal = causal});
      packed.options.layout.cu_seqlens = of_queries;
      packed.options.layout.cu_seqlens_k = of_keys;
      expect_matches_reference(packed);
    }
  });
}

TEST(SoftmaxBackward, GivesOnlyWhatIsAskedFor) {
  Case c({.queries = 40, .keys = 40, .heads = 2});
  Gradients<float> all(c), some(c);
  backward(c, all.views());
  backward(c, {.q = some.views().q});
  EXPECT_EQ(some.q, all.q);
  backward(c, {.v = some.views().v});
  EXPECT_EQ(some.v, all.v);
  backward(c, {.k = some.views().k});
  EXPECT_EQ(some.k, all.k);
}

TEST(SoftmaxBackward, HasTheSameBitsForAnyNumberOfThreads) {
  Case c({.batch = 2, .queries = 200, .keys = 200, .heads = 4, .groups = 2, .dim = 32, .value_dim = 32, .causal = true});
  c.add_bias();
  Gradients<float> expected(c);
  backward(c, expected.views(), 1);
  for (int threads : {2, 7}) {
    const std::unique_ptr<Executor> executor = make_thread_pool(threads);
    Gradients<float> found(c);
    backward(c, found.views(), threads, executor.get());
    EXPECT_EQ(found.q, expected.q) << threads;
    EXPECT_EQ(found.k, expected.k) << threads;
    EXPECT_EQ(found.v, expected.v) << threads;
    EXPECT_EQ(found.bias, expected.bias) << threads;
  }
}

// Outputs in bf16 are rounded, and dout . out with them; gradients are not. Where each query has one dominant key (its own, of a
// logit that is greater by 4 |k|^2 / sqrt(d)) dq is nearly 0, and the rounding would be most of it.
TEST(SoftmaxBackward, IsTheSameFromOutputsThatWereRoundedToBf16) {
  EachIsa().run([] {
    struct Reach {
      bool causal;
      int64_t window, before;
    };
    for (const Reach& reach : {Reach{false, 0, 0}, {true, 0, 0}, {true, 32, 1}, {false, 32, 0}}) {
      for (float sharpness : {0.0F, 4.0F}) {
        Case c({.queries = 150, .keys = 150, .heads = 2, .groups = 2, .dim = 20, .value_dim = 12, .causal = reach.causal});
        c.options.window = reach.window;
        c.options.before = reach.before;
        for (size_t i = 0; sharpness > 0 && i < c.q.size(); ++i) c.q[i] = sharpness * c.k[i];
        const Outputs outputs = forward(c);
        std::vector<BFloat16> rounded;
        for (float value : outputs.out) rounded.push_back(BFloat16::from_float(value));
        const auto backward_with = [&](View4 out) {
          Gradients<float> found(c);
          softmax_attention_backward(c.q_view(), c.k_view(), c.v_view(), out, View3(outputs.logsumexp.data(), c.row_shape()),
                                     c.dout_view(), found.views(), c.options);
          return found;
        };
        const Gradients<float> exact = backward_with(View4(outputs.out.data(), c.out_shape()));
        const Gradients<float> found = backward_with(View4(rounded.data(), c.out_shape()));
        EXPECT_EQ(found.q, exact.q) << c.shape.text() << " window " << reach.window << " sharpness " << sharpness;
        EXPECT_EQ(found.k, exact.k) << c.shape.text() << " window " << reach.window << " sharpness " << sharpness;
        EXPECT_EQ(found.v, exact.v) << c.shape.text() << " window " << reach.window << " sharpness " << sharpness;
      }
    }
  });
}

TEST(SoftmaxBackward, IsFiniteForHugeLogits) {
  EachIsa().run([] {
    for (float magnitude : {1e3F, 1e9F, 1e18F}) {
      const Case c({.queries = 90, .keys = 90, .dim = 1, .value_dim = 8, .causal = true}, 3, magnitude);
      Gradients<float> found(c);
      backward(c, found.views());
      for (const std::vector<float>* values : {&found.q, &found.k, &found.v}) {
        for (float value : *values) ASSERT_TRUE(std::isfinite(value)) << magnitude;
      }
    }
  });
}

TEST(SoftmaxBackward, RefusesGradientsOfAnotherShape) {
  const Case c({.queries = 4, .keys = 5});
  Gradients<float> gradients(c);
  try {
    backward(c, {.k = gradients.views().k.slice(1, 0, 4)});
    FAIL() << "accepted, expected an error";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "softmax_attention_backward: gradients.k has shape [1, 4, 1, 8], expected [1, 5, 1, 8] (shape of the input)");
  }
}

}  // namespace
}  // namespace raffia::internal::softmax_tests
