#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "estimators/linear_case.h"
#include "estimators/linear_expected.h"
#include "raffia/threads.h"

namespace raffia::internal::linear_tests {
namespace {

// Token t of [B, T, H, D] as [B, H, D].
template <class View3Or, class View4Or>
View3Or token(const View4Or& view, int64_t t) {
  const auto at = view.slice(1, t, 1);
  return View3Or(at.data(), at.dtype(), {at.extent(0), at.extent(2), at.extent(3)}, {at.stride(0), at.stride(2), at.stride(3)});
}

View2 token(View3 view, int64_t t) {
  const View3 at = view.slice(1, t, 1);
  return View2(at.data(), at.dtype(), {at.extent(0), at.extent(2)}, {at.stride(0), at.stride(2)});
}

Report step(const Case& c, int64_t t, State& state, MutView4 out, const AttentionOptions& options) {
  const View3 q = token<View3>(c.q_view(), t), k = token<View3>(c.k_view(), t), v = token<View3>(c.v_view(), t);
  if (c.shape.op == Op::gated)
    return gated_step(q, k, v, token(c.gate_view(), t), c.map, state, token<MutView3>(out, t), options);
  return causal_step(q, k, v, c.map, state, token<MutView3>(out, t), options);
}

// The op, token by token.
Outcome run_steps(const Case& c, const How& how = {}) {
  Outcome outcome{std::vector<float>(c.dout.size(), kNan), c.initial, {}, {}};
  for (int64_t t = 0; t < c.shape.length; ++t) {
    const Report report = step(c, t, outcome.state, MutView4(outcome.out.data(), c.out_shape()), options_of(c, how));
    outcome.report.rows += report.rows;
    outcome.report.clamped += report.clamped;
  }
  return outcome;
}

class Step : public testing::TestWithParam<std::tuple<Op, MapKind>> {
 protected:
  Shape shape_of(int64_t length) const {
    return {.op = std::get<0>(GetParam()),
            .kind = std::get<1>(GetParam()),
            .length = length,
            .batch = 3,
            .heads = 4,
            .groups = 2,
            .seed = 71};
  }
};

INSTANTIATE_TEST_SUITE_P(OpsAndMaps, Step, testing::Combine(testing::Values(Op::causal, Op::gated), testing::ValuesIn(kKinds)),
                         [](const auto& of) {
                           return std::string(name_of_op(std::get<0>(of.param))) + "_" +
                                  std::string(name_of(std::get<1>(of.param)));
                         });

// What the chunked op is compared with too, so the two agree within the sum of the bounds.
TEST_P(Step, TokenByTokenEqualsTwin) {
  Case c(shape_of(40));
  c.add_initial_state();
  const Expected expected = expected_of(c);
  for_each_isa([&] { expect_matches(c, run_steps(c), expected, "steps"); });
}

TEST_P(Step, EqualsTwinAtEveryDimension) {
  constexpr int64_t kDims[] = {1, 3, 60, 64, 100, 128};
  for (int64_t i = 0; i < 6; ++i) {
    Shape shape = shape_of(5);
    shape.batch = 1, shape.dim = kDims[i], shape.value_dim = kDims[(i + 1 + static_cast<int64_t>(shape.kind)) % 6];
    shape.count = kDims[(i + 3) % 6] + i % 2;
    Case c(shape);
    c.add_initial_state();
    const Expected expected = expected_of(c);
    for_each_isa([&] { expect_matches(c, run_steps(c), expected, "steps"); });
  }
}

TEST_P(Step, ContinuesWhereAChunkedPrefillEnds) {
  Case c(shape_of(45));
  const Expected expected = expected_of(c);
  for (int64_t prefill : {1, 16, 37}) {
    for_each_isa([&] {
      Outcome outcome{std::vector<float>(c.dout.size(), kNan), c.initial, {}, {}};
      const MutView4 out(outcome.out.data(), c.out_shape());
      const View3 gate = c.gate_view().absent() ? View3() : c.gate_view().slice(1, 0, prefill);
      outcome.report = call(c, c.q_view().slice(1, 0, prefill), c.k_view().slice(1, 0, prefill), c.v_view().slice(1, 0, prefill),
                            gate, outcome.state, out.slice(1, 0, prefill), c.options);
      for (int64_t t = prefill; t < c.shape.length; ++t) {
        const Report report = step(c, t, outcome.state, out, c.options);
        outcome.report.rows += report.rows;
        outcome.report.clamped += report.clamped;
      }
      expect_matches(c, outcome, expected, "prefill " + std::to_string(prefill));
    });
  }
}

class StepOp : public testing::TestWithParam<Op> {};
INSTANTIATE_TEST_SUITE_P(Ops, StepOp, testing::Values(Op::causal, Op::gated),
                         [](const auto& of) { return std::string(name_of_op(of.param)); });

TEST_P(StepOp, HasTheSameBitsForAnyNumberOfThreads) {
  // 8 sessions of 2 heads, 128 x 96: enough for the threads to share.
  Case c(
      {.op = GetParam(), .length = 3, .batch = 8, .heads = 4, .groups = 2, .dim = 64, .count = 64, .value_dim = 96, .seed = 72});
  c.add_initial_state();
  const Outcome one = run_steps(c, {.threads = 1});
  for (int threads : {2, 7}) {
    const std::unique_ptr<Executor> executor = make_thread_pool(threads);
    expect_same_bits(run_steps(c, {.executor = executor.get()}), one, c.shape.text() + " threads " + std::to_string(threads));
  }
}

TEST_P(StepOp, SessionsDoNotTouchEachOther) {
  for_each_isa([&] {
    Case c({.op = GetParam(), .length = 9, .batch = 3, .heads = 2, .groups = 2, .value_dim = 33, .seed = 73});
    c.add_initial_state();
    const Outcome together = run_steps(c);
    Case poisoned({.op = GetParam(), .length = 9, .batch = 3, .heads = 2, .groups = 2, .value_dim = 33, .seed = 73});
    poisoned.initial = c.initial;
    for (int64_t t = 0; t < 9; ++t) poisoned.poison_key(1, t);
    const Outcome found = run_steps(poisoned);
    const size_t entry = found.out.size() / 3;
    for (size_t b : {size_t{0}, size_t{2}}) {
      EXPECT_TRUE(same_bits(std::span(found.out).subspan(b * entry, entry), std::span(together.out).subspan(b * entry, entry)))
          << c.shape.text();
    }
  });
}

TEST_P(StepOp, RoundsBf16OnceAtTheEnd) {
  for_each_isa([&] {
    Case c({.op = GetParam(), .length = 6, .batch = 2, .heads = 2, .dim = 20, .count = 19, .value_dim = 24, .seed = 74});
    const std::vector<BFloat16> q = round_to_bf16(c.q), k = round_to_bf16(c.k), v = round_to_bf16(c.v),
                                gate = round_to_bf16(c.gate);
    const Outcome exact = run_steps(c);
    std::vector<BFloat16> out(c.dout.size());
    const MutView4 to(out.data(), c.out_shape());
    State state = c.initial;
    for (int64_t t = 0; t < 6; ++t) {
      const View3 q_t = token<View3>(View4(q.data(), c.q_shape()), t), k_t = token<View3>(View4(k.data(), c.k_shape()), t),
                  v_t = token<View3>(View4(v.data(), c.v_shape()), t);
      if (GetParam() == Op::gated) {
        gated_step(q_t, k_t, v_t, token(View3(gate.data(), c.gate_shape()), t), c.map, state, token<MutView3>(to, t));
      } else {
        causal_step(q_t, k_t, v_t, c.map, state, token<MutView3>(to, t));
      }
    }
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(out[i].bits, BFloat16::from_float(exact.out[i]).bits) << c.shape.text() << " at " << i;
    }
    EXPECT_TRUE(same_bits(state.data(), exact.state.data())) << c.shape.text();
  });
}

TEST_P(StepOp, SessionsOfTheirOwnEqualEntriesOfOneState) {
  for_each_isa([] {
    Case c({.op = GetParam(), .length = 5, .batch = 3, .heads = 4, .groups = 2, .seed = 75});
    c.add_initial_state();
    const Outcome together = run_steps(c);
    std::vector<State> apart;
    for (int64_t b = 0; b < 3; ++b) apart.push_back(c.initial.select(std::vector<int64_t>{b}));
    const std::vector<State*> sessions = {&apart[0], &apart[1], &apart[2]};
    std::vector<float> out(c.dout.size(), kNan);
    for (int64_t t = 0; t < 5; ++t) {
      const View3 q = token<View3>(c.q_view(), t), k = token<View3>(c.k_view(), t), v = token<View3>(c.v_view(), t);
      const MutView3 to = token<MutView3>(MutView4(out.data(), c.out_shape()), t);
      if (GetParam() == Op::gated) {
        gated_step(q, k, v, token(c.gate_view(), t), c.map, sessions, to);
      } else {
        causal_step(q, k, v, c.map, sessions, to);
      }
    }
    EXPECT_TRUE(same_bits(out, together.out)) << c.shape.text();
    for (int64_t b = 0; b < 3; ++b) {
      EXPECT_EQ(apart[static_cast<size_t>(b)], together.state.select(std::vector<int64_t>{b}))
          << c.shape.text() << " session " << b;
    }
  });
}

TEST(GatedStep, HardGatesAreExact) {
  for_each_isa([] {
    Case c({.kind = MapKind::positive, .length = 3, .seed = 76});
    c.add_initial_state();
    std::fill(c.gate.begin(), c.gate.end(), 1e4F);
    EXPECT_TRUE(same_bits(run_steps(c).state.data(), c.initial.data())) << c.shape.text();
    std::fill(c.gate.begin(), c.gate.end(), -1e4F);
    const Outcome found = run_steps(c);
    for (size_t i = 0; i < c.v.size(); ++i) ASSERT_NEAR(found.out[i], c.v[i], 20 * kUnit * std::abs(c.v[i])) << c.shape.text();
  });
}

// Each argument that does not fit is named.
TEST(GatedStep, NamesWhatDoesNotFit) {
  const Case c({.length = 1, .batch = 2, .heads = 4, .groups = 2, .seed = 77});
  std::vector<float> floats(1000);
  State state = c.initial;
  const View3 q = token<View3>(c.q_view(), 0), k = token<View3>(c.k_view(), 0), v = token<View3>(c.v_view(), 0);
  const View2 gate = token(c.gate_view(), 0);
  const MutView3 out(floats.data(), {2, 4, c.shape.value_dim});
  const auto refused = [&](const char* argument, const auto& call) {
    const std::string message = refusal_of(call);
    EXPECT_EQ(message.rfind("gated_step: ", 0), 0U) << "for " << argument << ": " << message;
    EXPECT_NE(message.find(argument), std::string::npos) << message;
  };
  refused("q", [&] { gated_step(q.slice(1, 0, 3), k, v, gate, c.map, state, out); });
  refused("q", [&] { gated_step(q.slice(2, 0, 4), k, v, gate, c.map, state, out); });
  refused("k", [&] { gated_step(q, k.slice(0, 0, 1), v, gate, c.map, state, out); });
  refused("v", [&] { gated_step(q, k, v.slice(1, 0, 1), gate, c.map, state, out); });
  refused("gate_logits", [&] { gated_step(q, k, v, View2(), c.map, state, out); });
  refused("out", [&] { gated_step(q, k, v, gate, c.map, state, out.slice(2, 0, 3)); });
  refused("out", [&] { gated_step(q, k, v, gate, c.map, state, MutView3()); });
  State small = c.empty_state(1);
  refused("state", [&] { gated_step(q, k, v, gate, c.map, small, out); });
  State wide(StateShape{2, 2, c.map.features(), c.shape.value_dim + 1});
  refused("state", [&] { gated_step(q, k, v, gate, c.map, wide, out); });
  refused("eps", [&] { gated_step(q, k, v, gate, c.map, state, out, {.eps = -1.0F}); });
  const std::vector<int64_t> lengths = {1, 1};
  refused("layout", [&] { gated_step(q, k, v, gate, c.map, state, out, {.layout = {.lengths = lengths}}); });
  const std::vector<State*> twice = {&small, &small}, none = {nullptr, &small}, one = {&small};
  refused("session", [&] { gated_step(q, k, v, gate, c.map, twice, out); });
  refused("session", [&] { gated_step(q, k, v, gate, c.map, none, out); });
  refused("session", [&] { gated_step(q, k, v, gate, c.map, one, out); });
  const std::vector<double> wrong(1000);
  refused("q", [&] { gated_step(View3(wrong.data(), q.shape()), k, v, gate, c.map, state, out); });
}

}  // namespace
}  // namespace raffia::internal::linear_tests
