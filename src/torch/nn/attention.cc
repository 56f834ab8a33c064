// Common to all attention modules: what happens before and after the estimator.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/check.h"
#include "raffia/torch/nn.h"
#include "torch/nn/pieces.h"

namespace raffia::nn {
namespace {

std::string shape_of(const Tensor& tensor) { return fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")); }

Tensor selected(const Tensor& tensor, const Tensor& indices) {
  return tensor.defined() ? tensor.index_select(0, indices) : tensor;
}
Tensor constant(const Tensor& tensor) { return tensor.defined() ? tensor.detach() : tensor; }

}  // namespace

AttentionState AttentionState::detached() const {
  return {constant(memory), constant(keys), constant(values), constant(tail), position};
}

AttentionState AttentionState::select(const Tensor& indices) const {
  return {selected(memory, indices), selected(keys, indices), selected(values, indices), selected(tail, indices), position};
}

AttentionImpl::AttentionImpl(const AttentionOptions& options) : options_(options) {
  const int64_t width = options.embed_dim, heads = options.num_heads;
  const Estimator& estimator = options.estimator;
  require(heads >= 1 && width >= 1 && width % heads == 0,
          "Attention: embed_dim is {} and num_heads {}, expected a positive multiple of the number of heads", width, heads);
  const int64_t key_heads = options.key_heads(), key_width = key_heads * head_dim();
  require(key_heads >= 1 && heads % key_heads == 0,
          "Attention: num_kv_heads is {}, expected a divisor of the {} heads, or 0 for the same number", options.num_kv_heads,
          heads);
  require(!options.rotary || head_dim() % 2 == 0, "Attention: a head is {} wide, expected an even size (rotary positions)",
          head_dim());
  require(!options.causal || estimator.supports_causal(), "Attention: {} is bidirectional, expected causal to be false",
          to_string(estimator));
  require(options.causal || estimator.supports_bidirectional(), "Attention: {} is causal, expected causal to be true",
          to_string(estimator));
  require(options.conv >= 0 && (options.conv == 0 || options.causal),
          "Attention: conv is {} with causal = {}, expected 0 (the short convolution is for causal attention)", options.conv,
          options.causal);
  require(options.pool >= 0, "Attention: pool is {}, expected 0 or more", options.pool);
  require(estimator.layer == 0 && estimator.draw == 0,
          "Attention: {} sets layer or draw, expected neither (use AttentionOptions::layer and redraw())", to_string(estimator));
  q_proj_ = register_module("q_proj", make_linear(width, width, options.bias));
  k_proj_ = register_module("k_proj", make_linear(width, key_width, options.bias));
  v_proj_ = register_module("v_proj", make_linear(width, key_width, options.bias));
  out_proj_ = register_module("out_proj", make_linear(width, width, options.bias));
  if (options.conv > 0) {
    const auto identity = [&](int64_t columns) {
      Tensor taps = at::zeros({columns, options.conv});
      taps.select(1, options.conv - 1).fill_(1);
      return taps;
    };
    conv_q_ = register_parameter("conv_q", identity(width));
    conv_k_ = register_parameter("conv_k", identity(key_width));
    conv_v_ = register_parameter("conv_v", identity(key_width));
  }
  if (options.head_norm) head_norm_ = register_parameter("head_norm", at::ones({heads, head_dim()}));
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

  Tensor q = q_proj_(query), k = k_proj_(key), v = v_proj_(value);  // [B, T, E], [B, T, G d]
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
  if (options_.head_norm) out = rms_norm(out, head_norm_, kHeadNormEpsilon);
  return out_proj_(out.flatten(2));
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
  return monitor;
}

void AttentionImpl::keep(bool keeps) {
  keeps_ = keeps;
  if (!keeps) kept_ = {};
}

void AttentionImpl::split_sequence(std::shared_ptr<SequenceSplit> split) {
  require(split == nullptr || options_.estimator.kind == EstimatorKind::rfa_gate,
          "Attention: {} cannot split a sequence over processes, expected rfa_gate", to_string(options_.estimator));
  split_ = std::move(split);
}

Attention make_attention(const AttentionOptions& options) {
  switch (options.estimator.kind) {
    case EstimatorKind::softmax:
    case EstimatorKind::window:
      return std::make_shared<SoftmaxAttentionImpl>(options);
    case EstimatorKind::rfa:
      return std::make_shared<RandomFeatureAttentionImpl>(options);
    case EstimatorKind::rfa_gate:
      return std::make_shared<GatedRandomFeatureAttentionImpl>(options);
    case EstimatorKind::hybrid:
      return std::make_shared<HybridAttentionImpl>(options);
    case EstimatorKind::lara:
      return std::make_shared<LaraAttentionImpl>(options);
    case EstimatorKind::eva:
      return std::make_shared<EvaAttentionImpl>(options);
    case EstimatorKind::ra:
      return std::make_shared<RandomizedAttentionImpl>(options);
  }
  throw InvalidArgument(
      fmt::format("make_attention: kind is {}, expected one of the estimators", static_cast<int>(options.estimator.kind)));
}

}  // namespace raffia::nn
