// Attention as a module: projections, convolution, positions, and the estimator over them.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/init.h>

#include <cmath>

#include "core/check.h"
#include "estimators/registry.h"
#include "model/plan.h"
#include "raffia/torch/nn.h"
#include "torch/estimators/registry.h"
#include "torch/nn/pieces.h"
#include "torch/ops/norm.h"

namespace raffia::nn {

using namespace internal;
using namespace internal::nn;
namespace ops = internal::ops;
namespace {

std::string shape_of(const Tensor& tensor) { return fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")); }

Tensor selected(const Tensor& tensor, const Tensor& indices) {
  return tensor.defined() ? tensor.index_select(0, indices) : tensor;
}
Tensor constant(const Tensor& tensor) { return tensor.defined() ? tensor.detach() : tensor; }

ops::Map map_for(AttentionMap& map, uint32_t draw, const Tensor& q) {
  ops::Map tensors = map->tensors(draw);
  tensors.weight = as_parameter(tensors.weight, q);
  tensors.sigma = as_parameter(tensors.sigma, q);
  tensors.bias = as_parameter(tensors.bias, q);
  return tensors;
}

// Bias b with sigmoid(b) = g for spans 1 / (1 - g) that are geometric over the heads: b = log(span - 1).
Tensor bias_of_spans(int64_t heads, double span_min, double span_max) {
  require(span_min > 1 && span_max >= span_min, "Attention: spans of gates are {} to {}, expected an increasing range above 1",
          span_min, span_max);
  const Tensor places = heads == 1 ? at::full({1}, 0.5, at::kDouble) : at::linspace(0, 1, heads, at::kDouble);
  return at::log(at::exp(places * std::log(span_max / span_min)) * span_min - 1).to(at::kFloat);
}

}  // namespace

AttentionState AttentionState::detached() const {
  return {constant(memory), constant(keys), constant(values), constant(tail), position};
}

AttentionState AttentionState::select(const Tensor& indices) const {
  return {selected(memory, indices), selected(keys, indices), selected(values, indices), selected(tail, indices), position};
}

AttentionImpl::AttentionImpl(const AttentionOptions& options) : options_(options), traits_(traits_of(options.estimator)) {
  const int64_t width = options.embed_dim, heads = options.num_heads;
  const Estimator& estimator = options.estimator;
  require(heads >= 1 && width >= 1 && width % heads == 0,
          "Attention: embed_dim is {} and num_heads {}, expected a positive multiple of the number of heads", width, heads);
  const int64_t key_heads = options.key_heads();
  require(key_heads >= 1 && heads % key_heads == 0,
          "Attention: num_kv_heads is {}, expected a divisor of the {} heads, or 0 for the same number", options.num_kv_heads,
          heads);
  require(!options.rotary || head_dim() % 2 == 0, "Attention: a head is {} wide, expected an even size (rotary positions)",
          head_dim());
  require(!options.causal || traits_.causal, "Attention: {} is bidirectional, expected causal to be false", to_string(estimator));
  require(options.causal || traits_.bidirectional, "Attention: {} is causal, expected causal to be true", to_string(estimator));
  require(options.conv >= 0 && (options.conv == 0 || options.causal),
          "Attention: conv is {} with causal = {}, expected 0 (the short convolution is for causal attention)", options.conv,
          options.causal);
  require(options.pool >= 0, "Attention: pool is {}, expected 0 or more", options.pool);
  require(estimator.layer == 0 && estimator.draw == 0,
          "Attention: {} sets layer or draw, expected neither (use AttentionOptions::layer and redraw())", to_string(estimator));
  add_parts();
}

void AttentionImpl::add_parts() {
  const AttentionPlan plan = plan_attention("", settings_of(options_));
  const auto add_tensor = [this](const std::optional<TensorPlan>& tensor, auto&& start) {
    return tensor ? register_parameter(own_name(tensor->name), start(*tensor)) : Tensor();
  };
  // The last tap is the token itself.
  const auto identity = [](const TensorPlan& tensor) {
    Tensor taps = at::zeros(tensor.shape);
    taps.select(1, taps.size(1) - 1).fill_(1);
    return taps;
  };
  q_proj_ = add_module(*this, plan.q, make_linear(plan.q));
  k_proj_ = add_module(*this, plan.k, make_linear(plan.k));
  v_proj_ = add_module(*this, plan.v, make_linear(plan.v));
  out_proj_ = add_module(*this, plan.out, make_linear(plan.out));
  conv_q_ = add_tensor(plan.conv_q, identity);
  conv_k_ = add_tensor(plan.conv_k, identity);
  conv_v_ = add_tensor(plan.conv_v, identity);
  head_norm_ = add_tensor(plan.head_norm_weight, [](const TensorPlan& tensor) { return at::ones(tensor.shape); });
  if (plan.map) map_ = add_module(*this, *plan.map, AttentionMap(options_));
  if (plan.gate) {
    gate_ = add_module(*this, *plan.gate, torch::nn::Linear(plan.gate->in(), plan.gate->out()));
    torch::nn::init::zeros_(gate_->weight);
    const at::NoGradGuard no_grad;
    gate_->bias.copy_(bias_of_spans(plan.key_heads, plan.span_min > 0 ? plan.span_min : traits_.span_min,
                                    plan.span_max > 0 ? plan.span_max : traits_.span_max));
  }
  log_scale_ = add_tensor(plan.log_scale, [](const TensorPlan& tensor) { return at::full(tensor.shape, -2.0); });
}

void AttentionImpl::check(const Tensor& query, const Tensor& key, const Tensor& value, const ForwardOptions& options) const {
  const int64_t width = options_.embed_dim;
  const auto check_one = [&](const char* name, const Tensor& x, int64_t length, const char* why) {
    const bool fits = x.defined() && x.dim() == 3 && x.size(0) == query.size(0) && x.size(1) == length && x.size(2) == width;
    require(fits, "Attention: {} has shape {}, expected [{}, {}, {}] ({})", name, x.defined() ? shape_of(x) : "(undefined)",
            query.size(0), length, width, why);
  };
  require(query.defined() && query.dim() == 3 && query.size(2) == width, "Attention: query has shape {}, expected [B, Tq, {}]",
          query.defined() ? shape_of(query) : "(undefined)", width);
  require(key.defined() && key.dim() == 3, "Attention: key has shape {}, expected [{}, Tk, {}]",
          key.defined() ? shape_of(key) : "(undefined)", query.size(0), width);
  const int64_t length = options_.causal ? query.size(1) : key.size(1);
  check_one("key", key, length, options_.causal ? "batch and length of query, embed_dim" : "batch of query, embed_dim");
  check_one("value", value, length, "batch of query, length of key, embed_dim");
  if (const Tensor& mask = options.key_padding_mask; mask.defined()) {
    require(mask.scalar_type() == at::kBool && mask.dim() == 2 && mask.size(0) == key.size(0) && mask.size(1) == length,
            "Attention: key_padding_mask is {} {}, expected bool [{}, {}] (batch and length of key)",
            c10::toString(mask.scalar_type()), shape_of(mask), key.size(0), length);
    require(options.state == nullptr, "Attention: key_padding_mask and state are both given, expected one of them");
    require(split_ == nullptr, "Attention: key_padding_mask is given for a slice of a sequence, expected none");
  }
  if (options.state != nullptr) {
    require(options_.causal, "Attention: a state is given, expected none (only causal attention has one)");
    require(split_ == nullptr, "Attention: a state is given for a slice of a sequence, expected none");
    for (const Tensor& part : {options.state->memory, options.state->keys, options.state->values, options.state->tail}) {
      require(!part.defined() || part.size(0) == query.size(0), "Attention: state has {} entries, expected {} (batch of query)",
              part.defined() ? part.size(0) : 0, query.size(0));
    }
  }
}

Tensor AttentionImpl::forward(const Tensor& query, const Tensor& key, const Tensor& value, const ForwardOptions& options) {
  check(query, key, value, options);
  AttentionState* const state = options.state;
  const int64_t batch = query.size(0), width = options_.embed_dim, key_width = options_.key_heads() * head_dim();

  Tensor q = apply_linear(q_proj_, query), k = apply_linear(k_proj_, key),
         v = apply_linear(v_proj_, value);  // [B, T, E], [B, T, G d]
  Heads heads{.q = {}, .k = {}, .v = {}, .q_plain = {}, .k_plain = {}, .input = key, .valid = {}};
  if (options.key_padding_mask.defined()) heads.valid = options.key_padding_mask.logical_not();

  Tensor next_tail;
  if (options_.conv > 0) {
    Tensor all = at::cat({q, k, v}, 2);  // [B, T, E + 2 G d]
    // Padding must not reach later tokens through the convolution either.
    if (heads.valid.defined()) all = all.masked_fill(options.key_padding_mask.unsqueeze(2), 0);
    const int64_t kept = options_.conv - 1;
    Tensor before = state != nullptr && state->tail.defined() ? state->tail.to(all.scalar_type())
                                                              : at::zeros({batch, kept, all.size(2)}, all.options());
    if (split_ != nullptr) {
      require(all.size(1) >= kept, "Attention: a slice has {} tokens, expected {} or more (width of the convolution)",
              all.size(1), kept);
      before = split_->tail_before(all.narrow(1, all.size(1) - kept, kept));
    }
    const Tensor both = at::cat({before, all}, 1);
    next_tail = both.narrow(1, both.size(1) - kept, kept);
    const Tensor mixed = short_convolution(all, before, at::cat({conv_q_, conv_k_, conv_v_}, 0));
    q = mixed.narrow(2, 0, width);
    k = mixed.narrow(2, width, key_width);
    v = mixed.narrow(2, width + key_width, key_width);
  }

  const auto split_heads = [&](const Tensor& x) { return x.unflatten(2, {x.size(2) / head_dim(), head_dim()}); };
  heads.q_plain = heads.q = split_heads(q);
  heads.k_plain = heads.k = split_heads(k);
  heads.v = split_heads(v);
  if (options_.rotary) {
    const int64_t position = state != nullptr ? state->position : split_ != nullptr ? split_->position() : 0;
    const Rotary rotate(position, std::max(q.size(1), k.size(1)), head_dim(), options_.rotary_base, q);
    heads.q = rotate(heads.q);
    heads.k = rotate(heads.k);
  }

  Tensor out = attend(heads, state);  // [B, Tq, H, d]
  if (keeps_) kept_ = {key.detach(), heads.q.detach(), heads.k.detach(), heads.v.detach(), out.detach()};
  if (state != nullptr) {
    if (next_tail.defined()) state->tail = next_tail.clone();
    state->position += query.size(1);
  }
  if (options_.head_norm) out = ops::rms_norm_of_torch(out, head_norm_, kHeadNormEpsilon);
  return apply_linear(out_proj_, out.flatten(2));
}

Tensor AttentionImpl::gate_logits(const Heads& heads) {
  // Gates close to 1 need more digits than bf16 has.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  const Tensor logits = as_parameter(gate_(heads.input.to(gate_->weight.scalar_type())), heads.q);
  last_logits_ = logits.detach();
  last_valid_ = heads.valid;
  return logits;
}

Tensor AttentionImpl::attend(const Heads& heads, AttentionState* state) {
  const Estimator estimator = current_estimator();
  ops::AttendTensors in{.q = heads.q, .k = heads.k, .v = heads.v, .valid = heads.valid};
  if (traits_.has_map) in.map = map_for(map_, current_draw(), heads.q);
  if (traits_.is_gated) in.gate_logits = gate_logits(heads);
  if (traits_.blends) {
    in.log_scale = as_parameter(log_scale_, heads.q);
    if (options_.rotary) {
      in.q_far = heads.q_plain;
      in.k_far = heads.k_plain;
    }
  }
  if (split_ != nullptr) {
    const ops::Carried carried = split_->gated(in.q, in.k, in.v, in.gate_logits, in.map);
    last_report_ = carried.report;
    return carried.out;
  }
  const ops::TensorEstimator& op = ops::tensors_of(estimator.kind);
  ops::Attended attended;
  if (state == nullptr) {
    attended = op.attend(estimator, in, options_.causal);
  } else {
    require(traits_.has_memory, "Attention: a state is given to {}, expected none (its memory grows)",
            to_string(options_.estimator));
    ops::TensorMemory memory{.memory = state->memory, .keys = state->keys, .values = state->values, .position = state->position};
    attended = op.extend(estimator, in, memory);
    state->memory = memory.memory;
    state->keys = memory.keys;
    state->values = memory.values;
  }
  last_report_ = attended.report;
  return attended.out;
}

uint32_t AttentionImpl::current_draw() const {
  if (!is_training() || options_.pool == 0) return 0;
  return static_cast<uint32_t>(1 + draw_ % static_cast<uint64_t>(options_.pool));
}

Estimator AttentionImpl::current_estimator() const {
  Estimator estimator = options_.estimator;
  estimator.layer = options_.layer;
  estimator.draw = current_draw();
  if (is_training() && !estimator.mean) estimator.mean = false;
  return estimator;
}

Monitor AttentionImpl::monitor() const {
  Monitor monitor;
  if (last_report_.defined()) {
    const Tensor report = last_report_.to(at::kCPU);
    monitor.clamp_rate = Report{report[0].item<int64_t>(), report[1].item<int64_t>()}.clamp_rate();
  }
  if (!map_.is_empty()) monitor.sigma = map_->mean_sigma();
  if (!last_logits_.defined()) return monitor;
  // 1 / (1 - g) = 1 + exp(logit).
  const Tensor spans = at::exp(last_logits_.to(at::kDouble)) + 1;
  const Tensor weights =
      last_valid_.defined() ? last_valid_.to(at::kDouble) : at::ones({spans.size(0), spans.size(1)}, spans.options());
  const Tensor mean = (spans * weights.unsqueeze(2)).flatten(0, 1).sum(0) / weights.sum().clamp_min(1);
  monitor.spans.assign(mean.data_ptr<double>(), mean.data_ptr<double>() + mean.numel());
  return monitor;
}

void AttentionImpl::keep(bool keeps) {
  keeps_ = keeps;
  if (!keeps) kept_ = {};
}

void AttentionImpl::split_sequence(std::shared_ptr<SequenceSplit> split) {
  require(split == nullptr || traits_.splits_sequences, "Attention: {} cannot split a sequence over processes, expected {}",
          to_string(options_.estimator), kinds_with(&EstimatorTraits::splits_sequences));
  split_ = std::move(split);
}

Attention make_attention(const AttentionOptions& options) { return std::make_shared<AttentionImpl>(options); }

}  // namespace raffia::nn
