#include "raffia/eva.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "estimators/sampled_case.h"
#include "raffia/reference_sampled.h"
#include "raffia/threads.h"

namespace raffia::internal::sampled_tests {
namespace {

EvaOptions options_of(const Case& c, EvaOptions options) {
  options.layout = c.layout;
  return options;
}

std::vector<float> run(const Case& c, const EvaOptions& options) {
  std::vector<float> out(size_of_shape(c.out_shape()), kNan);
  eva_attention(c.q_view(), c.k_view(), c.v_view(), MutView4(out.data(), c.out_shape()), options_of(c, options));
  return out;
}

std::vector<double> run_twin(const Case& c, const EvaOptions& options) {
  std::vector<double> out(size_of_shape(c.out_shape()));
  reference::eva_attention(c.q_view(), c.k_view(), c.v_view(), MutView4(out.data(), c.out_shape()), options_of(c, options));
  return out;
}

// Logits of unit normals are at most about 20: sums of d products that err by a few roundings of that, 20 u = 1.2e-6 each.
constexpr double kTolerance = 2e-5;

void expect_matches_twin(const Case& c, const EvaOptions& options, const std::string& what = "") {
  expect_close(run(c, options), run_twin(c, options), kTolerance * (1 + greatest(c.v)),
               c.shape.text() + fmt::format(" samples {} window {} {}", options.samples, options.window, what));
}

Shape self(int64_t length, Shape shape = {}) {
  shape.queries = shape.keys = length;
  return shape;
}

TEST(Eva, EqualsTwinAtEveryLength) {
  for_each_isa([] {
    for (int64_t length : kLengths) {
      for (auto [samples, window] : {std::pair{8, 16}, {64, 1}, {5, 7}, {1, 3}, {1000, 32}}) {
        const Case c(self(length, {.dim = 12, .value_dim = 20}));
        expect_matches_twin(c, {.samples = samples, .window = window});
      }
    }
  });
}

TEST(Eva, EqualsTwinAtEveryDimensionAndGroup) {
  for_each_isa([] {
    for (int64_t dim : {1, 3, 16, 31, 64}) {
      for (int64_t groups : {1, 2, 4}) {
        const Case c(self(50, {.heads = 4, .groups = groups, .dim = dim, .value_dim = dim + 1}));
        expect_matches_twin(c, {.samples = 12, .window = 10});
      }
    }
  });
}

TEST(Eva, EqualsTwinWithMasksAndLengths) {
  for_each_isa([] {
    for (const char* mask : {"x", "xx.", "....x", "xxxxxxxxx..............................", "....................x"}) {
      for (auto [samples, window] : {std::pair{8, 16}, {20, 5}, {3, 200}}) {
        Case c(self(80, {.batch = 2, .heads = 4, .groups = 2, .dim = 10, .value_dim = 9}));
        c.add_mask(mask);
        expect_matches_twin(c, {.samples = samples, .window = window, .scale = 0.7F}, mask);
        c.set_lengths({80, 37});
        expect_matches_twin(c, {.samples = samples, .window = window, .scale = 0.7F}, mask);
      }
    }
  });
}

TEST(Eva, OneWindowIsSoftmax) {
  const Case c(self(100, {.batch = 2, .heads = 2, .groups = 1}));
  std::vector<float> exact(c.dout.size(), kNan);
  softmax_attention(c.q_view(), c.k_view(), c.v_view(), MutView4(exact.data(), c.out_shape()));
  EXPECT_TRUE(same_bits(run(c, {.samples = 10, .window = 100}), exact));
  EXPECT_TRUE(same_bits(run(c, {.samples = 10, .window = INT64_MAX}), exact));
}

TEST(Eva, GivesZeroWhereNothingTakesPart) {
  for_each_isa([] {
    Case c(self(40, {.batch = 2, .heads = 2}));
    c.add_mask(".");
    EXPECT_EQ(run(c, {.samples = 8}), std::vector<float>(c.dout.size(), 0.0F));
    Case padded(self(20, {.batch = 3}));
    padded.set_lengths({0, 20, 7});
    const std::vector<float> out = run(padded, {.samples = 8, .window = 4});
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(out[i] == 0, i / 8 % 20 >= static_cast<size_t>(padded.lengths[i / 160])) << i;
    }
  });
}

TEST(Eva, PackedSequencesEqualSeparateOnes) {
  for_each_isa([] {
    const std::vector<int64_t> offsets = {0, 33, 33, 34, 120};
    Case c(self(120, {.heads = 4, .groups = 2}));
    c.add_mask("xxxxx.x");
    c.set_cu_seqlens(offsets);
    const EvaOptions options{.samples = 12, .window = 6};
    const std::vector<float> packed = run(c, options);
    expect_close(packed, run_twin(c, options), kTolerance * (1 + greatest(c.v)), "packed");
    for (size_t n = 0; n + 1 < offsets.size(); ++n) {
      const int64_t first = offsets[n], length = offsets[n + 1] - first;
      std::vector<float> out(static_cast<size_t>(length * 4 * 8), kNan);
      EvaOptions alone = options;
      alone.layout.valid = c.layout.valid.slice(1, first, length);
      eva_attention(c.q_view().slice(1, first, length), c.k_view().slice(1, first, length), c.v_view().slice(1, first, length),
                    MutView4(out.data(), {1, length, 4, 8}), alone);
      EXPECT_TRUE(same_bits(out, tokens_of(View4(packed.data(), c.out_shape()), 0, first, length))) << n;
    }
  });
}

TEST(Eva, EntriesOfABatchDoNotMeet) {
  const Case c(self(50, {.batch = 3, .heads = 2}));
  const std::vector<float> whole = run(c, {.samples = 16, .window = 6});
  for (int64_t b = 0; b < 3; ++b) {
    std::vector<float> out(whole.size() / 3, kNan);
    eva_attention(c.q_view().slice(0, b, 1), c.k_view().slice(0, b, 1), c.v_view().slice(0, b, 1),
                  MutView4(out.data(), {1, 50, 2, 8}), {.samples = 16, .window = 6});
    EXPECT_TRUE(same_bits(out, tokens_of(View4(whole.data(), c.out_shape()), b, 0, 50)));
  }
}

TEST(Eva, ReadsAndWritesAnyStrides) {
  for_each_isa([] {
    const Case c(self(37, {.batch = 2, .heads = 4, .groups = 2, .dim = 9, .value_dim = 6}));
    const auto heads_first = [](const std::vector<float>& x, const Extents<4>& shape, std::vector<float>& to) {
      to = elements_of(View4(x.data(), shape).permuted({0, 2, 1, 3}));
      return MutView4(to.data(), {shape[0], shape[2], shape[1], shape[3]}).permuted({0, 2, 1, 3});
    };
    const EvaOptions options{.samples = 12, .window = 8};
    std::vector<float> q, k, v, out;
    const View4 q_view = heads_first(c.q, c.q_shape(), q), k_view = heads_first(c.k, c.k_shape(), k);
    const View4 v_view = heads_first(c.v, c.v_shape(), v);
    const MutView4 out_view = heads_first(c.dout, c.out_shape(), out);
    eva_attention(q_view, k_view, v_view, out_view, options);
    EXPECT_TRUE(same_bits(elements_of(out_view), run(c, options)));
  });
}

TEST(Eva, RoundsBf16OnceAtEachEnd) {
  for_each_isa([] {
    Case c(self(50, {.batch = 2, .heads = 4, .groups = 2, .dim = 20}));
    const std::vector<BFloat16> q = round_to_bf16(c.q), k = round_to_bf16(c.k), v = round_to_bf16(c.v);
    std::vector<BFloat16> out(c.dout.size());
    const EvaOptions options{.samples = 16, .window = 6};
    eva_attention(View4(q.data(), c.q_shape()), View4(k.data(), c.k_shape()), View4(v.data(), c.v_shape()),
                  MutView4(out.data(), c.out_shape()), options);
    const std::vector<float> expected = run(c, options);
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i].bits, BFloat16::from_float(expected[i]).bits) << i;
  });
}

TEST(Eva, OutputsAreWithinTheHullOfValues) {
  for (float scale : {1.0F, 8.0F}) {
    const Case c(self(200, {.dim = 64, .value_dim = 3, .scale = scale, .memory = 0.9F}));
    const std::vector<float> out = run(c, {.samples = 32, .window = 16});
    for (size_t column = 0; column < 3; ++column) {
      float min = HUGE_VALF, max = -HUGE_VALF;
      for (size_t i = column; i < c.v.size(); i += 3) min = std::min(min, c.v[i]), max = std::max(max, c.v[i]);
      // A mean of values and means, both rounded: some 200 additions of weights that sum to one.
      for (size_t i = column; i < out.size(); i += 3) {
        EXPECT_TRUE(out[i] >= min - 1e-4F && out[i] <= max + 1e-4F) << out[i];
      }
    }
  }
}

TEST(Eva, StaysNearTheTwinAtLargeScales) {
  for (int64_t length : {256, 1024}) {
    const Case c(self(length, {.dim = 64, .value_dim = 64, .scale = 4, .memory = 0.98F}));
    const EvaOptions options{.samples = 64, .window = 32};
    EXPECT_LE(greatest_difference(run(c, options), run_twin(c, options)), 1e-4) << c.shape.text();
  }
}

struct Backward {
  std::vector<float> q, k, v;
};

Backward run_backward(const Case& c, EvaOptions options, std::vector<float>* out_of_forward = nullptr) {
  options = options_of(c, options);
  std::vector<float> out(c.dout.size(), kNan);
  std::vector<float> record(static_cast<size_t>(eva_record_size(c.q_view(), c.k_view(), c.v_view(), options)), kNan);
  eva_attention(c.q_view(), c.k_view(), c.v_view(), MutView4(out.data(), c.out_shape()), options, record);
  const std::vector<float> kept = record;
  Backward d{std::vector<float>(c.q.size(), kNan), std::vector<float>(c.k.size(), kNan), std::vector<float>(c.v.size(), kNan)};
  eva_attention_backward(
      c.q_view(), c.k_view(), c.v_view(), View4(out.data(), c.out_shape()), record, c.dout_view(),
      {.q = MutView4(d.q.data(), c.q_shape()), .k = MutView4(d.k.data(), c.k_shape()), .v = MutView4(d.v.data(), c.v_shape())},
      options);
  EXPECT_TRUE(same_bits(kept, record)) << "the record must not change";
  if (out_of_forward != nullptr) *out_of_forward = out;
  return d;
}

TEST(Eva, IsFiniteAtHugeScales) {
  for_each_isa([] {
    for (float scale : {16.0F, 1e4F}) {
      const Case c(self(150, {.heads = 2, .dim = 64, .scale = scale, .memory = 0.98F}));
      std::vector<float> out;
      const Backward d = run_backward(c, {.samples = 32, .window = 10}, &out);
      for (const std::vector<float>& found : {out, d.q, d.k, d.v}) {
        for (float x : found) ASSERT_TRUE(std::isfinite(x)) << scale << c.shape.text();
      }
    }
  });
}

TEST(Eva, ThreadsDoNotChangeABit) {
  const Case c(self(300, {.batch = 2, .heads = 4, .groups = 2, .dim = 20}));
  EvaOptions options{.samples = 24, .run = {.threads = 1}};
  std::vector<float> expected;
  const Backward d = run_backward(c, options, &expected);
  for (int threads : {2, 3}) {
    const std::unique_ptr<Executor> pool = make_thread_pool(threads);
    options.run.threads = threads;
    options.run.executor = pool.get();
    std::vector<float> out;
    const Backward other = run_backward(c, options, &out);
    EXPECT_TRUE(same_bits(out, expected));
    EXPECT_TRUE(same_bits(other.q, d.q) && same_bits(other.k, d.k) && same_bits(other.v, d.v));
  }
}

void expect_gradients(const Case& c, const EvaOptions& options, const std::string& what) {
  const Gradients expected = differences(
      c, [&](View4 q, View4 k, View4 v, MutView4 out) { reference::eva_attention(q, k, v, out, options_of(c, options)); });
  for_each_isa([&] {
    const Backward found = run_backward(c, options);
    // Gradients of order one, through logits within kTolerance, summed over at most 20 tokens.
    expect_close(found.q, expected.q, 1e-4, what + " dq " + c.shape.text());
    expect_close(found.k, expected.k, 1e-4, what + " dk " + c.shape.text());
    expect_close(found.v, expected.v, 1e-4, what + " dv " + c.shape.text());
  });
}

TEST(EvaBackward, EqualsDifferencesOfTheTwin) {
  for (auto [samples, window] : {std::pair{4, 3}, {20, 2}, {1, 4}, {5, 100}}) {
    const Case c(self(13, {.heads = 2, .groups = 1, .dim = 5, .value_dim = 3, .memory = 0.5F}));
    expect_gradients(c, {.samples = samples, .window = window}, fmt::format("samples {} window {}", samples, window));
  }
}

TEST(EvaBackward, EqualsDifferencesWithMasksLengthsAndPacking) {
  const EvaOptions options{.samples = 4, .window = 3, .scale = 0.6F};
  Case masked(self(11, {.batch = 2, .heads = 4, .groups = 2, .dim = 3, .value_dim = 2}));
  masked.add_mask("xx...xxx.x.");
  expect_gradients(masked, options, "mask");
  Case padded(self(7, {.batch = 3, .heads = 2, .groups = 2, .dim = 3, .value_dim = 2}));
  padded.set_lengths({0, 7, 4});
  expect_gradients(padded, options, "lengths");
  Case packed(self(14, {.heads = 2, .dim = 3, .value_dim = 2}));
  packed.add_mask("xx.x.....");
  packed.set_cu_seqlens({0, 4, 4, 8, 14});
  expect_gradients(packed, options, "packed");
}

TEST(EvaBackward, WhatMaskedTokensHoldReachesNoGradient) {
  for_each_isa([] {
    Case c(self(18, {.batch = 2, .heads = 4, .groups = 2}));
    c.add_mask("xx.xxxx.x");
    const Backward expected = run_backward(c, {.samples = 6, .window = 4});
    c.poison_masked_queries();
    const Backward found = run_backward(c, {.samples = 6, .window = 4});
    EXPECT_TRUE(same_bits(found.q, expected.q) && same_bits(found.k, expected.k) && same_bits(found.v, expected.v));
    for (float x : found.k) ASSERT_TRUE(std::isfinite(x));
  });
}

TEST(Eva, MoreSamplesThanTokensIsSoftmax) {
  const Case c(self(8, {}));
  const std::vector<float> many = run(c, {.samples = INT64_MAX, .window = 2}), enough = run(c, {.samples = 8, .window = 2});
  EXPECT_TRUE(same_bits(many, enough));
}

TEST(EvaBackward, RoundsBf16Once) {
  Case c(self(40, {.batch = 2, .heads = 4, .groups = 2, .dim = 12}));
  const std::vector<BFloat16> q = round_to_bf16(c.q), k = round_to_bf16(c.k), v = round_to_bf16(c.v);
  const std::vector<BFloat16> dout = round_to_bf16(c.dout);
  EvaOptions options{.samples = 16, .window = 5};
  std::vector<float> out;
  const Backward expected = run_backward(c, options, &out);
  std::vector<float> record(static_cast<size_t>(eva_record_size(c.q_view(), c.k_view(), c.v_view(), options)));
  const View4 q_view(q.data(), c.q_shape()), k_view(k.data(), c.k_shape()), v_view(v.data(), c.v_shape());
  eva_attention(q_view, k_view, v_view, MutView4(out.data(), c.out_shape()), options, record);
  std::vector<BFloat16> dq(q.size()), dk(k.size()), dv(v.size());
  eva_attention_backward(
      q_view, k_view, v_view, View4(out.data(), c.out_shape()), record, View4(dout.data(), c.out_shape()),
      {.q = MutView4(dq.data(), c.q_shape()), .k = MutView4(dk.data(), c.k_shape()), .v = MutView4(dv.data(), c.v_shape())},
      options);
  const auto expect_rounded = [](const std::vector<BFloat16>& found, const std::vector<float>& exact) {
    for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i].bits, BFloat16::from_float(exact[i]).bits) << i;
  };
  expect_rounded(dq, expected.q);
  expect_rounded(dk, expected.k);
  expect_rounded(dv, expected.v);
}

TEST(Eva, RefusesWhatDoesNotFitAndWritesNothing) {
  const Case c(self(6, {.batch = 2, .heads = 4, .groups = 2, .dim = 3, .value_dim = 5}));
  std::vector<float> out(c.dout.size(), 7.0F);
  const auto refusal = [&](const EvaOptions& options, View4 k, View4 v, std::span<float> to_record = {}) {
    return refusal_of([&] { eva_attention(c.q_view(), k, v, MutView4(out.data(), c.out_shape()), options, to_record); });
  };
  EXPECT_EQ(refusal({.samples = 0}, c.k_view(), c.v_view()), "eva_attention: samples is 0, expected at least 1");
  EXPECT_EQ(refusal({.window = 0}, c.k_view(), c.v_view()), "eva_attention: window is 0, expected at least 1");
  EXPECT_EQ(refusal({.scale = 0.0F}, c.k_view(), c.v_view()), "eva_attention: scale is 0, expected a positive number");
  EXPECT_EQ(refusal({}, c.k_view().slice(1, 0, 5), c.v_view().slice(1, 0, 5)),
            "eva_attention: there are 6 queries and 5 keys, or cu_seqlens_k is given; expected self attention");
  std::vector<float> record(3);
  const int64_t size = eva_record_size(c.q_view(), c.k_view(), c.v_view());
  EXPECT_EQ(refusal({}, c.k_view(), c.v_view(), record),
            fmt::format("eva_attention: record has 3 floats, expected {} (its record size)", size));
  EXPECT_EQ(out, std::vector<float>(out.size(), 7.0F));
  EXPECT_EQ(
      refusal_of([&] { eva_attention_backward(c.q_view(), c.k_view(), c.v_view(), c.dout_view(), record, c.dout_view(), {}); }),
      fmt::format("eva_attention_backward: record has 3 floats, expected {} (its record size)", size));
}

}  // namespace
}  // namespace raffia::internal::sampled_tests
