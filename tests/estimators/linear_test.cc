#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "estimators/linear_case.h"
#include "estimators/linear_expected.h"
#include "raffia/threads.h"

namespace raffia::internal::linear_tests {
namespace {

constexpr int64_t kDims[] = {1, 3, 60, 64, 100, 128};

class LinearAttention : public testing::TestWithParam<std::tuple<Op, MapKind>> {
 protected:
  Op op() const { return std::get<0>(GetParam()); }
  MapKind kind() const { return std::get<1>(GetParam()); }
  int64_t op_index() const { return static_cast<int64_t>(op()); }
  int64_t kind_index() const { return static_cast<int64_t>(kind()); }
};

std::string name_of_param(const testing::TestParamInfo<std::tuple<Op, MapKind>>& of) {
  return std::string(name_of_op(std::get<0>(of.param))) + "_" + std::string(name_of(std::get<1>(of.param)));
}

INSTANTIATE_TEST_SUITE_P(OpsAndMaps, LinearAttention, testing::Combine(testing::ValuesIn(kOps), testing::ValuesIn(kKinds)),
                         name_of_param);

// Two chunks of 16 and one more token.
TEST_P(LinearAttention, EqualsTwinAtEveryLengthUpToTwoChunks) {
  for (int64_t length = 0; length <= 33; ++length) {
    Case c({.op = op(), .kind = kind(), .length = length, .seed = 1 + static_cast<uint64_t>(length)});
    if (length % 2 == 1) c.add_initial_state();
    expect_matches_twin(c);
  }
}

// Each op and map meets every dimension, in pairs that differ from map to map.
TEST_P(LinearAttention, EqualsTwinAtEveryDimension) {
  for (int64_t i = 0; i < 6; ++i) {
    const int64_t other = (i + 1 + kind_index() + op_index()) % 6;
    const Case c({.op = op(),
                  .kind = kind(),
                  .length = 35,
                  .dim = kDims[i],
                  .count = kDims[(i + 3) % 6] + i % 2,
                  .value_dim = kDims[other],
                  .seed = 100 + static_cast<uint64_t>(i)});
    expect_matches_twin(c);
  }
}

TEST_P(LinearAttention, EqualsTwinAtPrimeLengths) {
  constexpr int64_t kPrimes[] = {67, 131, 257, 521};
  for (int64_t i = 0; i < 4; ++i) {
    Case c({.op = op(),
            .kind = kind(),
            .length = kPrimes[i],
            .dim = 3 + 5 * i,
            .count = 11 + i,
            .value_dim = 17 - 4 * i,
            .seed = 200 + static_cast<uint64_t>(i)});
    if (i % 2 == 0) c.add_initial_state();
    expect_matches_twin(c);
  }
}

TEST_P(LinearAttention, EqualsTwinWithGroupedHeads) {
  for (int64_t group : {2, 3}) {
    Case c({.op = op(),
            .kind = kind(),
            .length = 37,
            .batch = 2,
            .heads = 2 * group,
            .groups = 2,
            .dim = 9,
            .value_dim = 18,
            .seed = 300 + static_cast<uint64_t>(group)});
    c.add_initial_state();
    expect_matches_twin(c);
  }
}

// Absent tokens hold NaN, which must not come through.
TEST_P(LinearAttention, EqualsTwinWithHolesInTheMask) {
  for (const char* pattern : {".#", "#.", "...###..#", ".................................##", "####....................",
                              "#####################................", ".", "#"}) {
    Case c({.op = op(), .kind = kind(), .length = 45, .batch = 2, .heads = 2, .groups = 2, .seed = 400});
    c.add_initial_state();
    c.add_mask(pattern);
    expect_matches_twin(c);
  }
}

TEST_P(LinearAttention, EqualsTwinWithLengths) {
  Case c({.op = op(), .kind = kind(), .length = 41, .batch = 5, .heads = 2, .groups = 1, .seed = 500});
  c.add_initial_state();
  c.set_lengths({0, 41, 17, 16, 1});
  expect_matches_twin(c);
}

TEST_P(LinearAttention, EqualsTwinWithPackedSequences) {
  Case c({.op = op(), .kind = kind(), .length = 90, .heads = 2, .groups = 2, .seed = 600});
  c.set_cu_seqlens({0, 0, 1, 34, 34, 66, 90, 90});
  c.add_initial_state();
  expect_matches_twin(c);
}

// Rows whose bound says nothing are rare: the sweeps above would prove nothing otherwise. trig has signed denominators.
TEST_P(LinearAttention, TestsAreWellConditioned) {
  const Case c({.op = op(), .kind = kind(), .length = 521, .dim = 18, .count = 14, .value_dim = 5, .seed = 203});
  const Expected expected = expected_of(c);
  EXPECT_LE(expected.unbounded, expected.report.rows / 100) << c.shape.text();
}

class LinearAttentionOp : public testing::TestWithParam<Op> {
 protected:
  Shape shape_of(int64_t length, int64_t dim = 20, int64_t value_dim = 24) const {
    return {.op = GetParam(), .length = length, .dim = dim, .count = 19, .value_dim = value_dim, .seed = 9};
  }
};

INSTANTIATE_TEST_SUITE_P(Ops, LinearAttentionOp, testing::ValuesIn(kOps),
                         [](const auto& of) { return std::string(name_of_op(of.param)); });

TEST_P(LinearAttentionOp, ReadsAndWritesAnyStrides) {
  for_each_isa([&] {
    Shape shape = shape_of(37);
    shape.batch = 2, shape.heads = 4, shape.groups = 2;
    Case c(shape);
    c.add_initial_state();
    const Outcome expected = run(c);
    // Axes of q, k, v and out in memory; the last one has a stride that is not 1, or a gap behind every element.
    for (const std::array<size_t, 4>& order : {std::array<size_t, 4>{0, 2, 1, 3}, {0, 3, 2, 1}, {3, 0, 1, 2}}) {
      for (int64_t gap : {1, 3}) {
        std::vector<std::vector<float>> memory;
        const auto moved = [&](View4 view) {
          Extents<4> packed{}, strides{};
          for (size_t i = 0; i < 4; ++i) packed[i] = view.extent(order[i]);
          for (size_t i = 0; i < 4; ++i) strides[order[i]] = gap * contiguous_strides(packed)[i];
          memory.emplace_back(static_cast<size_t>(view.size() * gap), kNan);
          return MutView4(memory.back().data(), view.shape(), strides);
        };
        const auto copied = [&](View4 view) {
          const MutView4 to = moved(view);
          for (int64_t b = 0; b < view.extent(0); ++b) {
            for (int64_t t = 0; t < view.extent(1); ++t) {
              for (int64_t h = 0; h < view.extent(2); ++h) {
                for (int64_t i = 0; i < view.extent(3); ++i) to.set(view(b, t, h, i), b, t, h, i);
              }
            }
          }
          return View4(to);
        };
        const View4 q = copied(c.q_view()), k = copied(c.k_view()), v = copied(c.v_view());
        const MutView4 out = moved(View4(c.dout.data(), c.out_shape()));
        std::vector<float> gate(c.gate.size() * 2, kNan);  // heads first, every other element
        const MutView3 to(gate.data(), c.gate_shape(), {2 * 37, 2, 4 * 37});
        for (int64_t b = 0; b < 2; ++b) {
          for (int64_t t = 0; t < 37; ++t) {
            for (int64_t g = 0; g < 2; ++g) to.set(View3(c.gate.data(), c.gate_shape())(b, t, g), b, t, g);
          }
        }
        State state = c.initial;
        call(c, q, k, v, GetParam() == Op::gated ? View3(to) : View3(), state, out, c.options);
        EXPECT_TRUE(same_bits(elements_of(out), expected.out)) << c.shape.text() << " gap " << gap;
        EXPECT_TRUE(same_bits(state.data(), expected.state.data())) << c.shape.text() << " gap " << gap;
      }
    }
  });
}

TEST_P(LinearAttentionOp, RoundsBf16OnceAtTheEnd) {
  for_each_isa([&] {
    for (int64_t value_dim : {24, 32}) {
      Case c(shape_of(37, 20, value_dim));
      const std::vector<BFloat16> q = round_to_bf16(c.q), k = round_to_bf16(c.k), v = round_to_bf16(c.v),
                                  gate = round_to_bf16(c.gate);
      const Outcome exact = run(c);
      std::vector<BFloat16> out(exact.out.size());
      State state = c.initial;
      call(c, View4(q.data(), c.q_shape()), View4(k.data(), c.k_shape()), View4(v.data(), c.v_shape()),
           GetParam() == Op::gated ? View3(gate.data(), c.gate_shape()) : View3(), state, MutView4(out.data(), c.out_shape()),
           c.options);
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_EQ(out[i].bits, BFloat16::from_float(exact.out[i]).bits) << c.shape.text() << " at " << i;
      }
      EXPECT_TRUE(same_bits(state.data(), exact.state.data())) << c.shape.text();
    }
  });
}

TEST_P(LinearAttentionOp, CountsTheDenominatorsThatItClamps) {
  Case c(shape_of(150, 3, 5));
  const float middle = eps_in_the_middle(c);
  for (float eps : {0.0F, middle, 1e3F}) {
    c.options.eps = eps;
    const Expected expected = expected_of(c);
    EXPECT_EQ(expected.report.clamped > 0, eps > 0) << c.shape.text();
    EXPECT_EQ(expected.report.clamped < expected.report.rows, eps < 1e3F) << c.shape.text();
    EXPECT_EQ(expected.uncertain, 0) << c.shape.text();
    for_each_isa([&] { expect_matches(c, run(c), expected, "eps " + std::to_string(eps)); });
  }
}

// Signed features of mean 0: denominators around 0, where only the floor keeps outputs finite.
TEST_P(LinearAttentionOp, NegativeDenominatorsAreClamped) {
  Case c({.op = GetParam(), .kind = MapKind::identity, .length = 70, .dim = 8, .value_dim = 5, .seed = 21});
  c.q = normals(c.q.size(), 22);
  c.k = normals(c.k.size(), 23);
  const Expected expected = expected_of(c);
  ASSERT_GT(expected.report.clamped, 10);
  for_each_isa([&] { expect_matches(c, run(c), expected); });
  c.options.eps = 0.0F;
  const Expected without_floor = expected_of(c);
  for_each_isa([&] { expect_matches(c, run(c), without_floor, "eps 0"); });
}

TEST_P(LinearAttentionOp, HasTheSameBitsForAnyNumberOfThreads) {
  for_each_isa([&] {
    Shape shape = shape_of(700);
    shape.batch = 2, shape.heads = 4, shape.groups = 2;
    Case c(shape);
    c.add_initial_state();
    c.add_mask("####.######..");
    for (int64_t segment : {-1, 0, 128, 256}) {
      const Outcome one = run(c, {.threads = 1, .segment = segment});
      for (int threads : {2, 7}) {
        const std::unique_ptr<Executor> executor = make_thread_pool(threads);
        expect_same_bits(run(c, {.executor = executor.get(), .segment = segment}), one,
                         c.shape.text() + " segment " + std::to_string(segment) + " threads " + std::to_string(threads));
      }
    }
  });
}

TEST_P(LinearAttentionOp, HasTheSameBitsForAnyNumberOfThreadsOverAutomaticSegments) {
  Case c({.op = GetParam(), .length = 9001, .dim = 6, .count = 5, .value_dim = 3, .seed = 31});
  c.add_initial_state();
  const Outcome one = run(c, {.threads = 1});
  for (int threads : {2, 7}) {
    const std::unique_ptr<Executor> executor = make_thread_pool(threads);
    expect_same_bits(run(c, {.executor = executor.get()}), one, c.shape.text() + " threads " + std::to_string(threads));
  }
  expect_matches(c, one, expected_of(c));
}

TEST_P(LinearAttentionOp, SegmentsEqualTwin) {
  for (int64_t length : {128, 129, 257, 640, 700}) {
    Shape shape = shape_of(length, 9, 10);
    shape.heads = 2;
    Case c(shape);
    c.add_initial_state();
    if (length == 640) c.add_mask("#######.");
    const Expected expected = expected_of(c);
    for (int64_t segment : {int64_t{100}, int64_t{128}, int64_t{256}}) {
      for_each_isa([&] { expect_matches(c, run(c, {.segment = segment}), expected, "segment " + std::to_string(segment)); });
    }
  }
}

class CausalLinearAttention : public LinearAttentionOp {};
INSTANTIATE_TEST_SUITE_P(Ops, CausalLinearAttention, testing::Values(Op::causal, Op::gated),
                         [](const auto& of) { return std::string(name_of_op(of.param)); });

// A later token changes no bit of an earlier output, whatever finite number it holds.
TEST_P(CausalLinearAttention, NeverLooksAtLaterTokens) {
  for_each_isa([&] {
    for (int64_t segment : {-1, 128}) {
      const Shape shape = shape_of(300);
      const Outcome whole = run(Case(shape), {.segment = segment});
      for (int64_t cut : {1, 5, 16, 100, 128, 201, 299}) {
        Case c(shape);
        const Case other({.op = shape.op,
                          .length = shape.length,
                          .dim = shape.dim,
                          .count = shape.count,
                          .value_dim = shape.value_dim,
                          .seed = 1234});
        const auto replace = [&](std::vector<float>& to, const std::vector<float>& from, int64_t width, float scale) {
          for (int64_t i = cut * width; i < shape.length * width; ++i) {
            to[static_cast<size_t>(i)] = scale * from[static_cast<size_t>(i)];
          }
        };
        replace(c.q, other.q, shape.dim, 1e3F);
        replace(c.k, other.k, shape.dim, -1e3F);
        replace(c.v, other.v, shape.value_dim, 1e6F);
        replace(c.gate, other.gate, 1, -1);
        const Outcome found = run(c, {.segment = segment});
        const size_t bytes = static_cast<size_t>(cut * shape.value_dim) * sizeof(float);
        EXPECT_EQ(std::memcmp(found.out.data(), whole.out.data(), bytes), 0) << shape.text() << " cut " << cut;
      }
    }
  });
}

// Whole chunks are computed alike wherever they lie, so a cut between chunks changes no bit of the outputs that the state does
// not round: the state is fp32 in between as it is inside. Other cuts regroup sums; the twin's bounds hold for them.
TEST_P(CausalLinearAttention, SplitAndResumeEqualsWhole) {
  for (int64_t cut : {0, 1, 7, 16, 64, 90, 99, 100}) {
    Shape shape = shape_of(100);
    shape.batch = 2, shape.heads = 2, shape.groups = 1;
    Case c(shape);
    c.add_initial_state();
    const Expected expected = expected_of(c);
    for_each_isa([&] {
      Outcome parts{std::vector<float>(c.dout.size(), kNan), c.initial, {}, {}};
      const MutView4 out(parts.out.data(), c.out_shape());
      for (const auto& [begin, count] : {std::pair{int64_t{0}, cut}, {cut, 100 - cut}}) {
        const View3 gate = c.gate_view().absent() ? View3() : c.gate_view().slice(1, begin, count);
        const Report report = call(c, c.q_view().slice(1, begin, count), c.k_view().slice(1, begin, count),
                                   c.v_view().slice(1, begin, count), gate, parts.state, out.slice(1, begin, count), c.options);
        parts.report.rows += report.rows;
        parts.report.clamped += report.clamped;
      }
      expect_matches(c, parts, expected, "cut " + std::to_string(cut));
      if (cut % 16 != 0) return;
      const Outcome whole = run(c);
      EXPECT_TRUE(same_bits(parts.out, whole.out)) << c.shape.text() << " cut " << cut;
    });
  }
}

TEST_P(CausalLinearAttention, FoldAndReadAreItsHalves) {
  for (int64_t length : {0, 1, 63, 64, 65, 200}) {
    Shape shape = shape_of(length);
    shape.batch = 2, shape.heads = 4, shape.groups = 2;
    Case c(shape);
    c.add_initial_state();
    if (length > 64) c.add_mask("###.");
    const Expected expected = expected_of(c);
    for_each_isa([&] {
      State state = c.initial;
      if (GetParam() == Op::gated) {
        fold_keys(c.k_view(), c.v_view(), c.gate_view(), c.map, state, c.options);
      } else {
        fold_keys(c.k_view(), c.v_view(), c.map, state, c.options);
      }
      const reference::Memory memory(state);
      expect_within(memory.sums, expected.memory.sums, expected.sums_bounds, shape.text() + " fold sums");
      expect_within(memory.normaliser, expected.memory.normaliser, expected.normaliser_bounds, shape.text() + " fold normaliser");
      expect_within(memory.mass, expected.memory.mass, expected.mass_bounds, shape.text() + " fold mass");
      expect_within(memory.log_decay, expected.memory.log_decay, expected.log_decay_bounds, shape.text() + " fold log_decay");
      if (length == 0 || !c.valid.empty()) return;
      // The last query of a causal op sees what a reader of the final state sees.
      const Outcome whole = run(c);
      std::vector<float> out(static_cast<size_t>(2 * shape.heads * shape.value_dim), kNan);
      const Extents<4> last = {2, 1, shape.heads, shape.value_dim};
      read_state(c.q_view().slice(1, length - 1, 1), c.map, state, MutView4(out.data(), last));
      std::vector<double> values, bounds;
      for (int64_t b = 0; b < 2; ++b) {
        const size_t row = static_cast<size_t>(shape.heads * shape.value_dim);
        const size_t at = (static_cast<size_t>(b * length) + static_cast<size_t>(length) - 1) * row;
        values.insert(values.end(), expected.out.begin() + static_cast<int64_t>(at),
                      expected.out.begin() + static_cast<int64_t>(at + row));
        bounds.insert(bounds.end(), expected.out_bounds.begin() + static_cast<int64_t>(at),
                      expected.out_bounds.begin() + static_cast<int64_t>(at + row));
      }
      expect_within(doubles(out), values, bounds, shape.text() + " read_state");
    });
  }
}

TEST(RfaAttention, QueriesAndKeysMayDifferInNumber) {
  for (const auto& [queries, keys] : {std::pair{1, 200}, {200, 1}, {17, 150}, {40, 0}, {0, 40}, {33, 34}}) {
    Case c({.op = Op::rfa, .length = keys, .queries = queries, .batch = 2, .heads = 2, .seed = 41});
    expect_matches_twin(c);
    if (keys < 3) continue;
    c.set_lengths({keys / 2, keys});
    expect_matches_twin(c);
  }
  Case packed({.op = Op::rfa, .length = 70, .queries = 50, .heads = 2, .groups = 2, .seed = 42});
  packed.set_cu_seqlens({0, 10, 10, 33, 50}, {0, 40, 60, 60, 70});
  expect_matches_twin(packed);
}

// A gate logit of -1e4 forgets everything, one of 1e4 keeps everything and writes nothing.
TEST(GatedAttention, HardResetsAreExact) {
  for (MapKind kind : kKinds) {
    Case c({.kind = kind, .length = 75, .seed = 51});
    c.add_initial_state();
    for (size_t t = 0; t < c.gate.size(); ++t) {
      if (t % 7 == 3) c.gate[t] = 1e4F;
      if (t % 19 == 11) c.gate[t] = -1e4F;
    }
    expect_matches_twin(c);
    // After the last reset, at 68, nothing of what came before is left: not a bit depends on it.
    for_each_isa([&] {
      Case other({.kind = kind, .length = 75, .seed = 52});
      for (int64_t t = 68; t < 75; ++t) {
        const auto copy = [&](std::vector<float>& to, const std::vector<float>& from, int64_t width) {
          std::copy_n(from.begin() + t * width, width, to.begin() + t * width);
        };
        copy(other.q, c.q, c.shape.dim), copy(other.k, c.k, c.shape.dim), copy(other.v, c.v, c.shape.value_dim);
        copy(other.gate, c.gate, 1);
      }
      other.map = c.map;
      const Outcome a = run(c), b = run(other);
      const size_t tail = static_cast<size_t>(7 * c.shape.value_dim);
      EXPECT_TRUE(same_bits(std::span(a.out).last(tail), std::span(b.out).last(tail))) << c.shape.text();
    });
  }
}

TEST(GatedAttention, AllResetsReadTheirOwnTokenAlone) {
  for_each_isa([] {
    Case c({.kind = MapKind::positive, .length = 40, .seed = 53});
    c.add_initial_state();
    std::fill(c.gate.begin(), c.gate.end(), -1e4F);
    const Outcome found = run(c);
    // out = y / n, both rounded: (sqrt(F) + 4) u each; positive features do not cancel.
    for (size_t i = 0; i < c.v.size(); ++i) ASSERT_NEAR(found.out[i], c.v[i], 20 * kUnit * std::abs(c.v[i])) << c.shape.text();
    std::fill(c.gate.begin(), c.gate.end(), 1e4F);
    EXPECT_TRUE(same_bits(run(c).state.data(), c.initial.data())) << c.shape.text();
  });
}

// Gates within 2e-5 of 1: the memory spans the whole text, and what was written first still counts at the end.
TEST(GatedAttention, RemembersOverAHundredThousandTokens) {
  for (MapKind kind : {MapKind::trig, MapKind::elu}) {
    Case c({.kind = kind,
            .length = 100000,
            .dim = 3,
            .count = 4,
            .value_dim = 2,
            .seed = 61,
            .gate_mean = 11.5F,
            .gate_scale = 0.5F});
    c.add_initial_state();
    const Expected expected = expected_of(c);
    EXPECT_LT(expected.conditioning, 1e-2) << c.shape.text();
    for_each_isa([&] {
      for (int64_t segment : {-1, 0}) {
        expect_matches(c, run(c, {.segment = segment}), expected, "segment " + std::to_string(segment));
      }
    });
  }
}

// Without a gate the mass is the number of tokens, exactly.
TEST(CausalAttention, MassCountsTokens) {
  for_each_isa([] {
    Case c({.op = Op::causal, .length = 1000, .seed = 62});
    c.add_mask("##.##");
    EXPECT_EQ(run(c).state.mass(0, 0), 800);
    EXPECT_EQ(run(c, {.segment = 128}).state.mass(0, 0), 800);
    EXPECT_EQ(run(c).state.log_decay(0, 0), 0);
  });
}

}  // namespace
}  // namespace raffia::internal::linear_tests
