// Where inputs leave the ordinary: NaN among valid tokens, large head dims, reversed views, calls that are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "raffia/attention.h"
#include "raffia/reference.h"
#include "support/arrays.h"

namespace raffia::internal {
namespace {

constexpr int64_t kLength = 40, kDim = 12, kValues = 20, kAt = 21;  // the NaN sits in the middle of the second chunk

const MapKind kMaps[] = {MapKind::identity,  MapKind::trig, MapKind::arccos, MapKind::positive,
                         MapKind::positive2, MapKind::elu,  MapKind::relu};

FeatureMap map_of(MapKind kind, int64_t dim) {
  static const std::vector<float> weight = normals(9 * kDim, 5), bias = normals(9, 6, 1.0F);
  if (kind == MapKind::identity) return FeatureMap::identity(dim, 1);
  if (kind == MapKind::elu) return FeatureMap::elu(dim, 1);
  if (kind == MapKind::relu) return FeatureMap::relu({weight.data(), {1, 9, kDim}}, {bias.data(), {1, 9}});
  return FeatureMap::random(kind, {.dim = dim, .count = 9, .seed = 3});
}

struct Inputs {
  std::vector<float> q = normals(kLength * kDim, 1), k = normals(kLength * kDim, 2), v = normals(kLength * kValues, 3);
  std::vector<float> gate = normals(kLength, 4), out = std::vector<float>(kLength * kValues);

  View4 q_view() const { return {q.data(), {1, kLength, 1, kDim}}; }
  View4 k_view() const { return {k.data(), {1, kLength, 1, kDim}}; }
  View4 v_view() const { return {v.data(), {1, kLength, 1, kValues}}; }
  View3 gate_view() const { return {gate.data(), {1, kLength, 1}}; }
  MutView4 out_view() { return {out.data(), {1, kLength, 1, kValues}}; }
  bool is_nan(int64_t t) const { return std::isnan(out[static_cast<size_t>(t * kValues)]); }
};

// Calls run(inputs) with a NaN in one array at a time; `first` and `last` say which outputs must show it.
void expect_nan_shows(Inputs& inputs, std::vector<float>& array, int64_t width, int64_t last, const auto& run,
                      const std::string& what) {
  const float kept = std::exchange(array[static_cast<size_t>(kAt * width)], kNan);
  run();
  for (int64_t t = kAt; t <= last; ++t) EXPECT_TRUE(inputs.is_nan(t)) << what << " token " << t;
  array[static_cast<size_t>(kAt * width)] = kept;
}

TEST(Extremes, NanInValidTokensIsNotHidden) {
  for_each_isa([] {
    for (const MapKind kind : kMaps) {
      const FeatureMap map = map_of(kind, kDim);
      const std::string what(name_of(kind));
      Inputs in;
      const auto gated = [&] {
        State state(map, {.batch = 1, .value_dim = kValues});
        gated_attention(in.q_view(), in.k_view(), in.v_view(), in.gate_view(), map, state, in.out_view());
      };
      const auto causal = [&] {
        State state(map, {.batch = 1, .value_dim = kValues});
        causal_attention(in.q_view(), in.k_view(), in.v_view(), map, state, in.out_view());
      };
      const auto full = [&] { rfa_attention(in.q_view(), in.k_view(), in.v_view(), map, in.out_view()); };
      const auto stepped = [&] {
        State state(map, {.batch = 1, .value_dim = kValues});
        for (int64_t t = 0; t < kLength; ++t) {
          gated_step({in.q.data() + t * kDim, {1, 1, kDim}}, {in.k.data() + t * kDim, {1, 1, kDim}},
                     {in.v.data() + t * kValues, {1, 1, kValues}}, {in.gate.data() + t, {1, 1}}, map, state,
                     {in.out.data() + t * kValues, {1, 1, kValues}});
        }
      };
      expect_nan_shows(in, in.q, kDim, kAt, gated, what + " gated q");
      expect_nan_shows(in, in.q, kDim, kAt, causal, what + " causal q");
      expect_nan_shows(in, in.q, kDim, kAt, full, what + " full q");
      expect_nan_shows(in, in.q, kDim, kAt, stepped, what + " stepped q");
      expect_nan_shows(in, in.k, kDim, kLength - 1, gated, what + " gated k");
      expect_nan_shows(in, in.k, kDim, kLength - 1, causal, what + " causal k");
      expect_nan_shows(in, in.k, kDim, kLength - 1, full, what + " full k");
      expect_nan_shows(in, in.k, kDim, kLength - 1, stepped, what + " stepped k");
      expect_nan_shows(in, in.gate, 1, kLength - 1, gated, what + " gated gate");
      expect_nan_shows(in, in.gate, 1, kLength - 1, stepped, what + " stepped gate");
    }
    Inputs in;
    for (const bool causal : {false, true}) {
      const auto softmax = [&] { softmax_attention(in.q_view(), in.k_view(), in.v_view(), in.out_view(), {.causal = causal}); };
      expect_nan_shows(in, in.q, kDim, kAt, softmax, "softmax q");
      expect_nan_shows(in, in.k, kDim, kLength - 1, softmax, "softmax k");
    }
  });
}

// Exponents of unit-variance inputs are within sqrt(d) + 6 d^1/4 < 60 here. Their rounding error, sqrt(d) terms of 2^-24 times
// their size, is below 60 * 23 * 2^-24 = 8.3e-5; numerator and denominator each carry it once.
TEST(Extremes, PositiveMapsHoldLargeHeadDims) {
  for (const MapKind kind : {MapKind::positive, MapKind::positive2}) {
    for (const int64_t dim : {152, 192, 256, 512}) {
      const FeatureMap map = FeatureMap::random(kind, {.dim = dim, .count = 64, .seed = 3});
      const std::vector<float> q = normals(static_cast<size_t>(kLength * dim), 1),
                               k = normals(static_cast<size_t>(kLength * dim), 2);
      const std::vector<float> v = normals(kLength * kValues, 3);
      const Extents<4> shape{1, kLength, 1, dim}, value_shape{1, kLength, 1, kValues};
      std::vector<double> expected(v.size());
      reference::rfa_attention({q.data(), shape}, {k.data(), shape}, {v.data(), value_shape}, reference::Map(map),
                               {expected.data(), value_shape});
      const double largest = std::abs(*std::ranges::max_element(v, {}, [](float x) { return std::abs(x); }));
      for_each_isa([&] {
        std::vector<float> out(v.size());
        const Report report =
            rfa_attention({q.data(), shape}, {k.data(), shape}, {v.data(), value_shape}, map, {out.data(), value_shape});
        EXPECT_EQ(report.clamped, 0);
        for (size_t i = 0; i < out.size(); ++i)
          ASSERT_NEAR(out[i], expected[i], 2 * 8.3e-5 * largest) << name_of(kind) << " " << dim;
      });
    }
  }
}

TEST(Extremes, ViewsMayRunBackwards) {
  const FeatureMap map = map_of(MapKind::trig, kDim);
  Inputs in;
  std::vector<float> values(kLength * 32), forward(values.size()), backward(values.size());
  values = normals(values.size(), 8);
  const Extents<4> shape{1, kLength, 1, 32};
  const auto run = [&](MutView4 out) {
    State state(map, {.batch = 1, .value_dim = 32});
    gated_attention(in.q_view(), in.k_view(), {values.data(), shape}, in.gate_view(), map, state, out);
  };
  run({forward.data(), shape});
  run({backward.data() + (kLength - 1) * 32, shape, {0, -32, 32, 1}});
  for (int64_t t = 0; t < kLength; ++t) {
    EXPECT_TRUE(std::equal(forward.begin() + t * 32, forward.begin() + (t + 1) * 32, backward.begin() + (kLength - 1 - t) * 32))
        << t;
  }
}

TEST(Extremes, RecordOfPackedCrossAttentionOfEqualTotals) {
  const FeatureMap map = map_of(MapKind::trig, kDim);
  Inputs in;
  const std::vector<int64_t> of_queries{0, 10, kLength}, of_keys{0, 30, kLength};
  const AttentionOptions options{.layout = {.cu_seqlens = of_queries, .cu_seqlens_k = of_keys}};
  std::vector<float> record(static_cast<size_t>(record_size(in.q_view(), in.k_view(), in.v_view(), map, options)));
  EXPECT_EQ(rfa_attention(in.q_view(), in.k_view(), in.v_view(), map, in.out_view(), options, record).rows, kLength);
}

TEST(Extremes, RefusedCallsWriteNothing) {
  const FeatureMap map = map_of(MapKind::trig, kDim);
  Inputs in;
  std::ranges::fill(in.out, 7.0F);
  State wrong(map, {.batch = 1, .value_dim = kValues + 1});
  const std::vector<int64_t> lengths{kLength - 5};
  EXPECT_THROW(gated_attention(in.q_view(), in.k_view(), in.v_view(), in.gate_view(), map, wrong, in.out_view(),
                               {.layout = {.lengths = lengths}}),
               InvalidArgument);
  EXPECT_TRUE(std::ranges::all_of(in.out, [](float x) { return x == 7.0F; }));
}

}  // namespace
}  // namespace raffia::internal
