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

}  // namespace

Report attend(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options) {
  require(!options.causal || estimator.supports_causal(), "attend: {} is bidirectional, expected options.causal to be false",
          to_string(estimator));
  require(options.causal || estimator.supports_bidirectional(), "attend: {} is causal, expected options.causal to be true",
          to_string(estimator));
  const bool is_gated = estimator.kind == EstimatorKind::rfa_gate || estimator.kind == EstimatorKind::hybrid;
  require(!is_gated || !inputs.gate_logits.absent(), "attend: gate_logits is absent, expected [B, T, G] ({} decays by them)",
          name_of(estimator.kind));
  switch (estimator.kind) {
    case EstimatorKind::softmax:
    case EstimatorKind::window:
      return attend_softmax(estimator, inputs, out, options);
    case EstimatorKind::rfa:
      if (!estimator.log) return attend_linear(estimator, inputs, out, options);
      break;
    case EstimatorKind::rfa_gate:
      return attend_linear(estimator, inputs, out, options);
    case EstimatorKind::hybrid:
    case EstimatorKind::ra:
    case EstimatorKind::lara:
    case EstimatorKind::eva:
      break;
  }
  throw InvalidArgument(
      fmt::format("attend: {} has no operation yet, expected softmax, window, rfa or rfa_gate", to_string(estimator)));
}

}  // namespace raffia
