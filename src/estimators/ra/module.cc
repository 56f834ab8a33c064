// Randomized Attention: unbiased draws, at the cost of exact attention.
#include "estimators/ra/options.h"
#include "estimators/registry.h"
#include "estimators/shared/cached.h"
#include "estimators/shared/calls.h"

namespace raffia::internal {
namespace {

class RaModule : public EstimatorModule {
 public:
  RaModule()
      : EstimatorModule(EstimatorKind::ra, "ra", "Randomized Attention",
                        {&keys::kSamples, &keys::kSeed, &keys::kLayer, &keys::kDraw}) {}

  EstimatorTraits traits(const Estimator&) const override { return {.is_random = true, .has_samples = true}; }
  EstimatorSizes sizes(const Estimator& estimator, bool causal) const override {
    return {.samples = ra_options(estimator, causal).draws};
  }

  Report attend(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options,
                std::span<float>) const override {
    ra_attention(inputs.q, inputs.k, inputs.v, out, scaled(ra_options(estimator, options.causal), options));
    return {};
  }

  int64_t record_size(const Estimator&, const AttendInputs&, const AttendOptions&) const override { return 0; }

  void backward(const Estimator& estimator, const AttendInputs& inputs, View4, std::span<const float>, View4 dout,
                const AttendGradients& gradients, const AttendOptions& options) const override {
    ra_attention_backward(inputs.q, inputs.k, inputs.v, dout, {gradients.q, gradients.k, gradients.v},
                          scaled(ra_options(estimator, options.causal), options));
  }

  Memory empty_memory(const Estimator&, const MemorySizes& sizes) const override { return empty_cache(sizes); }
  std::optional<int64_t> memory_bytes(const Estimator&, const MemorySizes& sizes, int64_t tokens) const override {
    return cache_bytes(sizes, tokens);
  }

  Report extend(const Estimator& estimator, const AttendInputs& inputs, Memory& memory, MutView4 out,
                const AttendOptions& options) const override {
    extend_cached(cached(estimator), inputs, key_cache_in(estimator, memory), out, options);
    return {};
  }

  Report step(const Estimator& estimator, const AttendInputs& inputs, std::span<Memory* const> sessions, MutView4 out,
              const AttendOptions& options) const override {
    step_cached(cached(estimator), inputs, parts_of(estimator, sessions, key_cache_in), out, options);
    return {};
  }

  TokenWork work(const Estimator& estimator, bool causal, int64_t length) const override {
    const double visible = static_cast<double>(length) * (causal ? 0.5 : 1.0);
    const double met = visible * static_cast<double>(ra_options(estimator, causal).draws);
    return {.keys = met, .drawn = met};
  }

 private:
  // The draws of a query depend on its position in the sequence.
  static CachedAttention cached(const Estimator& estimator) {
    return {.attend = [&estimator](View4 q, View4 k, View4 v, MutView4 out, const AttendOptions& options) {
      RaOptions op = scaled(ra_options(estimator, true), options);
      op.first_query = k.extent(1) - q.extent(1);
      ra_attention(q, k, v, out, op);
    }};
  }
};

}  // namespace

RaOptions ra_options(const Estimator& estimator, bool causal) {
  return {.draws = estimator.samples.value_or(1),
          .causal = causal,
          .seed = estimator.seed,
          .layer = estimator.layer,
          .draw = estimator.draw};
}

const EstimatorModule& ra_module() {
  static const RaModule module;
  return module;
}

}  // namespace raffia::internal
