// An exact window and a gated state of everything older, normalised together.
#include "estimators/hybrid/options.h"
#include "estimators/registry.h"
#include "estimators/shared/calls.h"

namespace raffia::internal {
namespace {

HybridInputs hybrid_inputs(const AttendInputs& inputs) {
  return {.q = inputs.q,
          .k = inputs.k,
          .v = inputs.v,
          .gate_logits = inputs.gate_logits,
          .log_scale = inputs.log_scale,
          .q_far = inputs.q_far,
          .k_far = inputs.k_far};
}

class HybridModule : public EstimatorModule {
 public:
  HybridModule()
      : EstimatorModule(
            EstimatorKind::hybrid, "hybrid", "exact window and RFA-Gate of everything older",
            {&keys::kSamples, &keys::kMap, &keys::kWindow, &keys::kDraws, &keys::kSeed, &keys::kLayer, &keys::kDraw}) {}

  EstimatorTraits traits(const Estimator& estimator) const override {
    const bool is_random = is_random_map(estimator.map);
    return {.bidirectional = false,
            .is_random = is_random,
            .has_samples = is_random,
            .has_map = true,
            .is_gated = true,
            .blends = true,
            .constant_memory = true,
            .fades = true,
            .carried_by_default = true,
            .span_min = 16,
            .span_max = 512};
  }

  Estimator bidirectional_form(const Estimator& own) const override {
    return {.kind = EstimatorKind::rfa, .samples = own.samples, .map = own.map, .draws = own.draws, .seed = own.seed};
  }
  EstimatorSizes sizes(const Estimator& estimator, bool) const override { return {.window = estimator.window}; }

  Report attend(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options,
                std::span<float> record) const override {
    return hybrid_attention(hybrid_inputs(inputs), *inputs.map, out, scaled(hybrid_options(estimator), options), record);
  }

  int64_t record_size(const Estimator& estimator, const AttendInputs& inputs, const AttendOptions& options) const override {
    return hybrid_record_size(hybrid_inputs(inputs), *inputs.map, scaled(hybrid_options(estimator), options));
  }

  void backward(const Estimator& estimator, const AttendInputs& inputs, View4 out, std::span<const float> record, View4 dout,
                const AttendGradients& gradients, const AttendOptions& options) const override {
    hybrid_attention_backward(hybrid_inputs(inputs), *inputs.map, out, record, dout,
                              {.q = gradients.q,
                               .k = gradients.k,
                               .v = gradients.v,
                               .gate_logits = gradients.gate_logits,
                               .log_scale = gradients.log_scale,
                               .q_far = gradients.q_far,
                               .k_far = gradients.k_far,
                               .map = gradients.map},
                              scaled(hybrid_options(estimator), options));
  }

  Memory empty_memory(const Estimator& estimator, const MemorySizes& sizes) const override {
    return WindowState(shape_of(estimator, sizes));
  }
  std::optional<int64_t> memory_bytes(const Estimator& estimator, const MemorySizes& sizes, int64_t) const override {
    return window_state_bytes(shape_of(estimator, sizes));
  }

  Report extend(const Estimator& estimator, const AttendInputs& inputs, Memory& memory, MutView4 out,
                const AttendOptions& options) const override {
    return hybrid_attention(hybrid_inputs(inputs), *inputs.map, window_state_in(estimator, memory), out,
                            scaled(hybrid_options(estimator), options));
  }

  Report step(const Estimator& estimator, const AttendInputs& inputs, std::span<Memory* const> sessions, MutView4 out,
              const AttendOptions& options) const override {
    return hybrid_step(hybrid_inputs(inputs), *inputs.map, parts_of(estimator, sessions, window_state_in), out,
                       scaled(hybrid_options(estimator), options));
  }

  // Half of the own block and the one before. The folded part is counted with the map.
  TokenWork work(const Estimator& estimator, bool, int64_t) const override {
    return {.keys = 1.5 * static_cast<double>(estimator.window)};
  }

 private:
  static WindowStateShape shape_of(const Estimator& estimator, const MemorySizes& sizes) {
    return hybrid_state_shape(sizes.batch, sizes.heads, sizes.dim, sizes.value_dim, *sizes.map, sizes.has_far,
                              hybrid_options(estimator));
  }
};

}  // namespace

HybridOptions hybrid_options(const Estimator& estimator) { return {.window = estimator.window}; }

const EstimatorModule& hybrid_module() {
  static const HybridModule module;
  return module;
}

}  // namespace raffia::internal
