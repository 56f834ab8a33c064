#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "estimators/softmax_case.h"
#include "raffia/error.h"
#include "raffia/threads.h"

namespace raffia::internal::softmax_tests {
namespace {

// `c` has one query per session; `keys` is the capacity of its caches.
Outputs step(const Case& c, const std::vector<int64_t>& lengths, View4 k, View4 v, int threads = 0,
             Executor* executor = nullptr) {
  Outputs outputs(c);
  SoftmaxOptions options = c.options;
  options.run.threads = threads;
  options.run.executor = executor;
  const Shape& s = c.shape;
  softmax_step(View3(c.q.data(), {s.batch, s.heads, s.dim}), k, v, lengths,
               MutView3(outputs.out.data(), {s.batch, s.heads, s.value_dim}), options,
               MutView3(outputs.logsumexp.data(), c.row_shape()));
  return outputs;
}
Outputs step(const Case& c, const std::vector<int64_t>& lengths, int threads = 0, Executor* executor = nullptr) {
  return step(c, lengths, c.k_view(), c.v_view(), threads, executor);
}

// [B, T, H, D] in the memory of [B, H, T, D].
struct HeadsApart {
  explicit HeadsApart(View4 from)
      : floats(static_cast<size_t>(from.size())),
        view(View4(floats.data(), {from.extent(0), from.extent(2), from.extent(1), from.extent(3)}).permuted({0, 2, 1, 3})) {
    const float* row = static_cast<const float*>(from.data());
    for (int64_t b = 0; b < from.extent(0); ++b) {
      for (int64_t t = 0; t < from.extent(1); ++t) {
        for (int64_t h = 0; h < from.extent(2); ++h, row += from.extent(3)) {
          std::copy_n(row, from.extent(3), floats.data() + view.offset(b, t, h, int64_t{0}));
        }
      }
    }
  }

  std::vector<float> floats;
  View4 view;
};

void expect_matches_reference(Case& c, const std::vector<int64_t>& lengths, bool apart = false) {
  for (int64_t b = 0; b < c.shape.batch; ++b) {
    for (int64_t j = lengths[static_cast<size_t>(b)]; j < c.shape.keys; ++j) c.poison_key(b, j);
  }
  const Outputs found = apart ? step(c, lengths, HeadsApart(c.k_view()).view, HeadsApart(c.v_view()).view) : step(c, lengths);
  std::vector<double> out(found.out.size()), logsumexp(found.logsumexp.size());
  SoftmaxOptions options = c.options;
  options.layout.lengths = lengths;
  reference::softmax_attention(c.q_view(), c.k_view(), c.v_view(), MutView4(out.data(), c.out_shape()), options,
                               MutView3(logsumexp.data(), c.row_shape()));
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_LE(std::abs(static_cast<double>(found.out[i]) - out[i]), c.out_error()) << c.shape.text() << " at " << i;
  }
  for (size_t i = 0; i < logsumexp.size(); ++i) {
    if (std::isinf(logsumexp[i])) {
      ASSERT_EQ(static_cast<double>(found.logsumexp[i]), logsumexp[i]);
    } else {
      const double error = c.probability_error() + kUnit * (c.greatest_logit() + std::log(static_cast<double>(c.shape.keys + 1)));
      ASSERT_LE(std::abs(static_cast<double>(found.logsumexp[i]) - logsumexp[i]), error) << c.shape.text() << " at " << i;
    }
  }
}

TEST(SoftmaxStep, EqualsReferenceAtEveryLength) {
  EachIsa().run([] {
    for (int64_t length : {0, 1, 2, 15, 16, 17, 65, 255, 256, 257, 601}) {
      Case c({.batch = 2, .queries = 1, .keys = 610, .heads = 4, .groups = 2, .dim = 20, .value_dim = 12});
      expect_matches_reference(c, {length, 610 - length});
    }
  });
}

TEST(SoftmaxStep, EqualsReferenceAtEveryDimension) {
  EachIsa().run([] {
    for (int64_t dim : {1, 3, 16, 60, 64, 100, 128}) {
      for (int64_t value_dim : {int64_t{1}, int64_t{17}, dim}) {
        Case c({.batch = 1, .queries = 1, .keys = 40, .heads = 2, .dim = dim, .value_dim = value_dim});
        expect_matches_reference(c, {37});
      }
    }
  });
}

TEST(SoftmaxStep, EqualsReferenceWithMaskAndBias) {
  EachIsa().run([] {
    Case c({.batch = 2, .queries = 1, .keys = 300, .heads = 6, .groups = 3, .dim = 16, .value_dim = 16});
    c.add_bias();
    c.add_mask();
    expect_matches_reference(c, {290, 45});
  });
}

TEST(SoftmaxStep, HeadsThatLieApartEqualTheReference) {
  EachIsa().run([] {
    for (int64_t dim : {16, 64, 80}) {
      for (bool masked : {false, true}) {
        Case c({.batch = 2, .queries = 1, .keys = 280, .heads = 6, .groups = 3, .dim = dim, .value_dim = dim});
        if (masked) {
          c.add_bias();
          c.add_mask();
        }
        expect_matches_reference(c, {275, 44}, true);
      }
    }
  });
}

// Both are within their bounds of the exact result, so they are within twice that of each other.
TEST(SoftmaxStep, EqualsTheLastRowOfTheCausalForward) {
  EachIsa().run([] {
    const int64_t length = 300;
    const Case whole({.queries = length, .keys = length, .heads = 4, .groups = 2, .dim = 64, .value_dim = 64, .causal = true});
    const Outputs expected = forward(whole);
    for (int64_t t : {int64_t{1}, int64_t{64}, length}) {
      Case c({.queries = 1, .keys = length, .heads = 4, .groups = 2, .dim = 64, .value_dim = 64});
      c.q.assign(whole.q.begin() + (t - 1) * 4 * 64, whole.q.begin() + t * 4 * 64);
      const Outputs found = step(c, {t});
      for (size_t i = 0; i < found.out.size(); ++i) {
        const float row = expected.out[static_cast<size_t>((t - 1) * 4 * 64) + i];
        ASSERT_LE(std::abs(static_cast<double>(found.out[i]) - static_cast<double>(row)), 2 * whole.out_error())
            << t << " at " << i;
      }
    }
  });
}

TEST(SoftmaxStep, ReadsCachesOfAnyStridesAndBf16) {
  EachIsa().run([] {
    Case c({.batch = 2, .queries = 1, .keys = 70, .heads = 3, .groups = 3, .dim = 24, .value_dim = 24});
    const Extents<4> apart = {2, 3, 70, 24};
    std::vector<BFloat16> k(c.k.size()), v(c.v.size());
    const auto round = [](std::vector<float>& values) {
      for (float& value : values) value = BFloat16::from_float(value).to_float();
    };
    round(c.k);
    round(c.v);
    const MutView4 k_apart = MutView4(k.data(), apart).permuted({0, 2, 1, 3}),
                   v_apart = MutView4(v.data(), apart).permuted({0, 2, 1, 3});
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t t = 0; t < 70; ++t) {
        for (int64_t h = 0; h < 3; ++h) {
          for (int64_t i = 0; i < 24; ++i) {
            k_apart.set(c.k_view()(b, t, h, i), b, t, h, i);
            v_apart.set(c.v_view()(b, t, h, i), b, t, h, i);
          }
        }
      }
    }
    const std::vector<int64_t> lengths = {70, 33};
    const Outputs expected = step(c, lengths);
    std::vector<float> out(expected.out.size());
    softmax_step(View3(c.q.data(), {2, 3, 24}), k_apart, v_apart, lengths, MutView3(out.data(), {2, 3, 24}));
    EXPECT_EQ(out, expected.out);
  });
}

TEST(SoftmaxStep, HasTheSameBitsForAnyNumberOfThreads) {
  const Case c({.batch = 3, .queries = 1, .keys = 700, .heads = 4, .groups = 2, .dim = 32, .value_dim = 32});
  const std::vector<int64_t> lengths = {700, 0, 300};
  const Outputs expected = step(c, lengths, 1);
  for (int threads : {2, 7}) {
    const std::unique_ptr<Executor> executor = make_thread_pool(threads);
    EXPECT_EQ(step(c, lengths, threads, executor.get()).out, expected.out) << threads;
  }
}

TEST(SoftmaxStep, ValuesWithoutDimensionsHaveALogsumexp) {
  EachIsa().run([] {
    Case c({.batch = 1, .queries = 1, .keys = 40, .heads = 2, .dim = 16, .value_dim = 0});
    const std::vector<float> memory(1);  // views without elements may have memory
    const Outputs found = step(c, {37}, c.k_view(), View4(memory.data(), {1, 40, 1, 0}));
    for (const float logsumexp : found.logsumexp) EXPECT_TRUE(std::isfinite(logsumexp));
  });
}

// A bias of -inf hides keys: where it hides all of them the output is 0, whatever the values hold.
TEST(SoftmaxStep, HiddenKeysGiveZeros) {
  EachIsa().run([] {
    Case c({.batch = 1, .queries = 1, .keys = 21, .heads = 2, .dim = 16, .value_dim = 20});
    c.add_bias();
    std::fill(c.bias.begin(), c.bias.end(), -std::numeric_limits<float>::infinity());
    std::fill(c.v.begin(), c.v.end(), kNan);
    const Outputs found = step(c, {21});
    for (const float value : found.out) EXPECT_EQ(value, 0.0f);
    for (const float logsumexp : found.logsumexp) EXPECT_EQ(logsumexp, -std::numeric_limits<float>::infinity());
  });
}

TEST(SoftmaxStep, RefusesLengthsPastTheCapacity) {
  const Case c({.queries = 1, .keys = 5});
  try {
    step(c, {6});
    FAIL() << "accepted, expected an error";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "softmax_step: lengths[0] is 6, expected 0 to 5 (capacity of k_cache)");
  }
}

}  // namespace
}  // namespace raffia::internal::softmax_tests
