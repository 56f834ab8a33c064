#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/arrays.h"

namespace raffia::reference {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kDim = 3, kValueDim = 2, kHeads = 4, kKeyHeads = 2;

// Inputs [batch, length, heads, ..] of a recurrence and what comes out of it.
struct Inputs {
  Inputs(int64_t batch, int64_t length, uint64_t seed = 1) : numbers(seed) {
    q = Array4({batch, length, kHeads, kDim}, numbers);
    k = Array4({batch, length, kKeyHeads, kDim}, numbers);
    v = Array4({batch, length, kKeyHeads, kValueDim}, numbers);
    gate = Array3({batch, length, kKeyHeads}, numbers, -2, 4);
    out = Array4({batch, length, kHeads, kValueDim});
  }
  void poison(int64_t b, int64_t t) {
    for (Array4* array : {&q, &k, &v}) {
      for (int64_t h = 0; h < array->shape[2]; ++h) {
        for (int64_t i = 0; i < array->shape[3]; ++i) array->mut().set(kNan, b, t, h, i);
      }
    }
    for (int64_t h = 0; h < kKeyHeads; ++h) gate.mut().set(kNan, b, t, h);
  }

  Numbers numbers;
  Array4 q, k, v, out;
  Array3 gate;
};

Memory empty(const Map& map, int64_t batch) { return Memory(StateShape{batch, kKeyHeads, map.features, kValueDim}); }

Report gated(Inputs& in, const Map& map, Memory& memory, const AttentionOptions& options = {}) {
  return gated_attention(in.q.view(), in.k.view(), in.v.view(), in.gate.view(), map, memory, in.out.mut(), options);
}

std::vector<double> tokens(const Array4& array, int64_t b, int64_t begin, int64_t count) {
  const int64_t width = array.shape[2] * array.shape[3];
  const auto first = array.values.begin() + (b * array.shape[1] + begin) * width;
  return {first, first + count * width};
}

void expect_equal_entry(const Memory& a, int64_t entry_a, const Memory& b, int64_t entry_b) {
  for (int64_t h = 0; h < kKeyHeads; ++h) {
    EXPECT_TRUE(std::ranges::equal(a.sums_at(entry_a, h), b.sums_at(entry_b, h)));
    EXPECT_TRUE(std::ranges::equal(a.normaliser_at(entry_a, h), b.normaliser_at(entry_b, h)));
    EXPECT_EQ(a.mass[a.head_at(entry_a, h)], b.mass[b.head_at(entry_b, h)]);
    EXPECT_EQ(a.log_decay[a.head_at(entry_a, h)], b.log_decay[b.head_at(entry_b, h)]);
  }
}

// out_t = sum_i w_ti v_i / sum_i w_ti,   w_ti = u_i exp(a_t - a_i) phi(q_t) . phi(k_i)
TEST(GatedTwin, EqualsTheDirectSumOverPairs) {
  const int64_t length = 12;
  const Map map = any_map(MapKind::positive, kDim, 5, kKeyHeads);
  Inputs in(1, length);
  Memory memory = empty(map, 1);
  gated(in, map, memory);
  for (int64_t h = 0; h < kHeads; ++h) {
    const int64_t g = h / 2;
    for (int64_t t = 0; t < length; ++t) {
      std::vector<double> sum(kValueDim + 1);
      double decay = 1, mass = 0;
      for (int64_t i = t; i >= 0; --i) {
        const double sigmoid = 1 / (1 + std::exp(-in.gate.view()(0, i, g)));
        const std::span<const double> q = std::span(in.q.values).subspan(static_cast<size_t>((t * kHeads + h) * kDim), kDim);
        const std::span<const double> k = std::span(in.k.values).subspan(static_cast<size_t>((i * kKeyHeads + g) * kDim), kDim);
        const double weight = (1 - sigmoid) * decay * inner(phi(map, g, q), phi(map, g, k));
        for (int64_t e = 0; e < kValueDim; ++e) sum[static_cast<size_t>(e)] += weight * in.v.view()(0, i, g, e);
        sum[kValueDim] += weight;
        mass += (1 - sigmoid) * decay;
        decay *= sigmoid;
      }
      // All weights are positive, so rounding is about length + features operations of 1.1e-16 each.
      for (int64_t e = 0; e < kValueDim; ++e) {
        EXPECT_NEAR(in.out.view()(0, t, h, e), sum[static_cast<size_t>(e)] / sum[kValueDim], 1e-14);
      }
      if (t == length - 1) {
        EXPECT_NEAR(memory.mass[static_cast<size_t>(g)], mass, 1e-14);
        EXPECT_NEAR(memory.log_decay[static_cast<size_t>(g)], std::log(decay), 1e-13);
      }
    }
  }
}

TEST(GatedTwin, SplitAndResumeEqualsWhole) {
  const Map map = any_map(MapKind::trig, kDim, 5, kKeyHeads);
  Inputs in(2, 9);
  Memory whole = empty(map, 2), parts = empty(map, 2);
  gated(in, map, whole);
  const Array4 expected = in.out;
  for (int64_t t = 0; t < 9; t += 3) {
    gated_attention(in.q.view().slice(1, t, 3), in.k.view().slice(1, t, 3), in.v.view().slice(1, t, 3),
                    in.gate.view().slice(1, t, 3), map, parts, in.out.mut().slice(1, t, 3));
  }
  EXPECT_EQ(in.out.values, expected.values);
  expect_equal_entry(whole, 0, parts, 0);
  expect_equal_entry(whole, 1, parts, 1);
}

TEST(GatedTwin, LaterTokensChangeNoEarlierOutput) {
  const Map map = any_map(MapKind::trig, kDim, 5, kKeyHeads);
  Inputs in(1, 8);
  Memory first = empty(map, 1), second = empty(map, 1);
  gated(in, map, first);
  const std::vector<double> before = tokens(in.out, 0, 0, 5);
  for (int64_t t = 5; t < 8; ++t) in.poison(0, t);
  gated(in, map, second);
  EXPECT_EQ(tokens(in.out, 0, 0, 5), before);
}

TEST(GatedTwin, AnOpenGateKeepsTheMemoryAndAClosedOneKeepsOnlyTheToken) {
  const Map map = any_map(MapKind::positive, kDim, 5, kKeyHeads);
  Inputs in(1, 4);
  Memory memory = empty(map, 1);
  fold_keys(in.k.view(), in.v.view(), map, memory);
  const Memory before = memory;

  std::ranges::fill(in.gate.values, 1e4);
  gated(in, map, memory);
  expect_equal_entry(memory, 0, before, 0);
  Array4 read(in.out.shape);
  read_state(in.q.view(), map, before, read.mut());
  EXPECT_EQ(in.out.values, read.values);

  std::ranges::fill(in.gate.values, -1e4);
  gated(in, map, memory);
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t h = 0; h < kHeads; ++h) {
      // one key: its weight cancels, up to rounding over 5 features and to what exp(-60) leaves of the past
      for (int64_t e = 0; e < kValueDim; ++e) EXPECT_NEAR(in.out.view()(0, t, h, e), in.v.view()(0, t, h / 2, e), 1e-15);
    }
  }
  EXPECT_EQ(memory.log_decay[0], 4 * -60.0);
}

TEST(GatedTwin, AbsentTokensAreAsIfCutOut) {
  const Map map = any_map(MapKind::trig, kDim, 5, kKeyHeads);
  Inputs in(1, 7);
  std::vector<uint8_t> valid{1, 0, 1, 1, 0, 0, 1};
  for (int64_t t = 0; t < 7; ++t) {
    if (valid[static_cast<size_t>(t)] == 0) in.poison(0, t);
  }
  Memory memory = empty(map, 1), cut = empty(map, 1);
  const Report report = gated(in, map, memory, {.layout = {.valid = View2(valid.data(), {1, 7})}});
  EXPECT_EQ(report.rows, 4 * kHeads);
  Array4 out({1, 1, kHeads, kValueDim});
  for (int64_t t = 0; t < 7; ++t) {
    if (valid[static_cast<size_t>(t)] == 0) {
      EXPECT_EQ(tokens(in.out, 0, t, 1), std::vector<double>(kHeads * kValueDim));
      continue;
    }
    gated_attention(in.q.view().slice(1, t, 1), in.k.view().slice(1, t, 1), in.v.view().slice(1, t, 1),
                    in.gate.view().slice(1, t, 1), map, cut, out.mut());
    EXPECT_EQ(tokens(in.out, 0, t, 1), out.values);
  }
  expect_equal_entry(memory, 0, cut, 0);
}

TEST(GatedTwin, LengthsLeaveTheRestUnread) {
  const Map map = any_map(MapKind::trig, kDim, 5, kKeyHeads);
  const std::vector<int64_t> lengths{3, 0, 5};
  Inputs in(3, 5);
  for (int64_t b = 0; b < 3; ++b) {
    for (int64_t t = lengths[static_cast<size_t>(b)]; t < 5; ++t) in.poison(b, t);
  }
  Memory memory = empty(map, 3);
  gated(in, map, memory, {.layout = {.lengths = lengths}});
  for (int64_t b = 0; b < 3; ++b) {
    const int64_t length = lengths[static_cast<size_t>(b)];
    Memory alone = empty(map, 1);
    Array4 out({1, length, kHeads, kValueDim});
    gated_attention(in.q.view().slice(0, b, 1).slice(1, 0, length), in.k.view().slice(0, b, 1).slice(1, 0, length),
                    in.v.view().slice(0, b, 1).slice(1, 0, length), in.gate.view().slice(0, b, 1).slice(1, 0, length), map, alone,
                    out.mut());
    EXPECT_EQ(tokens(in.out, b, 0, length), out.values);
    EXPECT_EQ(tokens(in.out, b, length, 5 - length), std::vector<double>(static_cast<size_t>((5 - length) * kHeads * kValueDim)));
    expect_equal_entry(memory, b, alone, 0);
  }
}

TEST(GatedTwin, PackedSequencesDoNotSeeEachOther) {
  const Map map = any_map(MapKind::trig, kDim, 5, kKeyHeads);
  const std::vector<int64_t> cu_seqlens{0, 4, 4, 9};
  Inputs in(1, 9);
  Memory memory = empty(map, 3);
  fold_keys(in.k.view(), in.v.view(), map, memory, {.layout = {.cu_seqlens = cu_seqlens}});
  const Memory initial = memory;
  gated(in, map, memory, {.layout = {.cu_seqlens = cu_seqlens}});
  for (int64_t n = 0; n < 3; ++n) {
    const int64_t begin = cu_seqlens[static_cast<size_t>(n)], length = cu_seqlens[static_cast<size_t>(n + 1)] - begin;
    Memory alone = empty(map, 1);
    fold_keys(in.k.view().slice(1, begin, length), in.v.view().slice(1, begin, length), map, alone);
    expect_equal_entry(initial, n, alone, 0);
    Array4 out({1, length, kHeads, kValueDim});
    gated_attention(in.q.view().slice(1, begin, length), in.k.view().slice(1, begin, length), in.v.view().slice(1, begin, length),
                    in.gate.view().slice(1, begin, length), map, alone, out.mut());
    EXPECT_EQ(tokens(in.out, 0, begin, length), out.values);
    expect_equal_entry(memory, n, alone, 0);
  }
}

TEST(LinearTwin, EqualValuesComeBack) {
  const Map map = any_map(MapKind::positive2, kDim, 5, kKeyHeads);
  Inputs in(1, 6);
  std::ranges::fill(in.v.values, 0.75);
  // All weights are positive: numerator and denominator differ by rounding over 6 tokens and 10 features alone.
  const std::vector<double> expected(in.out.values.size(), 0.75);
  Memory memory = empty(map, 1);
  rfa_attention(in.q.view(), in.k.view(), in.v.view(), map, in.out.mut());
  EXPECT_LT(greatest_difference(in.out.values, expected), 1e-14);
  causal_attention(in.q.view(), in.k.view(), in.v.view(), map, memory, in.out.mut());
  EXPECT_LT(greatest_difference(in.out.values, expected), 1e-14);
  gated(in, map, memory);
  EXPECT_LT(greatest_difference(in.out.values, expected), 1e-14);
}

TEST(RfaTwin, IsAFoldAndARead) {
  const Map map = any_map(MapKind::trig, kDim, 5, kKeyHeads);
  Inputs in(2, 6);
  std::vector<uint8_t> valid{1, 0, 1, 1, 0, 1, 0, 0, 1, 1, 1, 0};
  const AttentionOptions options{.layout = {.valid = View2(valid.data(), {2, 6})}};
  Memory memory = empty(map, 2);
  fold_keys(in.k.view(), in.v.view(), map, memory, options);
  Array4 expected(in.out.shape);
  read_state(in.q.view(), map, memory, expected.mut());
  rfa_attention(in.q.view(), in.k.view(), in.v.view(), map, in.out.mut(), options);
  EXPECT_EQ(in.out.values, expected.values);
}

TEST(RfaTwin, AgreesWithTheLastTokenOfCausalAttention) {
  const Map map = any_map(MapKind::arccos, kDim, 5, kKeyHeads);
  Inputs in(1, 6);
  Memory memory = empty(map, 1);
  causal_attention(in.q.view(), in.k.view(), in.v.view(), map, memory, in.out.mut());
  Array4 full(in.out.shape);
  rfa_attention(in.q.view(), in.k.view(), in.v.view(), map, full.mut());
  EXPECT_EQ(tokens(in.out, 0, 5, 1), tokens(full, 0, 5, 1));
  EXPECT_EQ(memory.mass, (std::vector<double>{6, 6}));
  EXPECT_EQ(memory.log_decay, (std::vector<double>{0, 0}));
}

TEST(RfaTwin, LengthsCountKeysAloneUnlessThereAreAsManyQueries) {
  const Map map = any_map(MapKind::trig, kDim, 5, kKeyHeads);
  Inputs in(1, 6);
  const std::vector<int64_t> lengths{4};
  for (int64_t t = 4; t < 6; ++t) in.poison(0, t);
  rfa_attention(in.q.view(), in.k.view(), in.v.view(), map, in.out.mut(), {.layout = {.lengths = lengths}});
  EXPECT_EQ(tokens(in.out, 0, 4, 2), std::vector<double>(2 * kHeads * kValueDim));
  Array4 cross({1, 3, kHeads, kValueDim});
  const Report report =
      rfa_attention(in.q.view().slice(1, 1, 3), in.k.view(), in.v.view(), map, cross.mut(), {.layout = {.lengths = lengths}});
  EXPECT_EQ(cross.values, tokens(in.out, 0, 1, 3));
  EXPECT_EQ(report.rows, 3 * kHeads);
}

TEST(LinearTwin, QueryHeadsOfAGroupShareAKeyHead) {
  const Map map = any_map(MapKind::trig, kDim, 5, kKeyHeads);
  Inputs in(1, 5);
  Memory grouped = empty(map, 1);
  gated(in, map, grouped);
  for (int64_t first = 0; first < 2; ++first) {  // heads 0, 2 and heads 1, 3: one query head a key head
    const View4 q(in.q.values.data() + first * kDim, {1, 5, kKeyHeads, kDim}, {5 * kHeads * kDim, kHeads * kDim, 2 * kDim, 1});
    Memory memory = empty(map, 1);
    Array4 out({1, 5, kKeyHeads, kValueDim});
    gated_attention(q, in.k.view(), in.v.view(), in.gate.view(), map, memory, out.mut());
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t g = 0; g < kKeyHeads; ++g) {
        EXPECT_EQ(out.view()(0, t, g, 0), in.out.view()(0, t, 2 * g + first, 0));
        EXPECT_EQ(out.view()(0, t, g, 1), in.out.view()(0, t, 2 * g + first, 1));
      }
    }
  }
}

// One feature, one value: everything can be counted by hand.
struct ByHand {
  Report read(std::vector<double> queries, double eps) {
    out = Array4({1, static_cast<int64_t>(queries.size()), 1, 1});
    const View4 q(queries.data(), {1, static_cast<int64_t>(queries.size()), 1, 1});
    return rfa_attention(q, View4(keys.data(), {1, 2, 1, 1}), View4(values.data(), {1, 2, 1, 1}), map, out.mut(),
                         {.eps = static_cast<float>(eps)});
  }
  Map map{FeatureMap::identity(1, 1)};
  std::vector<double> keys{1, 3}, values{5, 1};  // S = 8, z = 4, m = 2
  Array4 out;
};

TEST(LinearTwin, ClampsDenominatorsBelowTheFloorAndCountsThem) {
  ByHand by_hand;
  const Report report = by_hand.read({1, -1, 0.125, 0.0625, 0}, 0.25);  // floor 0.5
  EXPECT_EQ(by_hand.out.values, (std::vector<double>{2, -16, 2, 1, 0}));
  EXPECT_EQ(report.rows, 5);
  EXPECT_EQ(report.clamped, 3);
}

TEST(LinearTwin, WithoutAFloorDenominatorsThatAreNotPositiveGiveZero) {
  ByHand by_hand;
  const Report report = by_hand.read({1, -1, 0}, 0);
  EXPECT_EQ(by_hand.out.values, (std::vector<double>{2, 0, 0}));
  EXPECT_EQ(report.clamped, 2);
}

TEST(LinearTwin, WithoutKeysGivesZero) {
  const Map map = any_map(MapKind::trig, kDim, 5, kKeyHeads);
  Inputs in(1, 3);
  const Report report = rfa_attention(in.q.view(), in.k.view().slice(1, 0, 0), in.v.view().slice(1, 0, 0), map, in.out.mut());
  EXPECT_EQ(in.out.values, std::vector<double>(in.out.values.size()));
  EXPECT_EQ(report.clamped, 3 * kHeads);
}

TEST(LinearTwin, NanInPresentTokensIsNotHidden) {
  ByHand by_hand;
  by_hand.keys[0] = kNan;
  by_hand.read({1}, 0.25);
  EXPECT_TRUE(std::isnan(by_hand.out.values[0]));
}

TEST(MemoryTwin, SurvivesTheWayThroughAState) {
  const Map map = any_map(MapKind::elu, kDim, 0, kKeyHeads);
  Inputs in(2, 3);
  for (Array4* array : {&in.k, &in.v}) {
    for (double& value : array->values) value = std::round(8 * value);  // small sums of integers are exact in fp32
  }
  for (double& value : in.k.values) value = std::abs(value);  // elu(x) + 1 = x + 1
  Memory memory = empty(map, 2);
  fold_keys(in.k.view(), in.v.view(), map, memory);
  memory.log_decay[1] = -0.5;
  const Memory back(memory.to_state());
  expect_equal_entry(back, 0, memory, 0);
  expect_equal_entry(back, 1, memory, 1);
}

}  // namespace
}  // namespace raffia::reference
