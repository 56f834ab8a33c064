#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "estimators/linear_case.h"
#include "estimators/linear_expected.h"
#include "raffia/threads.h"

namespace raffia::internal::linear_tests {
namespace {

// Gradients of every input. Rows are NaN before; parameters are added to, so they start at 0.
struct Gradients {
  explicit Gradients(const Case& c, bool with_state = true)
      : q(c.q.size(), kNan),
        k(c.k.size(), kNan),
        v(c.v.size(), kNan),
        gate(c.shape.op == Op::gated ? c.gate.size() : 0, kNan),
        sigma(c.map.is_random() ? static_cast<size_t>(c.shape.groups * c.shape.dim) : 0),
        weight(c.shape.kind == MapKind::relu ? static_cast<size_t>(c.shape.groups * c.map.features() * c.shape.dim) : 0),
        bias(c.shape.kind == MapKind::relu ? static_cast<size_t>(c.shape.groups * c.map.features()) : 0),
        state(final_gradient(c)),
        has_state(with_state && c.shape.op != Op::rfa) {}

  // A gradient of the final state: as if something later read it.
  static State final_gradient(const Case& c) {
    State state = c.initial;
    const std::vector<float> values = normals(state.data().size(), c.shape.seed + 77, 0, 0.3F);
    std::copy(values.begin(), values.end(), state.data().begin());
    for (int64_t b = 0; b < state.shape().batch; ++b) {
      for (int64_t h = 0; h < state.shape().heads; ++h) state.mass(b, h) = state.log_decay(b, h) = 0;
    }
    return state;
  }

  AttentionGradients views(const Case& c) {
    AttentionGradients views;
    views.q = MutView4(q.data(), c.q_shape());
    views.k = MutView4(k.data(), c.k_shape());
    views.v = MutView4(v.data(), c.v_shape());
    if (!gate.empty()) views.gate_logits = MutView3(gate.data(), c.gate_shape());
    if (!sigma.empty()) views.map.sigma = MutView2(sigma.data(), {c.shape.groups, c.shape.dim});
    if (!weight.empty()) views.map.weight = MutView3(weight.data(), {c.shape.groups, c.map.features(), c.shape.dim});
    if (!bias.empty()) views.map.bias = MutView2(bias.data(), {c.shape.groups, c.map.features()});
    if (has_state) views.state = &state;
    return views;
  }

  std::vector<float> q, k, v, gate, sigma, weight, bias;
  State state;
  bool has_state;
};

void call_backward(const Case& c, View4 q, View4 k, View4 v, View3 gate, View4 out, std::span<const float> record, View4 dout,
                   const AttentionGradients& gradients, const AttentionOptions& options) {
  switch (c.shape.op) {
    case Op::rfa:
      return rfa_attention_backward(q, k, v, c.map, out, record, dout, gradients, options);
    case Op::causal:
      return causal_attention_backward(q, k, v, c.map, out, record, dout, gradients, options);
    case Op::gated:
      return gated_attention_backward(q, k, v, gate, c.map, out, record, dout, gradients, options);
  }
}

// Forward with a record, then backward.
Gradients backward(const Case& c, How how = {}) {
  how.record = true;
  const Outcome forward = run(c, how);
  Gradients gradients(c);
  call_backward(c, c.q_view(), c.k_view(), c.v_view(), c.gate_view(), View4(forward.out.data(), c.out_shape()), forward.record,
                c.dout_view(), gradients.views(c), options_of(c, how));
  return gradients;
}

struct ExpectedGradients {
  explicit ExpectedGradients(const Case& c)
      : q(c.q.size()),
        k(c.k.size()),
        v(c.v.size()),
        gate(c.gate.size()),
        parameters(reference::Map(c.map)),
        memory(Gradients::final_gradient(c)) {
    const reference::Map map(c.map);
    reference::Gradients gradients{MutView4(q.data(), c.q_shape()),
                                   MutView4(k.data(), c.k_shape()),
                                   MutView4(v.data(), c.v_shape()),
                                   {},
                                   &parameters,
                                   c.shape.op == Op::rfa ? nullptr : &memory};
    const reference::Memory initial(c.initial);
    switch (c.shape.op) {
      case Op::rfa:
        reference::rfa_attention_backward(c.q_view(), c.k_view(), c.v_view(), map, c.dout_view(), gradients, c.options);
        break;
      case Op::causal:
        reference::causal_attention_backward(c.q_view(), c.k_view(), c.v_view(), map, initial, c.dout_view(), gradients,
                                             c.options);
        break;
      case Op::gated:
        gradients.gate_logits = MutView3(gate.data(), c.gate_shape());
        reference::gated_attention_backward(c.q_view(), c.k_view(), c.v_view(), c.gate_view(), map, initial, c.dout_view(),
                                            gradients, c.options);
        break;
    }
    const Expected forward = expected_of(c);
    // Without this a test would prove little, or compare the two sides of a clamp.
    EXPECT_EQ(forward.unbounded, 0) << c.shape.text();
    EXPECT_EQ(forward.uncertain, 0) << c.shape.text();
    EXPECT_LT(forward.conditioning, 1e-2) << c.shape.text();
    // Gradients are sums of products of five factors: a feature, a state, a gradient of a state, a slope of the map and 1 / n.
    // The gradient of the state follows the recurrence backwards, so each of these errs about as much as a denominator does; in
    // squares.
    tolerance = std::sqrt(5.0) * forward.conditioning;
  }

  std::vector<double> q, k, v, gate;
  reference::MapGradient parameters;
  reference::Memory memory;
  double tolerance = 0;
};

double mean_square(std::span<const float> values) {
  double sum = 0;
  int64_t count = 0;
  for (float value : values) {
    if (!std::isfinite(value)) continue;
    sum += square(value);
    ++count;
  }
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

// What terms of a gradient are like before they cancel: dout . v. They cancel entirely where a query sees one key alone.
double natural_scale(const Case& c) {
  return std::sqrt(mean_square(c.dout) * mean_square(c.v) * static_cast<double>(c.shape.value_dim));
}

// Every element is within `tolerance` of the greatest, or of the scale of the terms where that is more.
void expect_close(std::span<const float> found, std::span<const double> expected, double tolerance, double scale,
                  const std::string& what) {
  double greatest = scale;
  for (double value : expected) greatest = std::max(greatest, std::abs(value));
  expect_within(doubles(found), expected, std::vector<double>(expected.size(), tolerance * greatest), what);
}

void expect_matches(const Case& c, const Gradients& found, const ExpectedGradients& expected, const std::string& note = "") {
  const std::string what = c.shape.text() + " " + note;
  const double scale = natural_scale(c);
  expect_close(found.q, expected.q, expected.tolerance, scale, what + " dq");
  expect_close(found.k, expected.k, expected.tolerance, scale, what + " dk");
  expect_close(found.v, expected.v, expected.tolerance, scale, what + " dv");
  if (c.shape.op == Op::gated) expect_close(found.gate, expected.gate, expected.tolerance, scale, what + " dgate_logits");
  expect_close(found.sigma, expected.parameters.sigma, expected.tolerance, scale, what + " dsigma");
  expect_close(found.weight, expected.parameters.weight, expected.tolerance, scale, what + " dweight");
  expect_close(found.bias, expected.parameters.bias, expected.tolerance, scale, what + " dbias");
  if (c.shape.op == Op::rfa) return;
  for (int64_t b = 0; b < found.state.shape().batch; ++b) {
    for (int64_t h = 0; h < found.state.shape().heads; ++h) {
      expect_close(found.state.sums(b, h), expected.memory.sums_at(b, h), expected.tolerance, scale, what + " dsums");
      expect_close(found.state.normaliser(b, h), expected.memory.normaliser_at(b, h), expected.tolerance, scale,
                   what + " dnormaliser");
    }
  }
}

void expect_gradients_match_twin(const Case& c, const How& how = {}, const std::string& note = "") {
  const ExpectedGradients expected(c);
  for_each_isa([&] { expect_matches(c, backward(c, how), expected, note); });
}

void expect_same_bits(const Gradients& a, const Gradients& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.q, b.q)) << what << " dq";
  EXPECT_TRUE(same_bits(a.k, b.k)) << what << " dk";
  EXPECT_TRUE(same_bits(a.v, b.v)) << what << " dv";
  EXPECT_TRUE(same_bits(a.gate, b.gate)) << what << " dgate_logits";
  EXPECT_TRUE(same_bits(a.sigma, b.sigma)) << what << " dsigma";
  EXPECT_TRUE(same_bits(a.weight, b.weight)) << what << " dweight";
  EXPECT_TRUE(same_bits(a.bias, b.bias)) << what << " dbias";
  EXPECT_TRUE(same_bits(a.state.data(), b.state.data())) << what << " dstate";
}

class LinearGradients : public testing::TestWithParam<std::tuple<Op, MapKind>> {
 protected:
  Op op() const { return std::get<0>(GetParam()); }
  MapKind kind() const { return std::get<1>(GetParam()); }
  Shape shape_of(int64_t length) const {
    return {.op = op(), .kind = kind(), .length = length, .dim = 7, .count = 37, .value_dim = 5, .seed = 11};
  }
};

std::string name_of_case(const testing::TestParamInfo<std::tuple<Op, MapKind>>& of) {
  return std::string(name_of_op(std::get<0>(of.param))) + "_" + std::string(name_of(std::get<1>(of.param)));
}

INSTANTIATE_TEST_SUITE_P(OpsAndMaps, LinearGradients, testing::Combine(testing::ValuesIn(kOps), testing::ValuesIn(kKinds)),
                         name_of_case);

// Of ops that have segments.
class SegmentGradients : public LinearGradients {};
INSTANTIATE_TEST_SUITE_P(OpsAndMaps, SegmentGradients,
                         testing::Combine(testing::Values(Op::causal, Op::gated), testing::ValuesIn(kKinds)), name_of_case);

TEST_P(LinearGradients, EqualTwinAtEveryLengthUpToTwoChunks) {
  for (int64_t length = 0; length <= 33; ++length) {
    Case c(shape_of(length));
    c.add_initial_state();
    expect_gradients_match_twin(c);
  }
}

TEST_P(LinearGradients, EqualTwinAtEveryDimension) {
  constexpr int64_t kDims[] = {3, 60, 64, 100, 128, 1};
  // In one dimension a unit vector cannot move: gradients of the maps that normalise are 0, and there is nothing to compare.
  const int64_t count = kind() == MapKind::trig || kind() == MapKind::arccos ? 5 : 6;
  for (int64_t i = 0; i < count; ++i) {
    Shape shape = shape_of(35);
    shape.dim = kDims[i];
    shape.value_dim = kDims[(i + static_cast<int64_t>(kind())) % 6];
    shape.count = i % 2 == 0 ? 64 : 61;
    Case c(shape);
    c.add_initial_state();
    expect_gradients_match_twin(c);
  }
}

TEST_P(LinearGradients, EqualTwinAcrossRecordedBlocks) {
  for (int64_t length : {127, 128, 129, 257}) {
    Case c(shape_of(length));
    c.add_initial_state();
    expect_gradients_match_twin(c);
  }
}

TEST_P(LinearGradients, EqualTwinWithGroupsMaskAndNan) {
  for (const char* pattern : {"#.##", "..................##", "###############################.........."}) {
    Shape shape = shape_of(41);
    shape.batch = 2, shape.heads = 6, shape.groups = 2;
    Case c(shape);
    c.add_initial_state();
    c.add_mask(pattern);
    expect_gradients_match_twin(c);
  }
}

class LinearGradientsOp : public testing::TestWithParam<Op> {
 protected:
  Shape shape_of(int64_t length) const {
    return {.op = GetParam(), .kind = MapKind::positive, .length = length, .dim = 7, .count = 37, .value_dim = 18, .seed = 12};
  }
};

INSTANTIATE_TEST_SUITE_P(Ops, LinearGradientsOp, testing::ValuesIn(kOps),
                         [](const auto& of) { return std::string(name_of_op(of.param)); });

TEST_P(LinearGradientsOp, EqualTwinWithLengthsAndPackedSequences) {
  Shape shape = shape_of(41);
  shape.batch = 4, shape.heads = 2;
  Case padded(shape);
  padded.add_initial_state();
  padded.set_lengths({0, 41, 17, 16});
  expect_gradients_match_twin(padded);
  shape.batch = 1, shape.length = 90;
  Case packed(shape);
  packed.set_cu_seqlens({0, 0, 1, 34, 34, 66, 90, 90});
  packed.add_initial_state();
  expect_gradients_match_twin(packed);
}

// Nothing absent is left at what it was: padding has gradients of 0.
TEST_P(LinearGradientsOp, AbsentTokensHaveNone) {
  for_each_isa([&] {
    Shape shape = shape_of(40);
    Case c(shape);
    c.add_mask(".#");
    c.set_lengths({30});
    const Gradients found = backward(c);
    for (int64_t t = 0; t < 40; ++t) {
      if (t % 2 == 1 && t < 30) continue;
      for (int64_t i = 0; i < shape.dim; ++i) EXPECT_EQ(found.k[static_cast<size_t>(t * shape.dim + i)], 0) << shape.text();
      for (int64_t i = 0; i < shape.value_dim; ++i)
        EXPECT_EQ(found.v[static_cast<size_t>(t * shape.value_dim + i)], 0) << shape.text();
      if (GetParam() != Op::gated) continue;
      EXPECT_EQ(found.gate[static_cast<size_t>(t)], 0) << shape.text();
    }
  });
}

TEST_P(LinearGradientsOp, ClampedDenominatorsHaveNone) {
  Shape shape = shape_of(60);
  shape.kind = MapKind::trig;
  Case c(shape);
  const float middle = eps_in_the_middle(c);
  for (float eps : {middle, 1e3F}) {
    c.options.eps = eps;
    expect_gradients_match_twin(c, {}, "eps " + std::to_string(eps));
  }
}

TEST_P(LinearGradientsOp, SegmentsEqualTwin) {
  for (int64_t length : {129, 300, 520}) {
    Shape shape = shape_of(length);
    shape.heads = 2;
    Case c(shape);
    c.add_initial_state();
    const ExpectedGradients expected(c);
    for (int64_t segment : {-1, 128, 256}) {
      for_each_isa([&] { expect_matches(c, backward(c, {.segment = segment}), expected, "segment " + std::to_string(segment)); });
    }
  }
}

TEST_P(LinearGradientsOp, HaveTheSameBitsForAnyNumberOfThreads) {
  for (MapKind kind : {MapKind::trig, MapKind::relu}) {
    Shape shape = shape_of(600);
    shape.kind = kind, shape.batch = 2, shape.heads = 4, shape.groups = 2;
    Case c(shape);
    c.add_initial_state();
    c.add_mask("####.######..");
    for (int64_t segment : {0, 128}) {
      const Gradients one = backward(c, {.threads = 1, .segment = segment});
      for (int threads : {2, 7}) {
        const std::unique_ptr<Executor> executor = make_thread_pool(threads);
        expect_same_bits(backward(c, {.executor = executor.get(), .segment = segment}), one,
                         c.shape.text() + " segment " + std::to_string(segment) + " threads " + std::to_string(threads));
      }
    }
  }
}

TEST_P(LinearGradientsOp, UnwantedOnesMayBeAbsent) {
  for_each_isa([&] {
    for (MapKind kind : {MapKind::trig, MapKind::relu}) {
      Shape shape = shape_of(40);
      shape.kind = kind;
      const Case c(shape);
      const Outcome forward = run(c, {.record = true});
      const auto wanted = [&](const auto& drop) {
        Gradients gradients(c, /*with_state=*/false);
        AttentionGradients views = gradients.views(c);
        drop(views);
        call_backward(c, c.q_view(), c.k_view(), c.v_view(), c.gate_view(), View4(forward.out.data(), c.out_shape()),
                      forward.record, c.dout_view(), views, c.options);
        return gradients;
      };
      const Gradients all = wanted([](AttentionGradients&) {});
      EXPECT_TRUE(same_bits(wanted([](AttentionGradients& g) { g = {.q = g.q}; }).q, all.q)) << shape.text();
      EXPECT_TRUE(same_bits(wanted([](AttentionGradients& g) { g = {.k = g.k}; }).k, all.k)) << shape.text();
      EXPECT_TRUE(same_bits(wanted([](AttentionGradients& g) { g = {.v = g.v}; }).v, all.v)) << shape.text();
      EXPECT_TRUE(same_bits(wanted([](AttentionGradients& g) { g = {.gate_logits = g.gate_logits}; }).gate, all.gate))
          << shape.text();
      const Gradients parameters = wanted([](AttentionGradients& g) { g = {.map = g.map}; });
      EXPECT_TRUE(same_bits(parameters.sigma, all.sigma)) << shape.text();
      EXPECT_TRUE(same_bits(parameters.weight, all.weight)) << shape.text();
      EXPECT_TRUE(same_bits(parameters.bias, all.bias)) << shape.text();
      wanted([](AttentionGradients& g) { g = {}; });
    }
  });
}

TEST_P(LinearGradientsOp, OfParametersAreAddedTo) {
  for (MapKind kind : {MapKind::trig, MapKind::relu}) {
    Shape shape = shape_of(40);
    shape.kind = kind;
    const Case c(shape);
    const Outcome forward = run(c, {.record = true});
    Gradients gradients(c, /*with_state=*/false);
    const auto add = [&] {
      call_backward(c, c.q_view(), c.k_view(), c.v_view(), c.gate_view(), View4(forward.out.data(), c.out_shape()),
                    forward.record, c.dout_view(), gradients.views(c), c.options);
    };
    add();
    const Gradients once = gradients;
    add();
    // Queries and keys add one sum each, which the parameter's fp32 rounds: 4 times, of numbers up to the greatest.
    const auto expect_twice = [&](const std::vector<float>& twice, const std::vector<float>& of) {
      double greatest = 0;
      for (float value : of) greatest = std::max(greatest, std::abs(static_cast<double>(value)));
      for (size_t i = 0; i < of.size(); ++i) EXPECT_NEAR(twice[i], 2 * of[i], 4 * kUnit * 4 * greatest) << shape.text();
    };
    expect_twice(gradients.sigma, once.sigma);
    expect_twice(gradients.weight, once.weight);
    expect_twice(gradients.bias, once.bias);
    EXPECT_TRUE(same_bits(gradients.q, once.q));
  }
}

// Gradients of bf16 inputs, written in bf16, are those of fp32 rounded once.
TEST_P(LinearGradientsOp, RoundToBf16OnceAtTheEnd) {
  for_each_isa([&] {
    Case c(shape_of(37));
    const std::vector<BFloat16> q = round_to_bf16(c.q), k = round_to_bf16(c.k), v = round_to_bf16(c.v),
                                gate = round_to_bf16(c.gate), dout = round_to_bf16(c.dout);
    const Gradients exact = backward(c);
    const Outcome forward = run(c, {.record = true});
    Gradients unrounded(c);
    std::vector<BFloat16> dq(q.size()), dk(k.size()), dv(v.size()), dgate(gate.size());
    AttentionGradients views = unrounded.views(c);
    views.q = MutView4(dq.data(), c.q_shape()), views.k = MutView4(dk.data(), c.k_shape()),
    views.v = MutView4(dv.data(), c.v_shape());
    const bool gated = GetParam() == Op::gated;
    if (gated) views.gate_logits = MutView3(dgate.data(), c.gate_shape());
    call_backward(c, View4(q.data(), c.q_shape()), View4(k.data(), c.k_shape()), View4(v.data(), c.v_shape()),
                  gated ? View3(gate.data(), c.gate_shape()) : View3(), View4(forward.out.data(), c.out_shape()), forward.record,
                  View4(dout.data(), c.out_shape()), views, c.options);
    const auto expect_rounded = [&](const std::vector<BFloat16>& found, const std::vector<float>& from, const char* what) {
      for (size_t i = 0; i < from.size(); ++i) {
        ASSERT_EQ(found[i].bits, BFloat16::from_float(from[i]).bits) << c.shape.text() << " " << what << " " << i;
      }
    };
    expect_rounded(dq, exact.q, "dq");
    expect_rounded(dk, exact.k, "dk");
    expect_rounded(dv, exact.v, "dv");
    if (gated) expect_rounded(dgate, exact.gate, "dgate");
  });
}

// Outputs in bf16 are rounded, and dout . out with them; gradients are not. Where few features are active an output hardly
// depends on its query, and the rounding would be most of dq.
TEST_P(LinearGradients, OutputsThatWereRoundedToBf16CostNothing) {
  // Two features of a signed map leave denominators near 0, where nothing can be compared.
  for (int64_t count : {kind() == MapKind::trig ? 37 : 2, 37}) {
    Shape shape = shape_of(150);
    shape.count = count;
    shape.batch = 2, shape.heads = 4, shape.groups = 2;
    Case c(shape);
    c.add_initial_state();
    c.add_mask("#######.####");
    const ExpectedGradients expected(c);
    for_each_isa([&] {
      const Outcome forward = run(c, {.record = true});
      std::vector<BFloat16> out;
      for (float value : forward.out) out.push_back(BFloat16::from_float(value));
      Gradients found(c);
      call_backward(c, c.q_view(), c.k_view(), c.v_view(), c.gate_view(), View4(out.data(), c.out_shape()), forward.record,
                    c.dout_view(), found.views(c), c.options);
      expect_matches(c, found, expected, "bf16 outputs");
    });
  }
}

// The same where a segment between others only folds its gradient. Values have a common part, as those of a text do, so that
// outputs are large where they differ little: the rounding of dout . out is most of the gradients of earlier keys.
TEST_P(SegmentGradients, OutputsThatWereRoundedToBf16CostNothing) {
  for (int64_t count : {kind() == MapKind::trig ? 37 : 2, 37}) {
    Shape shape = shape_of(400);
    shape.count = count;
    shape.heads = 4, shape.groups = 2;
    shape.gate_mean = 6;  // gradients reach earlier segments
    Case c(shape);
    for (float& value : c.v) value += 8;
    c.add_initial_state();
    c.add_mask("#######.####");
    for_each_isa([&] {
      const How how{.segment = 32, .record = true};
      const Outcome forward = run(c, how);
      std::vector<BFloat16> out;
      for (float value : forward.out) out.push_back(BFloat16::from_float(value));
      const auto backward_with = [&](View4 outputs) {
        Gradients found(c);
        call_backward(c, c.q_view(), c.k_view(), c.v_view(), c.gate_view(), outputs, forward.record, c.dout_view(),
                      found.views(c), options_of(c, how));
        return found;
      };
      const Gradients exact = backward_with(View4(forward.out.data(), c.out_shape()));
      const Gradients found = backward_with(View4(out.data(), c.out_shape()));
      // Both err as gradients do everywhere here, relative to the greatest term.
      const double tolerance = 2 * std::sqrt(5.0) * expected_of(c).conditioning, scale = natural_scale(c);
      expect_close(found.q, doubles(exact.q), tolerance, scale, shape.text() + " dq");
      expect_close(found.k, doubles(exact.k), tolerance, scale, shape.text() + " dk");
      expect_close(found.v, doubles(exact.v), tolerance, scale, shape.text() + " dv");
      if (op() == Op::gated) expect_close(found.gate, doubles(exact.gate), tolerance, scale, shape.text() + " dgate_logits");
    });
  }
}

// Normalised outputs do not change with the length of phi(q): q . dq = 0 with identity features. dq errs as gradients do
// everywhere here, relative to the greatest.
TEST_P(LinearGradientsOp, QueriesAreOrthogonalToThem) {
  for_each_isa([&] {
    Shape shape = shape_of(70);
    shape.kind = MapKind::identity;
    Case c(shape);
    c.add_initial_state();  // without it the first query sees one key, and its gradient is 0
    const Gradients found = backward(c);
    const double tolerance = std::sqrt(5.0) * expected_of(c).conditioning;
    double greatest = 0;
    for (float value : found.q) greatest = std::max(greatest, std::abs(static_cast<double>(value)));
    for (int64_t t = 0; t < shape.length; ++t) {
      double along = 0, q = 0;
      for (int64_t i = 0; i < shape.dim; ++i) {
        const size_t at = static_cast<size_t>(t * shape.dim + i);
        along += static_cast<double>(c.q[at]) * static_cast<double>(found.q[at]);
        q += square(c.q[at]);
      }
      EXPECT_LE(std::abs(along), tolerance * greatest * std::sqrt(q)) << shape.text() << " t " << t;
    }
  });
}

// The op's own forward, by the five-point rule, along the signs of the gradient: a direction that every element has an equal part
// in. In fp32 the loss errs by the bounds of the outputs, in quadrature; divided by h, times the weights (8, 8, 1, 1) / 12.
// Truncation is h^4 times a fifth derivative of a function that is smooth over distances of 1.
TEST_P(LinearGradientsOp, MatchFiniteDifferencesOfTheForwardPass) {
  for_each_isa([&] {
    Shape shape = shape_of(37);
    shape.kind = MapKind::elu;
    Case c(shape);
    for (float& x : c.q) x = std::abs(x) + 0.1F;  // away from 0, where the second derivative of elu jumps
    for (float& x : c.k) x = -std::abs(x) - 0.1F;
    const Outcome forward = run(c, {.record = true});
    Gradients gradients(c, /*with_state=*/false);
    call_backward(c, c.q_view(), c.k_view(), c.v_view(), c.gate_view(), View4(forward.out.data(), c.out_shape()), forward.record,
                  c.dout_view(), gradients.views(c), c.options);
    const Expected expected = expected_of(c);
    double loss_error = 0;
    for (size_t i = 0; i < expected.out.size(); ++i)
      loss_error += square(static_cast<double>(c.dout[i]) * expected.out_bounds[i]);
    constexpr double kStep = 0x1p-6;
    const double tolerance = std::sqrt(loss_error) / kStep * std::sqrt(64 + 64 + 1 + 1.0) / 12 + 1e-4;
    const auto check = [&](std::vector<float>& values, const std::vector<float>& gradient, const char* what) {
      const std::vector<float> at = values;
      const double length = 1 / std::sqrt(static_cast<double>(values.size()));
      const auto loss = [&](double h) {
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = at[i] + static_cast<float>(std::copysign(h * length, gradient[i]) * (h < 0 ? -1 : 1));
        }
        const Outcome outcome = run(c);
        double sum = 0;
        for (size_t i = 0; i < outcome.out.size(); ++i)
          sum += static_cast<double>(c.dout[i]) * static_cast<double>(outcome.out[i]);
        values = at;
        return sum;
      };
      const double derivative = (8 * (loss(kStep) - loss(-kStep)) - (loss(2 * kStep) - loss(-2 * kStep))) / (12 * kStep);
      double along = 0;
      for (float value : gradient) along += std::abs(static_cast<double>(value)) * length;
      EXPECT_NEAR(along, derivative, tolerance) << shape.text() << " " << what;
      EXPECT_GT(along, 20 * tolerance) << shape.text() << " " << what << ": the derivative is too small to test";
    };
    check(c.q, gradients.q, "q");
    check(c.k, gradients.k, "k");
    check(c.v, gradients.v, "v");
    if (GetParam() == Op::gated) check(c.gate, gradients.gate, "gate_logits");
  });
}

class CausalLinearGradients : public LinearGradientsOp {};
INSTANTIATE_TEST_SUITE_P(Ops, CausalLinearGradients, testing::Values(Op::causal, Op::gated),
                         [](const auto& of) { return std::string(name_of_op(of.param)); });

TEST_P(CausalLinearGradients, SplitAndResumeEqualsWhole) {
  for (int64_t cut : {1, 16, 50, 128, 139}) {
    Shape shape = shape_of(140);
    shape.heads = 2;
    Case c(shape);
    c.add_initial_state();
    const ExpectedGradients expected(c);
    for_each_isa([&] {
      Gradients found(c);
      const AttentionGradients views = found.views(c);
      struct Part {
        int64_t begin, count;
        std::vector<float> record;
      } parts[] = {{0, cut, {}}, {cut, 140 - cut, {}}};
      std::vector<float> out(c.dout.size(), kNan);
      State state = c.initial;
      const auto slice = [](auto view, const Part& part) { return view.absent() ? view : view.slice(1, part.begin, part.count); };
      for (Part& part : parts) {
        const AttentionOptions& options = c.options;
        part.record.assign(static_cast<size_t>(record_size(slice(c.q_view(), part), slice(c.k_view(), part),
                                                           slice(c.v_view(), part), c.map, options)),
                           kNan);
        call(c, slice(c.q_view(), part), slice(c.k_view(), part), slice(c.v_view(), part), slice(c.gate_view(), part), state,
             slice(MutView4(out.data(), c.out_shape()), part), options, part.record);
      }
      for (const Part* part : {&parts[1], &parts[0]}) {
        AttentionGradients sliced = views;
        sliced.q = slice(views.q, *part), sliced.k = slice(views.k, *part), sliced.v = slice(views.v, *part);
        sliced.gate_logits = slice(views.gate_logits, *part);
        call_backward(c, slice(c.q_view(), *part), slice(c.k_view(), *part), slice(c.v_view(), *part),
                      slice(c.gate_view(), *part), slice(View4(out.data(), c.out_shape()), *part), part->record,
                      slice(c.dout_view(), *part), sliced, c.options);
      }
      expect_matches(c, found, expected, "cut " + std::to_string(cut));
    });
  }
}

// What a later token of `dout` is does not reach the gradient of q, and what an earlier one is does not reach k and v: not a bit.
TEST_P(CausalLinearGradients, FlowBackwardsOnly) {
  for_each_isa([&] {
    const Case c(shape_of(150));
    const Gradients whole = backward(c);
    for (int64_t cut : {16, 64, 128}) {
      Case later(c.shape), earlier(c.shape);
      const int64_t width = c.shape.value_dim;
      for (int64_t i = cut * width; i < 150 * width; ++i) later.dout[static_cast<size_t>(i)] *= -3;
      for (int64_t i = 0; i < cut * width; ++i) earlier.dout[static_cast<size_t>(i)] *= -3;
      const size_t before = static_cast<size_t>(cut * c.shape.dim);
      const Gradients of_later = backward(later), of_earlier = backward(earlier);
      EXPECT_TRUE(same_bits(std::span(of_later.q).first(before), std::span(whole.q).first(before)))
          << c.shape.text() << " cut " << cut;
      EXPECT_TRUE(same_bits(std::span(of_earlier.k).subspan(before), std::span(whole.k).subspan(before)))
          << c.shape.text() << " cut " << cut;
    }
  });
}

TEST(GatedGradients, HardResetsEqualTwin) {
  Case c({.kind = MapKind::positive, .length = 75, .dim = 7, .count = 37, .seed = 51});
  c.add_initial_state();
  for (size_t t = 0; t < c.gate.size(); ++t) {
    if (t % 7 == 3) c.gate[t] = 1e4F;
    if (t % 19 == 11) c.gate[t] = -1e4F;
  }
  expect_gradients_match_twin(c);
}

TEST(RfaGradients, QueriesAndKeysMayDifferInNumber) {
  for (const auto& [queries, keys] : {std::pair{1, 200}, {200, 2}, {17, 150}, {0, 40}, {40, 0}}) {
    const Case c({.op = Op::rfa,
                  .kind = MapKind::positive2,
                  .length = keys,
                  .queries = queries,
                  .batch = 2,
                  .heads = 2,
                  .count = 37,
                  .seed = 41});
    expect_gradients_match_twin(c);
  }
  Case packed(
      {.op = Op::rfa, .kind = MapKind::positive2, .length = 70, .queries = 50, .heads = 2, .groups = 2, .count = 37, .seed = 42});
  packed.set_cu_seqlens({0, 10, 10, 33, 50}, {0, 40, 60, 60, 70});
  expect_gradients_match_twin(packed);
}

}  // namespace
}  // namespace raffia::internal::linear_tests
