// Random Feature Attention, plain (rfa) and gated (rfa_gate).
#include <fmt/format.h>

#include "core/check.h"
#include "core/state_size.h"
#include "estimators/registry.h"
#include "estimators/rfa/options.h"
#include "estimators/shared/calls.h"

namespace raffia::internal {
namespace {

// The gradients of a linear op; there are none for the final state.
AttentionGradients linear_gradients(const AttendGradients& wanted) {
  return {.q = wanted.q, .k = wanted.k, .v = wanted.v, .gate_logits = wanted.gate_logits, .map = wanted.map};
}

class LinearModule : public EstimatorModule {
 public:
  using EstimatorModule::EstimatorModule;

  int64_t record_size(const Estimator&, const AttendInputs& inputs, const AttendOptions& options) const override {
    return raffia::record_size(inputs.q, inputs.k, inputs.v, *inputs.map, linear_options(options));
  }
  Memory empty_memory(const Estimator&, const MemorySizes& sizes) const override { return State(shape_of(sizes)); }
  std::optional<int64_t> memory_bytes(const Estimator&, const MemorySizes& sizes, int64_t) const override {
    return bytes_of(shape_of(sizes));
  }
  // The state is the memory; its cost is counted with that of the map.
  TokenWork work(const Estimator&, bool, int64_t) const override { return {}; }

 protected:
  static State empty_state(const AttendInputs& inputs, const AttendOptions& options) {
    return State(*inputs.map, {.batch = sequences_of(inputs, options.layout), .value_dim = inputs.v.extent(3)});
  }

 private:
  static StateShape shape_of(const MemorySizes& sizes) {
    return {.batch = sizes.batch, .heads = sizes.map->heads(), .features = sizes.map->features(), .value_dim = sizes.value_dim};
  }
};

class RfaModule : public LinearModule {
 public:
  RfaModule()
      : LinearModule(EstimatorKind::rfa, "rfa", "Random Feature Attention",
                     {&keys::kSamples, &keys::kMap, &keys::kLog, &keys::kDraws, &keys::kSeed, &keys::kLayer, &keys::kDraw}) {}

  EstimatorTraits traits(const Estimator& estimator) const override {
    const bool is_random = estimator.log || is_random_map(estimator.map);
    return {.causal = !estimator.log,
            .cross = true,
            .is_random = is_random,
            .has_samples = is_random,
            .has_map = !estimator.log,
            .constant_memory = true,
            .has_segments = !estimator.log};
  }

  void check(const Estimator& estimator) const override {
    require(!estimator.log || estimator.map == MapKind::trig || estimator.map == MapKind::positive,
            "parse_estimator: map of rfa is \"{}\" with log=true, expected positive (log space has no other features)",
            name_of(estimator.map));
  }

  Report attend(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options,
                std::span<float> record) const override {
    if (estimator.log) {
      lara_attention(inputs.q, inputs.k, inputs.v, out, scaled(log_rfa_options(estimator), options), record);
      return {};
    }
    const AttentionOptions op = linear_options(options);
    if (!options.causal) return rfa_attention(inputs.q, inputs.k, inputs.v, *inputs.map, out, op, record);
    State state = empty_state(inputs, options);
    return causal_attention(inputs.q, inputs.k, inputs.v, *inputs.map, state, out, op, record);
  }

  int64_t record_size(const Estimator& estimator, const AttendInputs& inputs, const AttendOptions& options) const override {
    if (!estimator.log) return LinearModule::record_size(estimator, inputs, options);
    return lara_record_size(inputs.q, inputs.k, inputs.v, scaled(log_rfa_options(estimator), options));
  }

  void backward(const Estimator& estimator, const AttendInputs& in, View4 out, std::span<const float> record, View4 dout,
                const AttendGradients& gradients, const AttendOptions& options) const override {
    if (estimator.log) {
      return lara_attention_backward(in.q, in.k, in.v, out, record, dout, {gradients.q, gradients.k, gradients.v},
                                     scaled(log_rfa_options(estimator), options));
    }
    const auto run = options.causal ? causal_attention_backward : rfa_attention_backward;
    run(in.q, in.k, in.v, *in.map, out, record, dout, linear_gradients(gradients), linear_options(options));
  }

  Report extend(const Estimator& estimator, const AttendInputs& inputs, Memory& memory, MutView4 out,
                const AttendOptions& options) const override {
    return causal_attention(inputs.q, inputs.k, inputs.v, *inputs.map, state_in(estimator, memory), out, linear_options(options));
  }

  Report step(const Estimator& estimator, const AttendInputs& inputs, std::span<Memory* const> sessions, MutView4 out,
              const AttendOptions& options) const override {
    return causal_step(without_tokens(inputs.q), without_tokens(inputs.k), without_tokens(inputs.v), *inputs.map,
                       parts_of(estimator, sessions, state_in), without_tokens(out), linear_options(options));
  }

  // In log space, queries and keys meet the samples.
  TokenWork work(const Estimator& estimator, bool, int64_t) const override {
    return {.keys = estimator.log ? static_cast<double>(2 * log_rfa_options(estimator).samples) : 0};
  }
};

class RfaGateModule : public LinearModule {
 public:
  RfaGateModule()
      : LinearModule(EstimatorKind::rfa_gate, "rfa_gate", "RFA with a learned decay",
                     {&keys::kSamples, &keys::kMap, &keys::kDraws, &keys::kSeed, &keys::kLayer, &keys::kDraw}) {}

  EstimatorTraits traits(const Estimator& estimator) const override {
    const bool is_random = is_random_map(estimator.map);
    return {.bidirectional = false,
            .is_random = is_random,
            .has_samples = is_random,
            .has_map = true,
            .is_gated = true,
            .constant_memory = true,
            .fades = true,
            .carried_by_default = true,
            .wants_positions = false,
            .has_segments = true,
            .splits_sequences = true,
            .span_min = 2,
            .span_max = 256};
  }

  Estimator bidirectional_form(const Estimator& own) const override {
    return {.kind = EstimatorKind::rfa, .samples = own.samples, .map = own.map, .draws = own.draws, .seed = own.seed};
  }

  Report attend(const Estimator&, const AttendInputs& inputs, MutView4 out, const AttendOptions& options,
                std::span<float> record) const override {
    State state = empty_state(inputs, options);
    return gated_attention(inputs.q, inputs.k, inputs.v, inputs.gate_logits, *inputs.map, state, out, linear_options(options),
                           record);
  }

  void backward(const Estimator&, const AttendInputs& in, View4 out, std::span<const float> record, View4 dout,
                const AttendGradients& gradients, const AttendOptions& options) const override {
    gated_attention_backward(in.q, in.k, in.v, in.gate_logits, *in.map, out, record, dout, linear_gradients(gradients),
                             linear_options(options));
  }

  Report extend(const Estimator& estimator, const AttendInputs& inputs, Memory& memory, MutView4 out,
                const AttendOptions& options) const override {
    return gated_attention(inputs.q, inputs.k, inputs.v, inputs.gate_logits, *inputs.map, state_in(estimator, memory), out,
                           linear_options(options));
  }

  Report step(const Estimator& estimator, const AttendInputs& inputs, std::span<Memory* const> sessions, MutView4 out,
              const AttendOptions& options) const override {
    return gated_step(without_tokens(inputs.q), without_tokens(inputs.k), without_tokens(inputs.v),
                      without_tokens(inputs.gate_logits), *inputs.map, parts_of(estimator, sessions, state_in),
                      without_tokens(out), linear_options(options));
  }
};

}  // namespace

LaraOptions log_rfa_options(const Estimator& estimator) {
  return {.samples = estimator.samples.value_or(64),
          .samples_per_proposal = estimator.per_proposal,
          .proposals = Proposals::standard,
          .weights = estimator.weights,
          .mis_opt_strength = estimator.strength,
          .mean = estimator.mean.value_or(false),
          .draws = estimator.draws,
          .seed = estimator.seed,
          .layer = estimator.layer,
          .draw = estimator.draw};
}

const EstimatorModule& rfa_module() {
  static const RfaModule module;
  return module;
}
const EstimatorModule& rfa_gate_module() {
  static const RfaGateModule module;
  return module;
}

}  // namespace raffia::internal
