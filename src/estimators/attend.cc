// Any estimator through one door.
#include <fmt/format.h>

#include <optional>
#include <vector>

#include "core/check.h"
#include "raffia/estimator.h"

namespace raffia {
namespace {

// Fields that all options of ops have.
template <class Options>
Options with_common(Options op, const AttendOptions& options) {
  op.layout = options.layout;
  op.threads = options.threads;
  op.executor = options.executor;
  return op;
}

// Where random numbers come from.
template <class Options>
Options with_stream(Options op, const Estimator& estimator) {
  op.seed = estimator.seed;
  op.layer = estimator.layer;
  op.draw = estimator.draw;
  return op;
}

Report attend_softmax(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options) {
  const bool is_local = estimator.kind == EstimatorKind::window;
  softmax_attention(inputs.q, inputs.k, inputs.v, out,
                    with_common(SoftmaxOptions{.causal = options.causal,
                                               .window = is_local ? estimator.window : 0,
                                               .before = is_local ? estimator.before : 0,
                                               .scale = options.scale},
                                options));
  return {};
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

// Positive features in log space are LARA whose proposals know nothing of the tokens.
Report attend_lara(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options) {
  const bool is_rfa = estimator.kind == EstimatorKind::rfa;
  const LaraOptions op{.samples = estimator.samples.value_or(64),
                       .samples_per_proposal = estimator.per_proposal,
                       .proposals = is_rfa ? Proposals::standard : estimator.proposals,
                       .weights = estimator.weights,
                       .mis_opt_strength = estimator.strength,
                       .mean = estimator.mean,
                       .draws = estimator.draws,
                       .scale = options.scale};
  lara_attention(inputs.q, inputs.k, inputs.v, out, with_common(with_stream(op, estimator), options));
  return {};
}

Report attend_causal_lara(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options) {
  const CausalLaraOptions op{.window = estimator.window,
                             .chunk = estimator.chunk,
                             .samples = estimator.samples.value_or(128),
                             .samples_per_proposal = estimator.per_proposal,
                             .streaming = estimator.streaming,
                             .draws = estimator.draws,
                             .scale = options.scale};
  causal_lara_attention(inputs.q, inputs.k, inputs.v, nullptr, out, with_common(with_stream(op, estimator), options));
  return {};
}

Report attend_causal_eva(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options) {
  const CausalEvaOptions op{.window = estimator.window,
                            .chunk = estimator.chunk,
                            .summaries = estimator.samples.value_or(256),
                            .features = estimator.features,
                            .decay = estimator.decay,
                            .draws = estimator.draws,
                            .scale = options.scale};
  causal_eva_attention(inputs.q, inputs.k, inputs.v, nullptr, out, with_common(with_stream(op, estimator), options));
  return {};
}

Report attend_eva(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options) {
  const EvaOptions op{.samples = estimator.samples.value_or(64), .window = estimator.window, .scale = options.scale};
  eva_attention(inputs.q, inputs.k, inputs.v, out, with_common(op, options));
  return {};
}

Report attend_ra(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options) {
  const RaOptions op{.draws = estimator.samples.value_or(1), .causal = options.causal, .scale = options.scale};
  ra_attention(inputs.q, inputs.k, inputs.v, out, with_common(with_stream(op, estimator), options));
  return {};
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
  return hybrid_attention(op_inputs, map, nullptr, out,
                          with_common(HybridOptions{.window = estimator.window, .scale = options.scale}, options));
}

// `estimator` without the fields that this form of it does not use. (Where random numbers come from may always be said.)
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
    case EstimatorKind::softmax:
    case EstimatorKind::window:
      return attend_softmax(estimator, inputs, out, options);
    case EstimatorKind::rfa:
      return estimator.log ? attend_lara(estimator, inputs, out, options) : attend_linear(estimator, inputs, out, options);
    case EstimatorKind::rfa_gate:
      return attend_linear(estimator, inputs, out, options);
    case EstimatorKind::hybrid:
      return attend_hybrid(estimator, inputs, out, options);
    case EstimatorKind::lara:
      return options.causal ? attend_causal_lara(estimator, inputs, out, options) : attend_lara(estimator, inputs, out, options);
    case EstimatorKind::eva:
      return options.causal ? attend_causal_eva(estimator, inputs, out, options) : attend_eva(estimator, inputs, out, options);
    case EstimatorKind::ra:
      return attend_ra(estimator, inputs, out, options);
  }
  throw InvalidArgument(fmt::format("attend: kind is {}, expected one of the estimators", static_cast<int>(estimator.kind)));
}

}  // namespace raffia
