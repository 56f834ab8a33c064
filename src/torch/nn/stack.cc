#include "torch/nn/stack.h"

#include <torch/nn/modules/container/modulelist.h>

#include <cmath>

#include "core/check.h"
#include "torch/nn/pieces.h"
#include "torch/ops/swiglu.h"

namespace raffia::internal::nn {
namespace {

// Branches that add to the residual stream have smaller initial weights, so that their sum does not grow with depth.
void shrink(torch::nn::Module& owner, const LinearLayerPlan& plan, double factor) {
  const at::NoGradGuard no_grad;
  owner.named_parameters()[own_name(plan.name) + ".weight"].mul_(factor);
}

}  // namespace

LayerImpl::LayerImpl(const LayerPlan& plan, const StackPlan& stack)
    : dropout_(stack.dropout), attention_norm_(add_module(*this, plan.attention_norm, Norm(plan.attention_norm))) {
  const double factor = 1 / std::sqrt(static_cast<double>(stack.branches()));
  const auto attend = [&](const AttentionPlan& attention) {
    Attention made = add_module(*this, attention, make_attention(options_of(attention)));
    shrink(*made, attention.out, factor);
    return made;
  };
  attention_ = attend(plan.attention);
  if (plan.cross) {
    cross_norm_ = add_module(*this, *plan.cross_norm, Norm(*plan.cross_norm));
    cross_ = attend(*plan.cross);
  }
  ffn_norm_ = add_module(*this, plan.ffn_norm, Norm(plan.ffn_norm));
  ffn_up_ = add_module(*this, plan.ffn_up, make_linear(plan.ffn_up));
  ffn_down_ = add_module(*this, plan.ffn_down, make_linear(plan.ffn_down));
  if (plan.ffn_gate) ffn_gate_ = add_module(*this, *plan.ffn_gate, make_linear(*plan.ffn_gate));
  shrink(*this, plan.ffn_down, factor);
}

void LayerImpl::forward(Residual& x, const Surroundings& around, AttentionState* state) {
  const auto drop = [this](const Tensor& y) { return dropout_ > 0 ? torch::dropout(y, dropout_, is_training()) : y; };
  x.added = drop(attention_->forward(attention_norm_(x), {.key_padding_mask = around.padding, .state = state}));
  if (cross_ != nullptr) {
    const ForwardOptions options{.key_padding_mask = around.context_padding};
    x.added = drop(cross_->forward(cross_norm_(x), around.context, around.context, options));
  }
  x.added = drop(feed_forward(ffn_norm_(x)));
}

Tensor LayerImpl::feed_forward(const Tensor& x) {
  if (ffn_gate_.is_empty()) return apply_linear(ffn_down_, apply_linear_gelu(ffn_up_, x));
  return apply_linear(ffn_down_, ops::swiglu(apply_linear(ffn_gate_, x), apply_linear(ffn_up_, x)));
}

StackImpl::StackImpl(const StackPlan& plan) : dropout_(plan.dropout), norm_(plan.norm) {
  if (plan.positions) positions_ = add_module(*this, *plan.positions, make_table(*plan.positions));
  auto layers = register_module("layers", torch::nn::ModuleList());
  for (const LayerPlan& layer : plan.layers) {
    layers_.emplace_back(layer, plan);
    layers->push_back(layers_.back());
  }
  add_module(*this, plan.norm, norm_);
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
  Residual stream{x};
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i](stream, around, state == nullptr ? nullptr : &(*state)[i]);
  return norm_(stream);
}

}  // namespace raffia::internal::nn
