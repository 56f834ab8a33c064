#include "raffia/lara.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

#include "estimators/sampled_case.h"
#include "raffia/reference_sampled.h"
#include "raffia/threads.h"

namespace raffia::internal::sampled_tests {
namespace {

LaraOptions options_of(const Case& c, LaraOptions options) {
  options.layout = c.layout;
  return options;
}

std::vector<float> run(const Case& c, const LaraOptions& options) {
  std::vector<float> out(size_of_shape(c.out_shape()), kNan);
  lara_attention(c.q_view(), c.k_view(), c.v_view(), MutView4(out.data(), c.out_shape()), options_of(c, options));
  return out;
}

std::vector<double> run_twin(const Case& c, const LaraOptions& options) {
  std::vector<double> out(size_of_shape(c.out_shape()));
  reference::lara_attention(c.q_view(), c.k_view(), c.v_view(), MutView4(out.data(), c.out_shape()), options_of(c, options));
  return out;
}

// Logits of unit normals are at most about 40 (w . k' with |w| up to 14 and |k'| up to 3 at 64 dimensions). A sum of d products
// errs by a few roundings of that, 40 u = 2.4e-6 each, and three such sums meet in an output.
constexpr double kTolerance = 4e-5;

// On every ISA.
void expect_matches_twin(const Case& c, const LaraOptions& options, const std::string& what = "") {
  const std::vector<double> expected = run_twin(c, options);
  for_each_isa([&] {
    expect_close(run(c, options), expected, kTolerance * (1 + greatest(c.v)),
                 c.shape.text() + fmt::format(" samples {}/{} {} {} ", options.samples, options.samples_per_proposal,
                                              name_of(options.proposals), what));
  });
}

constexpr Proposals kProposals[] = {Proposals::chunk_mean, Proposals::qk_mixed, Proposals::standard};

TEST(Lara, EqualsTwinAtEveryLength) {
  for (int64_t length : kLengths) {
    for (Proposals proposals : kProposals) {
      const Case c({.queries = length, .keys = length, .dim = 12, .value_dim = 20});
      expect_matches_twin(c, {.samples = 17, .proposals = proposals, .seed = 5});
    }
  }
}

TEST(Lara, EqualsTwinAtEveryDimension) {
  for (int64_t dim : {1, 3, 16, 31, 64}) {
    for (int64_t value_dim : {int64_t{1}, int64_t{17}, dim}) {
      const Case c({.queries = 50, .keys = 50, .heads = 2, .groups = 2, .dim = dim, .value_dim = value_dim});
      expect_matches_twin(c, {.samples = 24, .seed = 5});
    }
  }
}

TEST(Lara, EqualsTwinForEveryNumberOfSamples) {
  for (auto [samples, per_proposal] :
       {std::pair{1, 1}, {16, 4}, {63, 1}, {64, 1}, {64, 64}, {65, 5}, {130, 2}, {200, 1}, {12, 3}}) {
    for (Proposals proposals : kProposals) {
      const Case c({.queries = 70, .keys = 70, .heads = 4, .groups = 2, .memory = 0.9F});
      expect_matches_twin(c, {.samples = samples, .samples_per_proposal = per_proposal, .proposals = proposals});
    }
  }
}

TEST(Lara, EqualsTwinInMeanMode) {
  for (Proposals proposals : kProposals) {
    const Case c({.queries = 70, .keys = 70, .heads = 4, .groups = 2, .memory = 0.9F});
    expect_matches_twin(c, {.samples = 16, .samples_per_proposal = 2, .proposals = proposals, .mean = true}, "mean");
  }
}

TEST(Lara, EqualsTwinWithIidDraws) {
  const Case c({.queries = 40, .keys = 40, .heads = 2});
  expect_matches_twin(c, {.samples = 16, .draws = Draws::iid, .seed = 9, .layer = 3, .draw = 7});
}

TEST(Lara, EqualsTwinWithWeightsOfMisOpt) {
  for (Proposals proposals : {Proposals::chunk_mean, Proposals::qk_mixed}) {
    for (float strength : {0.0F, 1.0F, 3.0F}) {
      Case c({.batch = 2, .queries = 70, .keys = 70, .heads = 4, .groups = 2, .memory = 0.9F});
      const LaraOptions options{.samples = 16,
                                .samples_per_proposal = 2,
                                .proposals = proposals,
                                .weights = SampleWeights::mis_opt,
                                .mis_opt_strength = strength};
      expect_matches_twin(c, options, "mis-opt");
      c.add_mask("xx.xxx.");
      expect_matches_twin(c, options, "mis-opt masked");
      const Case cross({.queries = 30, .keys = 41, .heads = 2});
      expect_matches_twin(cross, options, "mis-opt cross");
    }
  }
}

TEST(Lara, EqualsTwinAcrossLengths) {
  for (auto [queries, keys] : {std::pair{1, 200}, {200, 1}, {7, 150}, {150, 7}, {100, 0}, {0, 100}, {130, 131}}) {
    for (Proposals proposals : kProposals) {
      Case c({.batch = 2, .queries = queries, .keys = keys, .heads = 2});
      expect_matches_twin(c, {.samples = 10, .proposals = proposals});
      c.set_lengths({keys / 2, keys});
      expect_matches_twin(c, {.samples = 10, .proposals = proposals}, "lengths");
    }
  }
}

TEST(Lara, EqualsTwinWithMasksLengthsAndGroups) {
  for (const char* mask : {"x", "xx.", "....x", "...................................x", "x................"}) {
    for (Proposals proposals : kProposals) {
      Case c({.batch = 2, .queries = 80, .keys = 80, .heads = 6, .groups = 2, .dim = 10, .value_dim = 9});
      c.add_mask(mask);
      expect_matches_twin(c, {.samples = 20, .samples_per_proposal = 2, .proposals = proposals, .scale = 0.7F}, mask);
      c.set_lengths({80, 37});
      expect_matches_twin(c, {.samples = 20, .samples_per_proposal = 2, .proposals = proposals, .scale = 0.7F}, mask);
    }
  }
}

TEST(Lara, QueriesOfMaskedKeysCountForNoMean) {
  Case c({.queries = 40, .keys = 40, .heads = 2});
  c.add_mask("xxx.");
  const std::vector<float> before = run(c, {.samples = 8});
  const auto width = c.shape.heads * c.shape.dim;
  for (int64_t t = 3; t < 40; t += 4) std::fill_n(c.q.begin() + t * width, width, 3.0F);
  const std::vector<float> after = run(c, {.samples = 8});
  const int64_t out_width = c.shape.heads * c.shape.value_dim;
  for (int64_t t = 0; t < 40; ++t) {
    const auto row = [&](const std::vector<float>& x) {
      return std::span(x).subspan(static_cast<size_t>(t * out_width), static_cast<size_t>(out_width));
    };
    EXPECT_EQ(same_bits(row(before), row(after)), t % 4 != 3) << t;
  }
}

TEST(Lara, GivesZeroWhereNothingTakesPart) {
  for_each_isa([] {
    for (Proposals proposals : kProposals) {
      Case c({.batch = 2, .queries = 40, .keys = 40, .heads = 2});
      c.add_mask(".");
      EXPECT_EQ(run(c, {.samples = 8, .proposals = proposals}), std::vector<float>(c.dout.size(), 0.0F));
      Case padded({.batch = 3, .queries = 20, .keys = 20});
      padded.set_lengths({0, 20, 7});
      const std::vector<float> out = run(padded, {.samples = 8, .proposals = proposals});
      for (size_t i = 0; i < out.size(); ++i) {
        const size_t b = i / 160, t = i / 8 % 20;
        EXPECT_EQ(out[i] == 0, t >= static_cast<size_t>(padded.lengths[b])) << i;
      }
    }
  });
}

TEST(Lara, PackedSequencesEqualSeparateOnes) {
  for_each_isa([] {
    for (bool cross : {false, true}) {
      const std::vector<int64_t> offsets = {0, 33, 33, 34, 120},
                                 of_keys = cross ? std::vector<int64_t>{0, 5, 40, 60, 100} : offsets;
      Case c({.queries = 120, .keys = of_keys.back(), .heads = 4, .groups = 2});
      c.add_mask("xxxxx.x");
      c.set_cu_seqlens(offsets, cross ? of_keys : std::vector<int64_t>{});
      for (Proposals proposals : kProposals) {
        const LaraOptions options{.samples = 12, .proposals = proposals};
        const std::vector<float> packed = run(c, options);
        expect_close(packed, run_twin(c, options), kTolerance * (1 + greatest(c.v)), "packed");
        for (size_t n = 0; n + 1 < offsets.size(); ++n) {
          const int64_t queries = offsets[n + 1] - offsets[n], keys = of_keys[n + 1] - of_keys[n];
          if (cross && queries == keys) continue;  // self attention when alone
          std::vector<float> out(static_cast<size_t>(queries * 4 * 8), kNan);
          LaraOptions alone = options;
          alone.layout.valid = c.layout.valid.slice(1, of_keys[n], keys);
          lara_attention(c.q_view().slice(1, offsets[n], queries), c.k_view().slice(1, of_keys[n], keys),
                         c.v_view().slice(1, of_keys[n], keys), MutView4(out.data(), {1, queries, 4, 8}), alone);
          EXPECT_TRUE(same_bits(out, tokens_of(View4(packed.data(), c.out_shape()), 0, offsets[n], queries))) << n;
        }
      }
    }
  });
}

TEST(Lara, EntriesOfABatchDoNotMeet) {
  const Case c({.batch = 3, .queries = 50, .keys = 50, .heads = 2});
  const std::vector<float> whole = run(c, {.samples = 16});
  for (int64_t b = 0; b < 3; ++b) {
    std::vector<float> out(whole.size() / 3, kNan);
    lara_attention(c.q_view().slice(0, b, 1), c.k_view().slice(0, b, 1), c.v_view().slice(0, b, 1),
                   MutView4(out.data(), {1, 50, 2, 8}), {.samples = 16});
    EXPECT_TRUE(same_bits(out, tokens_of(View4(whole.data(), c.out_shape()), b, 0, 50)));
  }
}

TEST(Lara, ReadsAndWritesAnyStrides) {
  for_each_isa([] {
    const Case c({.batch = 2, .queries = 37, .keys = 37, .heads = 4, .groups = 2, .dim = 9, .value_dim = 6});
    const auto heads_first = [](const std::vector<float>& x, const Extents<4>& shape, std::vector<float>& to) {
      to = elements_of(View4(x.data(), shape).permuted({0, 2, 1, 3}));
      return MutView4(to.data(), {shape[0], shape[2], shape[1], shape[3]}).permuted({0, 2, 1, 3});
    };
    const LaraOptions options{.samples = 12, .proposals = Proposals::qk_mixed};
    std::vector<float> q, k, v, out;
    const View4 q_view = heads_first(c.q, c.q_shape(), q), k_view = heads_first(c.k, c.k_shape(), k);
    const View4 v_view = heads_first(c.v, c.v_shape(), v);
    const MutView4 out_view = heads_first(c.dout, c.out_shape(), out);
    lara_attention(q_view, k_view, v_view, out_view, options);
    EXPECT_TRUE(same_bits(elements_of(out_view), run(c, options)));
    // Columns apart.
    std::vector<float> wide(2 * c.q.size());
    for (size_t i = 0; i < c.q.size(); ++i) wide[2 * i] = c.q[i], wide[2 * i + 1] = kNan;
    std::vector<float> other(out.size(), kNan);
    lara_attention(View4(wide.data(), c.q_shape(), {2 * 37 * 36, 2 * 36, 2 * 9, 2}), c.k_view(), c.v_view(),
                   MutView4(other.data(), c.out_shape()), options);
    EXPECT_TRUE(same_bits(other, run(c, options)));
  });
}

TEST(Lara, RoundsBf16OnceAtEachEnd) {
  for_each_isa([] {
    Case c({.batch = 2, .queries = 50, .keys = 50, .heads = 4, .groups = 2, .dim = 20});
    const std::vector<BFloat16> q = round_to_bf16(c.q), k = round_to_bf16(c.k), v = round_to_bf16(c.v);
    std::vector<BFloat16> out(c.dout.size());
    lara_attention(View4(q.data(), c.q_shape()), View4(k.data(), c.k_shape()), View4(v.data(), c.v_shape()),
                   MutView4(out.data(), c.out_shape()), {.samples = 16});
    const std::vector<float> expected = run(c, {.samples = 16});
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i].bits, BFloat16::from_float(expected[i]).bits) << i;
  });
}

struct Backward {
  std::vector<float> q, k, v;
};

Backward run_backward(const Case& c, LaraOptions options, std::vector<float>* out_of_forward = nullptr) {
  options = options_of(c, options);
  std::vector<float> out(c.dout.size(), kNan);
  std::vector<float> record(static_cast<size_t>(lara_record_size(c.q_view(), c.k_view(), c.v_view(), options)), kNan);
  lara_attention(c.q_view(), c.k_view(), c.v_view(), MutView4(out.data(), c.out_shape()), options, record);
  const std::vector<float> kept = record;
  Backward d{std::vector<float>(c.q.size(), kNan), std::vector<float>(c.k.size(), kNan), std::vector<float>(c.v.size(), kNan)};
  lara_attention_backward(
      c.q_view(), c.k_view(), c.v_view(), View4(out.data(), c.out_shape()), record, c.dout_view(),
      {.q = MutView4(d.q.data(), c.q_shape()), .k = MutView4(d.k.data(), c.k_shape()), .v = MutView4(d.v.data(), c.v_shape())},
      options);
  EXPECT_TRUE(same_bits(kept, record)) << "the record must not change";
  if (out_of_forward != nullptr) *out_of_forward = out;
  return d;
}

TEST(Lara, ThreadsDoNotChangeABit) {
  const Case c({.batch = 2, .queries = 300, .keys = 300, .heads = 4, .groups = 2, .dim = 20});
  const LaraOptions one{.samples = 24, .proposals = Proposals::qk_mixed, .run = {.threads = 1}};
  std::vector<float> expected;
  const Backward d = run_backward(c, one, &expected);
  for (int threads : {2, 3}) {
    const std::unique_ptr<Executor> pool = make_thread_pool(threads);
    LaraOptions many = one;
    many.run.threads = threads;
    many.run.executor = pool.get();
    std::vector<float> out;
    const Backward other = run_backward(c, many, &out);
    EXPECT_TRUE(same_bits(out, expected));
    EXPECT_TRUE(same_bits(other.q, d.q) && same_bits(other.k, d.k) && same_bits(other.v, d.v));
  }
}

TEST(Lara, StandardProposalsEqualRfa) {
  for_each_isa([] {
    for (Draws draws : {Draws::iid, Draws::orthogonal}) {
      const Case c({.batch = 2, .queries = 60, .keys = 60, .heads = 4, .groups = 2, .dim = 16});
      const std::vector<float> found =
          run(c, {.samples = 32, .proposals = Proposals::standard, .draws = draws, .seed = 11, .layer = 2, .draw = 3});
      const FeatureMap map = FeatureMap::random(
          MapKind::positive, {.dim = 16, .count = 32, .heads = 2, .seed = 11, .layer = 2, .draw = 3, .draws = draws});
      std::vector<float> out(c.dout.size(), kNan);
      rfa_attention(c.q_view(), c.k_view(), c.v_view(), map, MutView4(out.data(), c.out_shape()));
      expect_close(found, std::vector<double>(out.begin(), out.end()), kTolerance * (1 + greatest(c.v)), c.shape.text());
    }
  });
}

TEST(Lara, OutputsAreWithinTheHullOfValues) {
  for (float scale : {1.0F, 8.0F}) {
    const Case c({.queries = 200, .keys = 200, .dim = 64, .value_dim = 3, .scale = scale, .memory = 0.9F});
    for (Proposals proposals : kProposals) {
      const std::vector<float> out = run(c, {.samples = 32, .proposals = proposals});
      for (size_t column = 0; column < 3; ++column) {
        float min = HUGE_VALF, max = -HUGE_VALF;
        for (size_t i = column; i < c.v.size(); i += 3) min = std::min(min, c.v[i]), max = std::max(max, c.v[i]);
        // A mean of means, both rounded: 400 additions of weights that sum to one.
        for (size_t i = column; i < out.size(); i += 3) {
          EXPECT_TRUE(out[i] >= min - 1e-4F && out[i] <= max + 1e-4F) << out[i];
        }
      }
    }
  }
}

TEST(Lara, StaysNearTheTwinAtLargeScales) {
  for (int64_t length : {256, 1024}) {
    for (Proposals proposals : {Proposals::chunk_mean, Proposals::qk_mixed}) {
      const Case c({.queries = length, .keys = length, .dim = 64, .value_dim = 64, .scale = 4, .memory = 0.98F});
      const LaraOptions options{.samples = 64, .proposals = proposals};
      EXPECT_LE(greatest_difference(run(c, options), run_twin(c, options)), 1e-4) << c.shape.text() << name_of(proposals);
    }
  }
}

TEST(Lara, IsFiniteAtHugeScales) {
  for_each_isa([] {
    for (float scale : {16.0F, 1e4F}) {
      for (Proposals proposals : kProposals) {
        const Case c({.queries = 150, .keys = 150, .heads = 2, .dim = 64, .scale = scale, .memory = 0.98F});
        for (bool mean : {false, true}) {
          for (float x : run(c, {.samples = 32, .proposals = proposals, .mean = mean})) ASSERT_TRUE(std::isfinite(x)) << scale;
        }
        const Backward d = run_backward(c, {.samples = 32, .proposals = proposals});
        for (const std::vector<float>& gradient : {d.q, d.k, d.v}) {
          for (float x : gradient) ASSERT_TRUE(std::isfinite(x)) << scale << c.shape.text();
        }
      }
    }
  });
}

// Gradients of order one pass through logits whose rounding is within kTolerance, and sum over at most 40 tokens.
constexpr double kGradientTolerance = 2e-4;

void expect_gradients(const Case& c, const LaraOptions& options, const std::string& what) {
  const Gradients expected = differences(
      c, [&](View4 q, View4 k, View4 v, MutView4 out) { reference::lara_attention(q, k, v, out, options_of(c, options)); });
  for_each_isa([&] {
    const Backward found = run_backward(c, options);
    expect_close(found.q, expected.q, kGradientTolerance, what + " dq " + c.shape.text());
    expect_close(found.k, expected.k, kGradientTolerance, what + " dk " + c.shape.text());
    expect_close(found.v, expected.v, kGradientTolerance, what + " dv " + c.shape.text());
  });
}

TEST(LaraBackward, EqualsDifferencesOfTheTwin) {
  for (Proposals proposals : kProposals) {
    for (auto [samples, per_proposal] : {std::pair{4, 1}, {6, 2}, {12, 1}}) {
      for (bool mean : {false, true}) {
        const Case c({.queries = 9, .keys = 9, .heads = 2, .groups = 1, .dim = 4, .value_dim = 3, .memory = 0.5F});
        expect_gradients(c, {.samples = samples, .samples_per_proposal = per_proposal, .proposals = proposals, .mean = mean},
                         std::string(name_of(proposals)));
      }
    }
  }
}

TEST(LaraBackward, EqualsDifferencesWithMasksLengthsAndPacking) {
  for (Proposals proposals : kProposals) {
    const LaraOptions options{.samples = 4, .proposals = proposals, .scale = 0.6F};
    Case masked({.batch = 2, .queries = 9, .keys = 9, .heads = 4, .groups = 2, .dim = 3, .value_dim = 2});
    masked.add_mask("xx.xxxx.x");
    expect_gradients(masked, options, "mask");
    Case padded({.batch = 3, .queries = 7, .keys = 7, .heads = 2, .groups = 2, .dim = 3, .value_dim = 2});
    padded.set_lengths({0, 7, 4});
    expect_gradients(padded, options, "lengths");
    Case cross({.queries = 11, .keys = 8, .heads = 2, .dim = 3, .value_dim = 2});
    expect_gradients(cross, options, "cross");
    cross.set_cu_seqlens({0, 4, 4, 11}, {0, 3, 6, 8});
    cross.add_mask("x.x");
    expect_gradients(cross, options, "packed cross");
    Case empty({.queries = 5, .keys = 5, .dim = 3, .value_dim = 2});
    empty.add_mask(".");
    expect_gradients(empty, options, "nothing");
  }
}

TEST(LaraBackward, WhatMaskedTokensHoldReachesNoGradient) {
  for_each_isa([] {
    Case c({.batch = 2, .queries = 18, .keys = 18, .heads = 4, .groups = 2});
    c.add_mask("xx.xxxx.x");
    const Backward expected = run_backward(c, {.samples = 6});
    c.poison_masked_queries();
    const Backward found = run_backward(c, {.samples = 6});
    EXPECT_TRUE(same_bits(found.q, expected.q) && same_bits(found.k, expected.k) && same_bits(found.v, expected.v));
    for (float x : found.k) ASSERT_TRUE(std::isfinite(x));
  });
}

TEST(LaraBackward, RoundsBf16Once) {
  Case c({.batch = 2, .queries = 40, .keys = 40, .heads = 4, .groups = 2, .dim = 12});
  const std::vector<BFloat16> q = round_to_bf16(c.q), k = round_to_bf16(c.k), v = round_to_bf16(c.v);
  const std::vector<BFloat16> dout = round_to_bf16(c.dout);
  const LaraOptions options{.samples = 16};
  std::vector<float> out;
  const Backward expected = run_backward(c, options, &out);
  std::vector<float> record(static_cast<size_t>(lara_record_size(c.q_view(), c.k_view(), c.v_view(), options)));
  const View4 q_view(q.data(), c.q_shape()), k_view(k.data(), c.k_shape()), v_view(v.data(), c.v_shape());
  lara_attention(q_view, k_view, v_view, MutView4(out.data(), c.out_shape()), options, record);
  std::vector<BFloat16> dq(q.size()), dk(k.size()), dv(v.size());
  lara_attention_backward(
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

TEST(LaraBackward, GivesWhatIsWantedAlone) {
  const Case c({.queries = 30, .keys = 30, .heads = 2, .groups = 2});
  const LaraOptions options{.samples = 8};
  std::vector<float> out;
  const Backward all = run_backward(c, options, &out);
  std::vector<float> record(static_cast<size_t>(lara_record_size(c.q_view(), c.k_view(), c.v_view(), options)));
  lara_attention(c.q_view(), c.k_view(), c.v_view(), MutView4(out.data(), c.out_shape()), options, record);
  std::vector<float> one(c.q.size(), kNan);
  const auto backward = [&](const QkvGradients& gradients) {
    lara_attention_backward(c.q_view(), c.k_view(), c.v_view(), View4(out.data(), c.out_shape()), record, c.dout_view(),
                            gradients, options);
  };
  backward({.q = MutView4(one.data(), c.q_shape())});
  EXPECT_TRUE(same_bits(one, all.q));
  backward({.k = MutView4(one.data(), c.k_shape())});
  EXPECT_TRUE(same_bits(one, all.k));
  backward({.v = MutView4(one.data(), c.v_shape())});
  EXPECT_TRUE(same_bits(one, all.v));
}

TEST(Lara, RefusesWhatDoesNotFitAndWritesNothing) {
  const Case c({.batch = 2, .queries = 6, .keys = 6, .heads = 4, .groups = 2, .dim = 3, .value_dim = 5});
  const auto refusal = [&](const LaraOptions& options, View4 k, std::span<float> to_record = {}) {
    std::vector<float> out(c.dout.size(), 7.0F);
    const std::string message =
        refusal_of([&] { lara_attention(c.q_view(), k, c.v_view(), MutView4(out.data(), c.out_shape()), options, to_record); });
    EXPECT_EQ(out, std::vector<float>(out.size(), 7.0F));
    return message;
  };
  EXPECT_EQ(refusal({.samples = 0}, c.k_view()), "lara_attention: samples is 0, expected 1 to 16777216");
  EXPECT_EQ(refusal({.samples = 10, .samples_per_proposal = 3}, c.k_view()),
            "lara_attention: samples_per_proposal is 3, expected a divisor of samples, 10");
  EXPECT_EQ(refusal({.samples_per_proposal = 0}, c.k_view()),
            "lara_attention: samples_per_proposal is 0, expected a divisor of samples, 64");
  EXPECT_EQ(refusal({.proposals = Proposals::standard, .weights = SampleWeights::mis_opt}, c.k_view()),
            "lara_attention: weights is mis-opt with standard proposals, expected proposals that have means");
  EXPECT_EQ(refusal({.scale = 0.0F}, c.k_view()), "lara_attention: scale is 0, expected a positive number");
  EXPECT_EQ(refusal({.scale = -1.0F}, c.k_view()), "lara_attention: scale is -1, expected a positive number");
  EXPECT_EQ(refusal({.run = {.threads = -1}}, c.k_view()), "lara_attention: threads is -1, expected at least 0");
  EXPECT_EQ(refusal({}, c.k_view().slice(1, 0, 5)),
            "lara_attention: v has shape [2, 6, 2, 5], expected [2, 5, 2, 5] (batch of q, length and heads of k)");
  const std::vector<int64_t> lengths = {6, 9};
  EXPECT_EQ(refusal({.layout = {.lengths = lengths}}, c.k_view()),
            "lara_attention: lengths[1] is 9, expected 0 to 6 (length of k)");
  std::vector<float> record(3);
  const int64_t size = lara_record_size(c.q_view(), c.k_view(), c.v_view());
  EXPECT_EQ(refusal({}, c.k_view(), record),
            fmt::format("lara_attention: record has 3 floats, expected {} (its record size)", size));

  record.assign(static_cast<size_t>(size), 0.0F);
  std::vector<float> dq(c.q.size(), 7.0F);
  const auto backward_refusal = [&](const LaraOptions& options, const Extents<4>& dq_shape, std::span<const float> given) {
    return refusal_of([&] {
      lara_attention_backward(c.q_view(), c.k_view(), c.v_view(), c.dout_view(), given, c.dout_view(),
                              {.q = MutView4(dq.data(), dq_shape)}, options);
    });
  };
  EXPECT_EQ(backward_refusal({.weights = SampleWeights::mis_opt}, c.q_shape(), record),
            "lara_attention_backward: weights is mis-opt, expected balance (no other weights have gradients)");
  EXPECT_EQ(backward_refusal({}, {2, 6, 4, 1}, record),
            "lara_attention_backward: gradients.q has shape [2, 6, 4, 1], expected [2, 6, 4, 3] (shape of the input)");
  EXPECT_EQ(backward_refusal({}, c.q_shape(), std::span(record).first(5)),
            fmt::format("lara_attention_backward: record has 5 floats, expected {} (its record size)", size));
  EXPECT_EQ(dq, std::vector<float>(dq.size(), 7.0F));
}

}  // namespace
}  // namespace raffia::internal::sampled_tests
