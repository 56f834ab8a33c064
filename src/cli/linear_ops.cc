// Ops with a feature map: rfa, rfa_gate, and hybrid, whose folded part has one.
#include <vector>

#include "cli/attention_ops.h"
#include "raffia/attention.h"
#include "raffia/hybrid.h"

namespace raffia::cli {
namespace {

MapGradients map_gradients(AttentionRun& run, const FeatureMap& map) {
  MapGradients gradients;
  if (!run.goes_backward()) return gradients;
  const int64_t heads = map.heads(), features = map.features(), dim = map.dim();
  if (map.is_random()) gradients.sigma = {run.floats(heads * dim).data(), {heads, dim}};
  if (map.kind() == MapKind::relu) {
    gradients.weight = {run.floats(heads * features * dim).data(), {heads, features, dim}};
    gradients.bias = {run.floats(heads * features).data(), {heads, features}};
  }
  return gradients;
}

MutView3 gate_gradients(AttentionRun& run) {
  const MutView4 gradients = run.array(run.shape().kv_heads, 1);
  return {gradients.data(),
          gradients.dtype(),
          {gradients.extent(0), gradients.extent(1), gradients.extent(2)},
          {gradients.stride(0), gradients.stride(1), gradients.stride(2)}};
}

// The state is carried from run to run; larger values in it cost no time.
struct Linear {
  FeatureMap map;
  State state;
  View3 gate_logits;
  AttentionOptions options;
  AttentionGradients gradients;

  explicit Linear(AttentionRun& run)
      : map(make_map(run.shape(), run.bench.form.input)),
        state(map, {.batch = run.shape().batch, .value_dim = run.shape().value_dim}),
        options(run.place(AttentionOptions{.segment = run.bench.segment})),
        gradients{.q = run.gradients.q, .k = run.gradients.k, .v = run.gradients.v, .map = map_gradients(run, map)} {
    options.record = run.floats(record_size(run.q, run.k, run.v, map, options));
  }
};

Passes gated_passes(AttentionRun& run, const std::shared_ptr<Linear>& op) {
  op->gate_logits = run.inputs->gate_logits().without_dim();
  op->gradients.gate_logits = gate_gradients(run);
  return {
      .forward = [&run, op] { gated_attention(run.q, run.k, run.v, op->gate_logits, op->map, op->state, run.out, op->options); },
      .backward =
          [&run, op] {
            gated_attention_backward(run.q, run.k, run.v, op->gate_logits, op->map, run.out, op->options.record, run.dout,
                                     op->gradients, op->options);
          }};
}

Passes causal_passes(AttentionRun& run, const std::shared_ptr<Linear>& op) {
  return {.forward = [&run, op] { causal_attention(run.q, run.k, run.v, op->map, op->state, run.out, op->options); },
          .backward =
              [&run, op] {
                causal_attention_backward(run.q, run.k, run.v, op->map, run.out, op->options.record, run.dout, op->gradients,
                                          op->options);
              }};
}

Passes bidirectional_passes(AttentionRun& run, const std::shared_ptr<Linear>& op) {
  return {.forward = [&run, op] { rfa_attention(run.q, run.k, run.v, op->map, run.out, op->options); },
          .backward =
              [&run, op] {
                rfa_attention_backward(run.q, run.k, run.v, op->map, run.out, op->options.record, run.dout, op->gradients,
                                       op->options);
              }};
}

struct Hybrid {
  FeatureMap map;
  std::vector<float> log_scale;
  HybridInputs inputs;
  HybridOptions options;
  HybridGradients gradients;

  explicit Hybrid(AttentionRun& run)
      : map(make_map(run.shape(), run.bench.form.input)),
        log_scale(static_cast<size_t>(run.shape().heads), kHybridLogScale),
        inputs{.q = run.q,
               .k = run.k,
               .v = run.v,
               .gate_logits = run.inputs->gate_logits().without_dim(),
               .log_scale = {log_scale.data(), {run.shape().heads}}},
        options(run.place(hybrid_options(run.shape()))),
        gradients{.q = run.gradients.q,
                  .k = run.gradients.k,
                  .v = run.gradients.v,
                  .gate_logits = gate_gradients(run),
                  .map = map_gradients(run, map)} {
    if (run.bench.form.input == OpInput::features) {
      inputs.q_far = run.inputs->q(OpInput::features).view();
      inputs.k_far = run.inputs->k(OpInput::features).view();
      gradients.q_far = run.array(run.shape().heads, map.dim());
      gradients.k_far = run.array(run.shape().kv_heads, map.dim());
    }
    if (run.goes_backward()) gradients.log_scale = {run.floats(run.shape().heads).data(), {run.shape().heads}};
    options.record = run.floats(hybrid_record_size(inputs, map, nullptr, options));
  }
};

}  // namespace

Passes linear_passes(AttentionRun& run) {
  const auto op = std::make_shared<Linear>(run);
  if (run.bench.form.op == Op::rfa_gate) return gated_passes(run, op);
  return run.bench.form.causal ? causal_passes(run, op) : bidirectional_passes(run, op);
}

Passes hybrid_passes(AttentionRun& run) {
  const auto op = std::make_shared<Hybrid>(run);
  return {.forward = [&run, op] { hybrid_attention(op->inputs, op->map, nullptr, run.out, op->options); },
          .backward =
              [&run, op] {
                hybrid_attention_backward(op->inputs, op->map, nullptr, run.out, op->options.record, run.dout, op->gradients,
                                          op->options);
              }};
}

}  // namespace raffia::cli
