// No op touches memory past its arrays, on any ISA: they end at a page that may not be touched. Sanitizers cannot tell, since
// they see no masked loads and of the wider vectors only AVX2. Results have the bits of those in ordinary arrays.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/dispatch.h"
#include "core/weight_matrix.h"
#include "estimators/shared/products.h"
#include "kernels/layer_ops.h"
#include "raffia/estimator.h"
#include "raffia/isa.h"
#include "support/arrays.h"
#include "support/guarded.h"

namespace raffia::internal {
namespace {

constexpr int64_t kTokens = 37, kHeads = 2;
constexpr int64_t kDims[] = {5, 8, 19, 33, 64};  // parts of vectors, whole ones, both

// Hands out arrays that end at a guard page, or ordinary ones with room behind them, and collects what is in the outputs.
class Arrays {
 public:
  explicit Arrays(bool guarded) : guarded_(guarded) {}

  float* input(size_t count, uint64_t seed) {
    float* const data = room_for(count);
    const std::vector<float> drawn = normals(count, seed);
    std::copy(drawn.begin(), drawn.end(), data);
    return data;
  }
  float* output(size_t count) { return outputs_.emplace_back(room_for(count), count).data(); }
  // A copy of these bytes.
  const void* stored(std::span<const std::byte> bytes) {
    if (bytes.empty()) return nullptr;
    return std::memcpy(bytes_for(bytes.size()), bytes.data(), bytes.size());
  }
  std::vector<float> outputs() const {
    std::vector<float> all;
    for (const std::span<float> one : outputs_) all.insert(all.end(), one.begin(), one.end());
    return all;
  }

 private:
  std::byte* bytes_for(size_t count) {
    constexpr size_t kBehind = 256;
    if (guarded_) return guards_.emplace_back(std::make_unique<GuardedBytes>(count))->data();
    return plain_.emplace_back(std::make_unique<std::vector<std::byte>>(count + kBehind))->data();
  }
  float* room_for(size_t count) { return reinterpret_cast<float*>(bytes_for(count * sizeof(float))); }

  bool guarded_;
  std::vector<std::unique_ptr<GuardedBytes>> guards_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> plain_;
  std::vector<std::span<float>> outputs_;
};

void expect_within_arrays(const std::string& what, const std::function<void(Arrays&)>& op) {
  for_each_isa([&] {
    Arrays guarded(true), plain(false);
    op(guarded);
    op(plain);
    const std::vector<float> outputs = guarded.outputs();
    EXPECT_FALSE(outputs.empty());
    EXPECT_TRUE(same_bits(outputs, plain.outputs())) << what << ", " << name_of(active_isa());
  });
}

class AnyEstimatorAtAGuardPage : public testing::TestWithParam<const char*> {};

AttendInputs inputs_of(Arrays& arrays, const FeatureMap* map, int64_t tokens, int64_t dim, uint64_t seed) {
  const Extents<4> shape{1, tokens, kHeads, dim};
  const auto count = static_cast<size_t>(tokens * kHeads * dim);
  return {.q = {arrays.input(count, seed), shape},
          .k = {arrays.input(count, seed + 1), shape},
          .v = {arrays.input(count, seed + 2), shape},
          .gate_logits = {arrays.input(static_cast<size_t>(tokens * kHeads), seed + 3), {1, tokens, kHeads}},
          .map = map};
}

TEST_P(AnyEstimatorAtAGuardPage, ForwardBackwardAndSteps) {
  const Estimator estimator = parse_estimator(GetParam());
  const EstimatorTraits traits = traits_of(estimator);
  for (const int64_t dim : kDims) {
    std::optional<FeatureMap> map;
    if (traits.has_map) map = estimator.make_map(dim, kHeads);
    const FeatureMap* const used = map ? &*map : nullptr;
    const Extents<4> shape{1, kTokens, kHeads, dim}, one{1, 1, kHeads, dim};
    const auto count = static_cast<size_t>(kTokens * kHeads * dim);
    for (const bool causal : {true, false}) {
      if (causal ? !traits.causal : !traits.bidirectional) continue;
      expect_within_arrays(GetParam() + std::string(causal ? ", causal, " : ", ") + std::to_string(dim), [&](Arrays& arrays) {
        const AttendOptions options{.causal = causal, .run = {.threads = 1}};
        const AttendInputs inputs = inputs_of(arrays, used, kTokens, dim, 1);
        float* const out = arrays.output(count);
        std::vector<float> record(static_cast<size_t>(attend_record_size(estimator, inputs, options)));
        attend(estimator, inputs, {out, shape}, options, record);
        AttendGradients gradients{
            .q = {arrays.output(count), shape}, .k = {arrays.output(count), shape}, .v = {arrays.output(count), shape}};
        if (traits.is_gated) gradients.gate_logits = {arrays.output(static_cast<size_t>(kTokens * kHeads)), {1, kTokens, kHeads}};
        attend_backward(estimator, inputs, {out, shape}, record, {arrays.input(count, 9), shape}, gradients, options);
        if (!causal || !traits.has_memory) return;
        Memory memory =
            empty_memory(estimator, {.query_heads = kHeads, .heads = kHeads, .dim = dim, .value_dim = dim, .map = used});
        Memory* const sessions[] = {&memory};
        for (uint64_t step = 0; step < 3; ++step) {
          const AttendInputs token = inputs_of(arrays, used, 1, dim, 20 + 4 * step);
          attend_step(estimator, token, sessions, {arrays.output(static_cast<size_t>(kHeads * dim)), one}, options);
        }
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AnyEstimatorAtAGuardPage,
                         testing::Values("softmax", "window:window=8", "rfa:samples=9", "rfa:map=elu", "rfa_gate:samples=9",
                                         "hybrid:samples=9,window=8", "ra:samples=2", "lara:samples=16", "eva:samples=4,window=8",
                                         "mean"));

TEST(LayerOpsAtAGuardPage, TouchNothingPastTheirRows) {
  for (const int64_t columns : {1, 3, 5, 8, 15, 16, 19, 33, 64}) {
    constexpr int64_t kRows = 3;
    const auto count = static_cast<size_t>(kRows * columns), width = static_cast<size_t>(columns);
    expect_within_arrays(std::to_string(columns) + " columns", [&](Arrays& arrays) {
      const Extents<2> shape{kRows, columns};
      const auto in = [&](uint64_t seed) { return View2(arrays.input(count, seed), shape); };
      const auto out = [&] { return MutView2(arrays.output(count), shape); };
      const auto weights = [&](uint64_t seed) { return std::span<const float>(arrays.input(width, seed), width); };
      layer_norm(in(1), weights(2), weights(3), 1e-5f, out());
      rms_norm(in(1), weights(2), 1e-5f, out());
      gelu(in(1), out());
      swiglu(in(1), in(2), out());
      float* const sum = arrays.output(count);
      std::fill_n(sum, count, 1.0f);
      add_rows(in(1), MutView2(sum, shape));
      head_norm(View3(arrays.input(count, 4), {1, kRows, columns}), std::span<const float>(arrays.input(count, 5), count), 1e-5f,
                MutView3(arrays.output(count), {1, kRows, columns}));
      if (columns % 2 == 0) {
        rotate(View3(arrays.input(count, 6), {1, kRows, columns}), View2(arrays.input(width, 7), {1, columns}),
               MutView3(arrays.output(count), {1, kRows, columns}));
      }
      float* const history = arrays.output(3 * width);
      std::fill_n(history, 3 * width, 0.5f);
      short_convolution(in(1), View2(arrays.input(4 * width, 8), {4, columns}), MutView2(history, {3, columns}), out());
    });
  }
}

void expect_products_within_arrays(WeightType type, int64_t rows, int64_t columns) {
  const std::vector<float> drawn = normals(static_cast<size_t>(rows * columns), 1);
  const StoredWeights stored = store_weights("weights", View2(drawn.data(), {rows, columns}), type);
  for (const int64_t tokens : {1, 2, 3, 4, 7, 24, 33}) {
    for (const bool any_company : {true, false}) {
      const std::string what = std::string(name_of(type)) + ", " + std::to_string(tokens) + " tokens, " + std::to_string(rows) +
                               " x " + std::to_string(columns);
      expect_within_arrays(what, [&](Arrays& arrays) {
        WeightMatrix weights = stored.matrix;
        weights.data = arrays.stored(stored.elements);
        weights.scales = arrays.stored(stored.scales);
        const LinearTask task{.weights = weights,
                              .bias = arrays.input(static_cast<size_t>(rows), 2),
                              .x = {arrays.input(static_cast<size_t>(tokens * columns), 3), {tokens, columns}},
                              .y = {arrays.output(static_cast<size_t>(tokens * rows)), {tokens, rows}},
                              .any_company = any_company};
        linear({&task, 1}, {.threads = 1});
      });
    }
  }
}

TEST(ProductsAtAGuardPage, TouchNothingPastWeightsAndTokens) {
  struct Restore {
    ~Restore() { allow_vnni(true); }
  } restore;
  for (const bool vnni : {true, false}) {
    allow_vnni(vnni);
    for (const auto& [name, type] : kWeightTypes) {
      for (const int64_t columns : {1, 7, 16, 31, 33, 127, 300, 1025}) {
        for (const int64_t rows : {1, 5, 16, 37}) expect_products_within_arrays(type, rows, columns);
      }
    }
  }
}

}  // namespace
}  // namespace raffia::internal
