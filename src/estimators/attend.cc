// One function for all estimators.
#include <fmt/format.h>

#include <optional>
#include <vector>

#include "core/check.h"
#include "estimators/estimator_options.h"
#include "raffia/estimator.h"

namespace raffia {
namespace {

// Copies the options of the call.
template <class Options>
Options with_common(Options op, const AttendOptions& options) {
  op.layout = options.layout;
  op.threads = options.threads;
  op.executor = options.executor;
  return op;
}
template <class Options>
Options with_scale(Options op, const AttendOptions& options) {
  op.scale = options.scale;
  return with_common(op, options);
}

// The states of the causal linear ops: one entry per sequence.
State empty_state(const AttendInputs& inputs, const FeatureMap& map, const Layout& layout) {
  const int64_t sequences = layout.cu_seqlens.empty() ? inputs.q.extent(0) : std::ssize(layout.cu_seqlens) - 1;
  return State(map, {.batch = sequences, .value_dim = inputs.v.extent(3)});
}

Report attend_linear(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options) {
  const auto op = with_common(AttentionOptions{}, options);
  std::optional<FeatureMap> own;
  const FeatureMap& map =
      inputs.map != nullptr ? *inputs.map : own.emplace(estimator.make_map(inputs.k.extent(3), inputs.k.extent(2)));
  const View4 q = inputs.q, k = inputs.k, v = inputs.v;
  if (!options.causal) return rfa_attention(q, k, v, map, out, op);
  State state = empty_state(inputs, map, options.layout);
  if (estimator.kind == EstimatorKind::rfa) return causal_attention(q, k, v, map, state, out, op);
  return gated_attention(q, k, v, inputs.gate_logits, map, state, out, op);
}

Report attend_hybrid(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options) {
  constexpr float kLogScale = -2;
  const std::vector<float> log_scale(static_cast<size_t>(inputs.q.extent(2)), kLogScale);
  HybridInputs op_inputs{.q = inputs.q,
                         .k = inputs.k,
                         .v = inputs.v,
                         .gate_logits = inputs.gate_logits,
                         .log_scale = inputs.log_scale,
                         .q_far = inputs.q_far,
                         .k_far = inputs.k_far};
  if (inputs.log_scale.absent()) op_inputs.log_scale = {log_scale.data(), {inputs.q.extent(2)}};
  const View4 folded = inputs.k_far.absent() ? inputs.k : inputs.k_far;
  std::optional<FeatureMap> own;
  const FeatureMap& map =
      inputs.map != nullptr ? *inputs.map : own.emplace(estimator.make_map(folded.extent(3), folded.extent(2)));
  return hybrid_attention(op_inputs, map, nullptr, out, with_scale(hybrid_options(estimator), options));
}

// The estimators that sample keys or see all of them: they never clamp.
void attend_sampled(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options) {
  const View4 q = inputs.q, k = inputs.k, v = inputs.v;
  switch (estimator.kind) {
    case EstimatorKind::ra:
      return ra_attention(q, k, v, out, with_scale(ra_options(estimator, options.causal), options));
    case EstimatorKind::eva:
      if (!options.causal) return eva_attention(q, k, v, out, with_scale(eva_options(estimator), options));
      return causal_eva_attention(q, k, v, nullptr, out, with_scale(causal_eva_options(estimator), options));
    case EstimatorKind::rfa:
    case EstimatorKind::lara:
      if (!options.causal) return lara_attention(q, k, v, out, with_scale(lara_options(estimator), options));
      return causal_lara_attention(q, k, v, nullptr, out, with_scale(causal_lara_options(estimator), options));
    default:
      return softmax_attention(q, k, v, out, with_scale(softmax_options(estimator, options.causal), options));
  }
}

// `estimator` without the fields that this form does not use. (The fields of the random stream are always allowed.)
Estimator used_fields(const Estimator& estimator, bool causal) {
  Estimator used = estimator;
  const Estimator defaults;
  const bool is_lara = estimator.kind == EstimatorKind::lara, is_eva = estimator.kind == EstimatorKind::eva;
  if (!causal && (is_lara || is_eva)) {
    used.chunk = defaults.chunk;
    used.features = defaults.features;
    used.decay = defaults.decay;
    used.streaming = defaults.streaming;
    if (is_lara) used.window = defaults.window;
  }
  if (used.weights != SampleWeights::mis_opt) used.strength = defaults.strength;
  return used;
}

}  // namespace

Report attend(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options) {
  require(!options.causal || estimator.supports_causal(), "attend: {} is bidirectional, expected options.causal to be false",
          to_string(estimator));
  require(options.causal || estimator.supports_bidirectional(), "attend: {} is causal, expected options.causal to be true",
          to_string(estimator));
  const Estimator used = used_fields(estimator, options.causal);
  require(used == estimator, "attend: {} has keys that its {} form does not use, expected {}", to_string(estimator),
          options.causal ? "causal" : "bidirectional", to_string(used));
  require(inputs.map == nullptr || !estimator.log, "attend: map is given, but {} draws its own features in log space",
          to_string(estimator));
  const bool is_gated = estimator.kind == EstimatorKind::rfa_gate || estimator.kind == EstimatorKind::hybrid;
  require(!is_gated || !inputs.gate_logits.absent(), "attend: gate_logits is absent, expected [B, T, G] ({} decays by them)",
          name_of(estimator.kind));
  switch (estimator.kind) {
    case EstimatorKind::rfa:
    case EstimatorKind::rfa_gate:
      if (!estimator.log) return attend_linear(estimator, inputs, out, options);
      break;
    case EstimatorKind::hybrid:
      return attend_hybrid(estimator, inputs, out, options);
    default:
      break;
  }
  attend_sampled(estimator, inputs, out, options);
  return {};
}

}  // namespace raffia
