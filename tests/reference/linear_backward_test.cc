#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/arrays.h"

namespace raffia::reference {
namespace {

enum class Op { rfa, causal, gated };

// An op with all its inputs, and the loss <dout, out> + <dfinal, S_T> that its gradients are tested by.
struct Problem {
  struct Sizes {
    int64_t batch = 1, queries = 4, keys = 4, heads = 2, key_heads = 2, entries = 1;
  };

  Problem(Op of, MapKind kind, const Sizes& sizes)
      : op(of),
        map(any_map(kind, 3, 12, sizes.key_heads)),
        initial(StateShape{sizes.entries, sizes.key_heads, map.features, 2}),
        dfinal(initial.shape) {
    Numbers numbers(41);
    const double low = kind == MapKind::identity ? 0.2 : -1;  // features that are given: positive ones
    q = Array4({sizes.batch, sizes.queries, sizes.heads, 3}, numbers, low);
    k = Array4({sizes.batch, sizes.keys, sizes.key_heads, 3}, numbers, low);
    v = Array4({sizes.batch, sizes.keys, sizes.key_heads, 2}, numbers);
    gate = Array3({sizes.batch, sizes.keys, sizes.key_heads}, numbers, -2, 3);
    dout = Array4({sizes.batch, sizes.queries, sizes.heads, 2}, numbers);
    if (op == Op::rfa) return;
    const Array4 past_k({sizes.entries, 2, sizes.key_heads, 3}, numbers, low),
        past_v({sizes.entries, 2, sizes.key_heads, 2}, numbers);
    fold_keys(past_k.view(), past_v.view(), map, initial);
    numbers.fill(dfinal.sums, -1, 1);
    numbers.fill(dfinal.normaliser, -1, 1);
  }

  double loss() {
    Array4 out(dout.shape);
    Memory memory = initial;
    switch (op) {
      case Op::rfa:
        report = rfa_attention(q.view(), k.view(), v.view(), map, out.mut(), options);
        break;
      case Op::causal:
        report = causal_attention(q.view(), k.view(), v.view(), map, memory, out.mut(), options);
        break;
      case Op::gated:
        report = gated_attention(q.view(), k.view(), v.view(), gate.view(), map, memory, out.mut(), options);
        break;
    }
    return inner(out.values, dout.values) + inner(memory.sums, dfinal.sums) + inner(memory.normaliser, dfinal.normaliser);
  }

  void backward() {
    dq = Array4(q.shape), dk = Array4(k.shape), dv = Array4(v.shape), dgate = Array3(gate.shape);
    dmap = MapGradient(map);
    dinitial = dfinal;
    Gradients gradients{dq.mut(), dk.mut(), dv.mut(), {}, &dmap, &dinitial};
    switch (op) {
      case Op::rfa:
        rfa_attention_backward(q.view(), k.view(), v.view(), map, dout.view(), gradients, options);
        break;
      case Op::causal:
        causal_attention_backward(q.view(), k.view(), v.view(), map, initial, dout.view(), gradients, options);
        break;
      case Op::gated:
        gradients.gate_logits = dgate.mut();
        gated_attention_backward(q.view(), k.view(), v.view(), gate.view(), map, initial, dout.view(), gradients, options);
        break;
    }
  }

  // The floor of a clamped denominator is a constant to the gradients, though it depends on the gate: `with_gate` says whether
  // the gate is to be compared.
  void expect_gradients(bool with_gate = true) {
    backward();
    const auto f = [this] { return loss(); };
    expect_derivatives("q", q.values, dq.values, f);
    expect_derivatives("k", k.values, dk.values, f);
    expect_derivatives("v", v.values, dv.values, f);
    expect_derivatives("sigma", map.sigma, dmap.sigma, f);
    if (map.kind == MapKind::relu) expect_derivatives("weight", map.draws, dmap.weight, f);
    expect_derivatives("bias", map.bias, dmap.bias, f);
    if (op == Op::rfa) return;
    expect_derivatives("initial sums", initial.sums, dinitial.sums, f);
    expect_derivatives("initial normaliser", initial.normaliser, dinitial.normaliser, f);
    if (op == Op::gated && with_gate) expect_derivatives("gate logits", gate.values, dgate.values, f);
  }

  Op op;
  Map map;
  Memory initial, dfinal;
  AttentionOptions options{.eps = 0.0F};
  Array4 q, k, v, dout;
  Array3 gate;
  Report report;
  Array4 dq, dk, dv;
  Array3 dgate;
  MapGradient dmap{map};
  Memory dinitial{initial.shape};
};

class LinearTwinGradients : public testing::TestWithParam<std::tuple<Op, MapKind>> {
 protected:
  Op op() const { return std::get<0>(GetParam()); }
  MapKind kind() const { return std::get<1>(GetParam()); }
};

TEST_P(LinearTwinGradients, MatchFiniteDifferences) {
  Problem problem(op(), kind(), {.batch = 2, .queries = 4, .keys = 4, .heads = 2, .key_heads = 2, .entries = 2});
  problem.loss();
  ASSERT_EQ(problem.report.clamped, 0);
  problem.expect_gradients();
}

const char* name_of_op(Op op) { return op == Op::rfa ? "rfa" : op == Op::causal ? "causal" : "gated"; }

INSTANTIATE_TEST_SUITE_P(OpsAndMaps, LinearTwinGradients,
                         testing::Combine(testing::Values(Op::rfa, Op::causal, Op::gated), testing::ValuesIn(kAllKinds)),
                         [](const auto& of) {
                           return std::string(name_of_op(std::get<0>(of.param))) + "_" +
                                  std::string(name_of(std::get<1>(of.param)));
                         });

class LinearTwinGradientsOf : public testing::TestWithParam<Op> {};

TEST_P(LinearTwinGradientsOf, GroupedHeadsMatchFiniteDifferences) {
  Problem(GetParam(), MapKind::trig, {.heads = 4, .key_heads = 2}).expect_gradients();
}

TEST_P(LinearTwinGradientsOf, ClampedDenominatorsMatchFiniteDifferences) {
  Problem problem(GetParam(), MapKind::trig, {.batch = 2, .entries = 2});
  problem.options.eps = 0.65F;  // about the mean of the kernel
  problem.loss();
  ASSERT_GT(problem.report.clamped, 0);
  ASSERT_LT(problem.report.clamped, problem.report.rows);
  problem.expect_gradients(/*with_gate=*/false);
}

TEST_P(LinearTwinGradientsOf, PackedSequencesMatchFiniteDifferences) {
  const std::vector<int64_t> cu_seqlens{0, 2, 2, 5};
  Problem problem(GetParam(), MapKind::trig, {.queries = 5, .keys = 5, .entries = 3});
  problem.options.layout.cu_seqlens = cu_seqlens;
  problem.expect_gradients();
}

TEST_P(LinearTwinGradientsOf, LengthsMatchFiniteDifferences) {
  const std::vector<int64_t> lengths{2, 0, 4};
  Problem problem(GetParam(), MapKind::trig, {.batch = 3, .entries = 3});
  problem.options.layout.lengths = lengths;
  problem.expect_gradients();
}

TEST_P(LinearTwinGradientsOf, AbsentTokensAreZeroAndOthersMatchFiniteDifferences) {
  const std::vector<uint8_t> valid{1, 0, 1, 1};
  Problem problem(GetParam(), MapKind::trig, {});
  problem.options.layout.valid = View2(valid.data(), {1, 4});
  problem.expect_gradients();

  // The same with NaN in the absent token. Queries are computed for every token by rfa_attention, so its query stays.
  const Array4 dk = problem.dk, dv = problem.dv, dq = problem.dq;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t i = 0; i < 3; ++i) problem.k.mut().set(nan, 0, 1, h, i);
    for (int64_t i = 0; i < 2; ++i) problem.v.mut().set(nan, 0, 1, h, i);
    problem.gate.mut().set(nan, 0, 1, h);
    if (GetParam() == Op::rfa) continue;
    for (int64_t i = 0; i < 3; ++i) problem.q.mut().set(nan, 0, 1, h, i);
    for (int64_t i = 0; i < 2; ++i) problem.dout.mut().set(nan, 0, 1, h, i);
  }
  problem.backward();
  EXPECT_EQ(problem.dk.values, dk.values);
  EXPECT_EQ(problem.dv.values, dv.values);
  EXPECT_EQ(problem.dq.values, dq.values);
  for (int64_t h = 0; h < 2; ++h) {
    EXPECT_EQ(problem.dk.view()(0, 1, h, 0), 0);
    EXPECT_EQ(problem.dgate.view()(0, 1, h), 0);
  }
}

// Normalised outputs do not change with the length of phi(q): phi(q) . dphi(q) = 0. With identity features these are q and dq.
TEST_P(LinearTwinGradientsOf, QueriesAreOrthogonalToThem) {
  Problem problem(GetParam(), MapKind::identity, {});
  problem.backward();
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t h = 0; h < 2; ++h) {
      double along = 0, across = 0;
      for (int64_t i = 0; i < 3; ++i) {
        along += problem.q.view()(0, t, h, i) * problem.dq.view()(0, t, h, i);
        across = std::max(across, std::abs(problem.dq.view()(0, t, h, i)));
      }
      EXPECT_GT(across, 1e-6);
      EXPECT_NEAR(along, 0, 1e-14);  // a sum of 9 products of numbers below 2, which cancel
    }
  }
}

TEST_P(LinearTwinGradientsOf, UnwantedOnesMayBeAbsent) {
  Problem problem(GetParam(), MapKind::trig, {});
  problem.backward();
  Array4 dk(problem.k.shape);
  Gradients only_k;
  only_k.k = dk.mut();
  problem.dfinal = Memory(problem.initial.shape);
  problem.backward();
  switch (GetParam()) {
    case Op::rfa:
      rfa_attention_backward(problem.q.view(), problem.k.view(), problem.v.view(), problem.map, problem.dout.view(), only_k,
                             problem.options);
      break;
    case Op::causal:
      causal_attention_backward(problem.q.view(), problem.k.view(), problem.v.view(), problem.map, problem.initial,
                                problem.dout.view(), only_k, problem.options);
      break;
    case Op::gated:
      gated_attention_backward(problem.q.view(), problem.k.view(), problem.v.view(), problem.gate.view(), problem.map,
                               problem.initial, problem.dout.view(), only_k, problem.options);
      break;
  }
  EXPECT_EQ(dk.values, problem.dk.values);
}

INSTANTIATE_TEST_SUITE_P(Ops, LinearTwinGradientsOf, testing::Values(Op::rfa, Op::causal, Op::gated),
                         [](const auto& of) { return std::string(name_of_op(of.param)); });

TEST(RfaTwin, CrossGradientsMatchFiniteDifferences) {
  const std::vector<int64_t> cu_seqlens{0, 2, 3}, cu_seqlens_k{0, 1, 5};
  Problem problem(Op::rfa, MapKind::positive2, {.queries = 3, .keys = 5});
  problem.expect_gradients();
  problem.options.layout.cu_seqlens = cu_seqlens;
  problem.options.layout.cu_seqlens_k = cu_seqlens_k;
  problem.expect_gradients();
}

TEST(GatedTwin, GradientsOfHardGatesAreFinite) {
  Problem problem(Op::gated, MapKind::positive, {});
  for (size_t i = 0; i < problem.gate.values.size(); ++i) problem.gate.values[i] = i % 3 == 0 ? -1e4 : 1e4;
  problem.expect_gradients();
  for (double value : problem.dgate.values) EXPECT_NEAR(value, 0, 1e-24);  // a gate is at least exp(-60) = 9e-27
}

TEST(GatedTwin, GradientsOfAWholeAreThoseOfItsParts) {
  Problem problem(Op::gated, MapKind::trig, {});
  problem.backward();
  const auto part = [](auto view, int64_t begin) { return view.slice(1, begin, 2); };
  Memory middle = problem.initial;
  fold_keys(part(problem.k.view(), 0), part(problem.v.view(), 0), part(problem.gate.view(), 0), problem.map, middle);

  Array4 dq(problem.q.shape), dk(problem.k.shape), dv(problem.v.shape);
  Array3 dgate(problem.gate.shape);
  MapGradient dmap(problem.map);
  Memory dmemory = problem.dfinal;
  for (int64_t begin : {2, 0}) {
    gated_attention_backward(
        part(problem.q.view(), begin), part(problem.k.view(), begin), part(problem.v.view(), begin),
        part(problem.gate.view(), begin), problem.map, begin == 0 ? problem.initial : middle, part(problem.dout.view(), begin),
        {part(dq.mut(), begin), part(dk.mut(), begin), part(dv.mut(), begin), part(dgate.mut(), begin), &dmap, &dmemory},
        problem.options);
  }
  EXPECT_EQ(dq.values, problem.dq.values);
  EXPECT_EQ(dk.values, problem.dk.values);
  EXPECT_EQ(dv.values, problem.dv.values);
  EXPECT_EQ(dgate.values, problem.dgate.values);
  EXPECT_EQ(dmap.sigma, problem.dmap.sigma);
  EXPECT_EQ(dmemory.sums, problem.dinitial.sums);
}

}  // namespace
}  // namespace raffia::reference
