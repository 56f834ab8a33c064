#include <gtest/gtest.h>

#include "reference/sampled_case.h"
#include "reference/terms.h"

namespace raffia::reference {

using namespace internal::twins;
namespace {

constexpr double kRounding = 1e-13;  // of some 30 terms with logits below 10

// Each head has one gate for all tokens, so that parts of a sequence have the same.
TwinOp hybrid(const Map& map, int64_t window, const Array3& gates, const std::vector<double>& log_scale) {
  return [&map, &gates, &log_scale, window](View4 q, View4 k, View4 v, const Layout& layout, MutView4 out, MutView3) {
    const View3 gate(gates.values.data(), {q.extent(0), q.extent(1), k.extent(2)}, {0, 0, 1});
    reference::hybrid_attention(
        {.q = q, .k = k, .v = v, .gate_logits = gate, .log_scale = View1(log_scale.data(), {q.extent(2)})}, map, out,
        {.window = window, .layout = layout});
  };
}

struct HybridCase : SampledCase {
  explicit HybridCase(int64_t length = 26) : SampledCase({.queries = length, .keys = length}) {
    Numbers numbers(5);
    gates = Array3({1, length, 2}, numbers, -1, 4);
    q_far = Array4({1, length, 4, 4}, numbers);
    k_far = Array4({1, length, 2, 4}, numbers);
  }
  HybridInputs inputs() const {
    return {.q = q.view(), .k = k.view(), .v = v.view(), .gate_logits = gates.view(), .log_scale = View1(log_scale.data(), {4})};
  }
  Array3 gates;
  Array4 q_far, k_far;
  std::vector<double> log_scale{-2, -1, 0.5, 1};
};

// Method, section 8, from scratch: the state as the sum over pairs that it stands for.
TEST(HybridTwin, EqualsItsFormula) {
  for (int64_t window : {1, 2, 3, 5, 8, 13, 26}) {
    for (MapKind kind : {MapKind::positive, MapKind::trig}) {
      HybridCase in;
      const Map map = any_map(kind, 4, 5, 2);
      HybridInputs inputs = in.inputs();
      inputs.q_far = in.q_far.view();
      inputs.k_far = in.k_far.view();
      const Report report = reference::hybrid_attention(inputs, map, in.out.mut(), {.window = window});
      int64_t dropped = 0;
      for (int64_t t = 0; t < 26; ++t) {
        for (int64_t h = 0; h < 4; ++h) {
          const int64_t g = h / 2, seen = std::max<int64_t>(0, (t / window - 1) * window);
          double numerator = 0, denominator = 0, y = 0, y_last = 0;
          for (int64_t j = seen; j <= t; ++j) {
            const double weight = std::exp(inner(row(in.q.view(), 0, t, h), row(in.k.view(), 0, j, g)) / 2);
            numerator += weight * in.v.view()(0, j, g, 0);
            denominator += weight;
          }
          for (int64_t j = 0; j < seen; ++j) {
            double weight = 1 / (1 + std::exp(in.gates.view()(0, j, g)));
            for (int64_t s = j + 1; s <= t; ++s) weight /= 1 + std::exp(-in.gates.view()(0, s, g));
            weight *= inner(phi(map, g, row(in.q_far.view(), 0, t, h)), phi(map, g, row(in.k_far.view(), 0, j, g)));
            y += weight * in.v.view()(0, j, g, 0);
            y_last += weight;
          }
          dropped += seen > 0 && y_last <= 0 ? 1 : 0;
          if (y_last > 0) {
            numerator += std::exp(in.log_scale[static_cast<size_t>(h)]) * y;
            denominator += std::exp(in.log_scale[static_cast<size_t>(h)]) * y_last;
          }
          EXPECT_NEAR(in.out.view()(0, t, h, 0), numerator / denominator, kRounding) << window << " " << t << " " << h;
        }
      }
      EXPECT_EQ(report.rows, 26 * 4);
      EXPECT_EQ(report.clamped, dropped);
    }
  }
}

TEST(HybridTwin, DropsWhatHasNoPositiveDenominator) {
  HybridCase in;
  const Map map(FeatureMap::identity(4, 2));
  Array4 negative = in.k;
  for (double& value : negative.values) value = -1;
  Array4 ones = in.q;
  for (double& value : ones.values) value = 1;
  HybridInputs inputs = in.inputs();
  inputs.q_far = ones.view();
  inputs.k_far = negative.view();
  const Report report = reference::hybrid_attention(inputs, map, in.out.mut(), {.window = 4});
  EXPECT_EQ(report.clamped, (26 - 8) * 4);
  const std::vector<double> window_alone = in.out.values;
  in.log_scale.assign(4, -1e4);
  inputs.q_far = {};
  inputs.k_far = {};
  reference::hybrid_attention(inputs, any_map(MapKind::positive, 4, 5, 2), in.out.mut(), {.window = 4});
  EXPECT_EQ(in.out.values, window_alone);
}

TEST(HybridTwin, ScaleOfNothingLeavesTheExactWindow) {
  HybridCase in;
  in.log_scale.assign(4, -1e4);
  reference::hybrid_attention(in.inputs(), any_map(MapKind::positive, 4, 5, 2), in.out.mut(), {.window = 4});
  for (int64_t t = 0; t < 26; ++t) {
    const int64_t seen = std::max<int64_t>(0, (t / 4 - 1) * 4), count = t + 1 - seen;
    Array4 exact({1, 1, 4, 3});
    reference::softmax_attention(in.q.view().slice(1, t, 1), in.k.view().slice(1, seen, count), in.v.view().slice(1, seen, count),
                                 exact.mut());
    EXPECT_LT(greatest_difference(exact.values, tokens_of(in.out, 0, t, 1)), kRounding);
  }
}

TEST(HybridTwin, TwoBlocksAreExact) {
  HybridCase in, exact;
  exact.softmax({.causal = true});
  reference::hybrid_attention(in.inputs(), any_map(MapKind::positive, 4, 5, 2), in.out.mut(), {.window = 13});
  EXPECT_LT(greatest_difference(in.out.values, exact.out.values), kRounding);
}

TEST(HybridTwin, HullCausalityAndLayouts) {
  const Map map = any_map(MapKind::positive, 4, 5, 2);
  const HybridCase in;
  for (int64_t window : {2, 4}) {
    const TwinOp op = hybrid(map, window, in.gates, in.log_scale);
    expect_hull(op, {.queries = 22, .keys = 22});
    expect_causal(op);
    expect_layouts(op);
  }
}

// Absent tokens keep the memory as it is (g = 1, u = 0), whatever their gates hold.
TEST(HybridTwin, GatesOfAbsentTokensAreNotRead) {
  HybridCase in;
  const Map map = any_map(MapKind::positive, 4, 5, 2);
  std::vector<uint8_t> valid(26, 1);
  for (size_t t : {1U, 6U, 13U, 14U, 15U, 16U, 20U}) valid[t] = 0;
  const HybridOptions options{.window = 4, .layout = {.valid = View2(valid.data(), {1, 26})}};
  const Report report = reference::hybrid_attention(in.inputs(), map, in.out.mut(), options);
  EXPECT_EQ(report.rows, 19 * 4);
  const std::vector<double> before = in.out.values;
  for (int64_t t = 0; t < 26; ++t) {
    if (valid[static_cast<size_t>(t)] != 0) continue;
    for (int64_t g = 0; g < 2; ++g) in.gates.mut().set(kNotANumber, 0, t, g);
    for (double value : tokens_of(in.out, 0, t, 1)) EXPECT_EQ(value, 0);
  }
  reference::hybrid_attention(in.inputs(), map, in.out.mut(), options);
  EXPECT_EQ(in.out.values, before);
}

}  // namespace
}  // namespace raffia::reference
