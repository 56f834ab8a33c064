// Attention in linear time by random features: plain, gated, and the hybrid of a gated one with an exact window.
#include <torch/nn/init.h>

#include <cmath>

#include "core/check.h"
#include "estimators/estimator_options.h"
#include "raffia/torch/nn.h"
#include "torch/nn/pieces.h"

namespace raffia::nn {
namespace {

ops::Map map_for(AttentionMap& map, uint32_t draw, const Tensor& q) {
  ops::Map tensors = map->tensors(draw);
  tensors.weight = as_parameter(tensors.weight, q);
  tensors.sigma = as_parameter(tensors.sigma, q);
  tensors.bias = as_parameter(tensors.bias, q);
  return tensors;
}

Tensor memory_of(const AttentionState* state) { return state == nullptr ? Tensor() : state->memory; }

// Bias b with sigmoid(b) = g for spans 1 / (1 - g) that are geometric over the heads: b = log(span - 1).
Tensor bias_of_spans(int64_t heads, double span_min, double span_max) {
  require(span_min > 1 && span_max >= span_min, "Attention: spans of gates are {} to {}, expected an increasing range above 1",
          span_min, span_max);
  const Tensor places = heads == 1 ? at::full({1}, 0.5, at::kDouble) : at::linspace(0, 1, heads, at::kDouble);
  return at::log(at::exp(places * std::log(span_max / span_min)) * span_min - 1).to(at::kFloat);
}

}  // namespace

RandomFeatureAttentionImpl::RandomFeatureAttentionImpl(const AttentionOptions& options) : AttentionImpl(options) {
  if (!options.estimator.log) map_ = register_module("map", AttentionMap(options));
}

Tensor RandomFeatureAttentionImpl::attend(const Heads& heads, AttentionState* state) {
  if (map_.is_empty()) return ops::lara(heads.q, heads.k, heads.v, lara_options(current_estimator()), heads.valid);
  const ops::Map map = map_for(map_, current_draw(), heads.q);
  if (!options_.causal) {
    const ops::Read read = ops::rfa(heads.q, heads.k, heads.v, map, heads.valid);
    last_report_ = read.report;
    return read.out;
  }
  ops::Carried carried;
  if (is_step(heads.q, state)) {
    carried = ops::causal_rfa_step(heads.q.squeeze(1), heads.k.squeeze(1), heads.v.squeeze(1), map, state->memory);
    carried.out = carried.out.unsqueeze(1);
  } else {
    carried = ops::causal_rfa(heads.q, heads.k, heads.v, map, memory_of(state), heads.valid);
  }
  if (state != nullptr) state->memory = carried.state;
  last_report_ = carried.report;
  return carried.out;
}

Monitor RandomFeatureAttentionImpl::monitor() const {
  Monitor monitor = AttentionImpl::monitor();
  if (!map_.is_empty()) monitor.sigma = map_->mean_sigma();
  return monitor;
}

GatedAttentionImpl::GatedAttentionImpl(const AttentionOptions& options, double span_min, double span_max)
    : AttentionImpl(options), map_(register_module("map", AttentionMap(options))) {
  gate_ = register_module("gate", torch::nn::Linear(options.embed_dim, options.key_heads()));
  torch::nn::init::zeros_(gate_->weight);
  const at::NoGradGuard no_grad;
  gate_->bias.copy_(bias_of_spans(options.key_heads(), options.span_min > 0 ? options.span_min : span_min,
                                  options.span_max > 0 ? options.span_max : span_max));
}

Tensor GatedAttentionImpl::gate_logits(const Heads& heads) {
  // Gates close to 1 need more digits than bf16 has.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  const Tensor logits = as_parameter(gate_(heads.input.to(gate_->weight.scalar_type())), heads.q);
  last_logits_ = logits.detach();
  last_valid_ = heads.valid;
  return logits;
}

Monitor GatedAttentionImpl::monitor() const {
  Monitor monitor = AttentionImpl::monitor();
  monitor.sigma = map_->mean_sigma();
  if (!last_logits_.defined()) return monitor;
  // 1 / (1 - g) = 1 + exp(logit).
  const Tensor spans = at::exp(last_logits_.to(at::kDouble)) + 1;
  const Tensor weights =
      last_valid_.defined() ? last_valid_.to(at::kDouble) : at::ones({spans.size(0), spans.size(1)}, spans.options());
  const Tensor mean = (spans * weights.unsqueeze(2)).flatten(0, 1).sum(0) / weights.sum().clamp_min(1);
  monitor.spans.assign(mean.data_ptr<double>(), mean.data_ptr<double>() + mean.numel());
  return monitor;
}

GatedRandomFeatureAttentionImpl::GatedRandomFeatureAttentionImpl(const AttentionOptions& options)
    : GatedAttentionImpl(options, 2, 256) {}

Tensor GatedRandomFeatureAttentionImpl::attend(const Heads& heads, AttentionState* state) {
  const ops::Map map = map_for(map_, current_draw(), heads.q);
  const Tensor logits = gate_logits(heads);
  ops::Carried carried;
  if (split() != nullptr) {
    carried = split()->rfa_gate(heads.q, heads.k, heads.v, logits, map);
  } else if (is_step(heads.q, state)) {
    carried =
        ops::rfa_gate_step(heads.q.squeeze(1), heads.k.squeeze(1), heads.v.squeeze(1), logits.squeeze(1), map, state->memory);
    carried.out = carried.out.unsqueeze(1);
  } else {
    carried = ops::rfa_gate(heads.q, heads.k, heads.v, logits, map, memory_of(state), heads.valid);
  }
  if (state != nullptr) state->memory = carried.state;
  last_report_ = carried.report;
  return carried.out;
}

HybridAttentionImpl::HybridAttentionImpl(const AttentionOptions& options) : GatedAttentionImpl(options, 16, 512) {
  log_scale_ = register_parameter("log_scale", at::full({options.num_heads}, -2.0));
}

Tensor HybridAttentionImpl::attend(const Heads& heads, AttentionState* state) {
  const ops::Map map = map_for(map_, current_draw(), heads.q);
  const HybridOptions options = hybrid_options(options_.estimator);
  ops::HybridTensors inputs{.q = heads.q,
                            .k = heads.k,
                            .v = heads.v,
                            .gate_logits = gate_logits(heads),
                            .log_scale = as_parameter(log_scale_, heads.q)};
  if (options_.rotary) {
    inputs.q_far = heads.q_plain;
    inputs.k_far = heads.k_plain;
  }
  ops::Carried carried;
  if (is_step(heads.q, state)) {
    for (Tensor* x : {&inputs.q, &inputs.k, &inputs.v, &inputs.gate_logits, &inputs.q_far, &inputs.k_far}) {
      if (x->defined()) *x = x->squeeze(1);
    }
    carried = ops::hybrid_step(inputs, map, state->memory, options);
    carried.out = carried.out.unsqueeze(1);
  } else {
    carried = ops::hybrid(inputs, map, memory_of(state), options, heads.valid);
  }
  if (state != nullptr) state->memory = carried.state;
  last_report_ = carried.report;
  return carried.out;
}

}  // namespace raffia::nn
