#include "torch/nn/stack.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cmath>
#include <string>

#include "core/check.h"
#include "torch/nn/pieces.h"

namespace raffia::nn {
namespace {

AttentionOptions attention_options(const ModelConfig& config, const Estimator& estimator, bool causal, uint32_t layer) {
  AttentionOptions options{.embed_dim = config.width,
                           .num_heads = config.heads,
                           .num_kv_heads = config.kv_heads,
                           .estimator = estimator,
                           .causal = causal,
                           .bias = config.bias,
                           .rotary = config.positions == Positions::rotary && config.task != Task::image,
                           .rotary_base = config.rotary_base,
                           .conv = causal ? config.conv : 0,
                           .head_norm = config.head_norm,
                           .learned_sigma = config.learned_sigma,
                           .pool = config.pool,
                           .span_min = config.span_min,
                           .span_max = config.span_max,
                           .layer = layer};
  // An estimator with its own seed keeps it.
  if (options.estimator.seed == 0) options.estimator.seed = config.seed;
  return options;
}

// Branches that add to the residual stream have smaller initial weights, so that their sum does not grow with depth.
void shrink(torch::nn::Module& attention_or_ffn, const std::string& linear, double factor) {
  const at::NoGradGuard no_grad;
  attention_or_ffn.named_parameters()[linear + ".weight"].mul_(factor);
}

Norm make_norm(const ModelConfig& config) { return Norm(config.width, config.norm, config.norm_eps); }

}  // namespace

LayerImpl::LayerImpl(const ModelConfig& config, const Estimator& estimator, const StackOptions& options, uint32_t layer)
    : dropout_(config.dropout), attention_norm_(make_norm(config)), ffn_norm_(make_norm(config)) {
  const double branches = static_cast<double>(config.layers) * (options.cross ? 3 : 2);
  register_module("attention_norm", attention_norm_);
  attention_ = register_module("attention", make_attention(attention_options(config, estimator, options.causal, layer)));
  shrink(*attention_, "out_proj", 1 / std::sqrt(branches));
  if (options.cross) {
    AttentionOptions cross = attention_options(config, config.cross, false, layer + 1);
    cross.rotary = false;  // positions in different texts cannot be compared
    cross_norm_ = register_module("cross_norm", make_norm(config));
    cross_ = register_module("cross", make_attention(cross));
    shrink(*cross_, "out_proj", 1 / std::sqrt(branches));
  }
  register_module("ffn_norm", ffn_norm_);
  ffn_up_ = register_module("ffn_up", make_linear(config.width, config.ffn_width(), config.bias));
  ffn_down_ = register_module("ffn_down", make_linear(config.ffn_width(), config.width, config.bias));
  if (config.feed_forward == FeedForward::swiglu) {
    ffn_gate_ = register_module("ffn_gate", make_linear(config.width, config.ffn_width(), config.bias));
  }
  shrink(*this, "ffn_down", 1 / std::sqrt(branches));
}

Tensor LayerImpl::forward(Tensor x, const Surroundings& around, AttentionState* state) {
  const auto drop = [this](const Tensor& y) { return dropout_ > 0 ? torch::dropout(y, dropout_, is_training()) : y; };
  x = x + drop(attention_->forward(attention_norm_(x), {.key_padding_mask = around.padding, .state = state}));
  if (cross_ != nullptr) {
    const ForwardOptions options{.key_padding_mask = around.context_padding};
    x = x + drop(cross_->forward(cross_norm_(x), around.context, around.context, options));
  }
  return x + drop(feed_forward(ffn_norm_(x)));
}

Tensor LayerImpl::feed_forward(const Tensor& x) {
  if (ffn_gate_.is_empty()) return ffn_down_(torch::gelu(ffn_up_(x)));
  return ffn_down_(torch::silu(ffn_gate_(x)) * ffn_up_(x));
}

StackImpl::StackImpl(const ModelConfig& config, const StackOptions& options)
    : dropout_(config.dropout), norm_(make_norm(config)) {
  if (options.learned_positions > 0) {
    positions_ = register_module("positions", torch::nn::Embedding(options.learned_positions, config.width));
    torch::nn::init::normal_(positions_->weight, 0, kInitialDeviation);
  }
  auto layers = register_module("layers", torch::nn::ModuleList());
  for (int64_t i = 0; i < config.layers; ++i) {
    const auto number = options.first_layer + static_cast<uint32_t>(options.cross ? 2 * i : i);
    layers_.emplace_back(config, options.causal ? config.estimator(i) : config.encoder_estimator(i), options, number);
    layers->push_back(layers_.back());
  }
  register_module("norm", norm_);
}

Tensor StackImpl::forward(Tensor x, const Surroundings& around, ModelState* state) {
  if (state != nullptr && state->empty()) state->resize(layers_.size());
  require(state == nullptr || state->size() == layers_.size(), "Model: state is of {} layers, expected {}",
          state == nullptr ? 0 : state->size(), layers_.size());
  if (!positions_.is_empty()) {
    const int64_t begin = state != nullptr ? state->front().position : split_ != nullptr ? split_->position() : 0;
    const int64_t end = begin + x.size(1), known = positions_->weight.size(0);
    require(end <= known, "Model: the text is {} tokens long, expected at most {} (the number of learned positions)", end, known);
    x = x + positions_->weight.narrow(0, begin, x.size(1));
  }
  if (dropout_ > 0) x = torch::dropout(x, dropout_, is_training());
  for (size_t i = 0; i < layers_.size(); ++i) x = layers_[i](x, around, state == nullptr ? nullptr : &(*state)[i]);
  return norm_(x);
}

}  // namespace raffia::nn
