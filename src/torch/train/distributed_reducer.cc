#include "torch/train/distributed_reducer.h"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <algorithm>

#include "core/check.h"

namespace raffia::internal::train {

GradientReducer::GradientReducer(Group& group, std::vector<Tensor> parameters, const ReducerOptions& options)
    : group_(group), options_(options) {
  if (group_.alone()) return;
  std::reverse(parameters.begin(), parameters.end());
  int64_t filled = options.bucket_bytes;  // the first parameter opens a bucket
  for (Tensor& parameter : parameters) {
    if (!parameter.requires_grad()) continue;
    require(parameter.is_leaf(), "GradientReducer: a parameter is not a leaf tensor");
    const int64_t bytes = parameter.numel() * parameter.element_size();
    const bool other_type = !slots_.empty() && slots_.back().parameter.scalar_type() != parameter.scalar_type();
    if (filled + bytes > options.bucket_bytes || other_type) {
      buckets_.emplace_back();
      filled = 0;
    }
    filled += bytes;
    buckets_.back().slots.push_back(slots_.size());
    slots_.push_back({.parameter = parameter, .bucket = buckets_.size() - 1});
  }

  for (Bucket& bucket : buckets_) {
    int64_t size = static_cast<int64_t>(bucket.slots.size());
    for (const size_t slot : bucket.slots) size += slots_[slot].parameter.numel();
    bucket.flat = at::zeros({size}, slots_[bucket.slots.front()].parameter.options());
    bucket.missing = bucket.slots.size();
    int64_t begin = 0, flag = size - static_cast<int64_t>(bucket.slots.size());
    for (const size_t slot : bucket.slots) {
      const Tensor& parameter = slots_[slot].parameter;
      slots_[slot].values = bucket.flat.narrow(0, begin, parameter.numel()).view(parameter.sizes());
      slots_[slot].present = bucket.flat.narrow(0, flag++, 1);
      begin += parameter.numel();
    }
  }

  using torch::autograd::variable_list;
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.accumulator = torch::autograd::impl::grad_accumulator(slot.parameter);
    slot.hook = slot.accumulator->add_post_hook(
        std::make_unique<torch::autograd::utils::LambdaPostHook>([this, i](const variable_list& outputs, const variable_list&) {
          if (armed_) gradient_arrived(i);
          return outputs;
        }));
  }
}

GradientReducer::~GradientReducer() {
  for (Slot& slot : slots_) slot.accumulator->del_post_hook(slot.hook);
}

void GradientReducer::arm() {
  armed_ = true;
  sent_in_backward_ = 0;
}

void GradientReducer::gradient_arrived(size_t slot) {
  require(!slots_[slot].ready, "GradientReducer: a second backward pass after arm(), expected finish() after the first");
  slots_[slot].ready = true;
  --buckets_[slots_[slot].bucket].missing;
  send_ready(false);
}

void GradientReducer::send_ready(bool all) {
  const at::NoGradGuard no_grad;
  for (; sent_ < buckets_.size() && (all || buckets_[sent_].missing == 0); ++sent_) {
    Bucket& bucket = buckets_[sent_];
    for (const size_t i : bucket.slots) {
      const Tensor& gradient = slots_[i].parameter.grad();
      if (gradient.defined()) {
        slots_[i].values.copy_(gradient);
      } else {
        slots_[i].values.zero_();
      }
      slots_[i].present.fill_(gradient.defined() ? 1 : 0);
    }
    bucket.pending = group_.start_all_reduce(bucket.flat);
    if (!all) ++sent_in_backward_;
  }
}

void GradientReducer::finish() {
  const at::NoGradGuard no_grad;
  send_ready(true);
  const double scale = options_.average ? 1.0 / group_.size() : 1.0;
  for (Bucket& bucket : buckets_) {
    bucket.pending.wait();
    for (const size_t i : bucket.slots) {
      Slot& slot = slots_[i];
      slot.ready = false;
      if (slot.present.item<double>() == 0) continue;
      Tensor& gradient = slot.parameter.mutable_grad();
      if (!gradient.defined()) gradient = at::empty_like(slot.parameter);
      gradient.copy_(slot.values);
      if (scale != 1.0) gradient.mul_(scale);
    }
    bucket.missing = bucket.slots.size();
  }
  sent_ = 0;
  armed_ = false;
}

}  // namespace raffia::internal::train
