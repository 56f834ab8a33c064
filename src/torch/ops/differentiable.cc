#include "torch/ops/differentiable.h"

#include <torch/csrc/autograd/functions/basic_ops.h>

namespace raffia::internal::ops {

OptionalTensors to_list(at::ArrayRef<Tensor> tensors) {
  OptionalTensors list;
  list.reserve(tensors.size());
  for (const Tensor& tensor : tensors) list.push_back(or_none(tensor));
  return list;
}

Tensors to_tensors(const OptionalTensors& list) {
  Tensors tensors;
  tensors.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) tensors.push_back(or_undefined(list.get(i)));
  return tensors;
}

void apply_autocast(Tensors& inputs, uint64_t low) {
  if (!at::autocast::is_cpu_enabled()) return;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    const at::ScalarType type = (low >> i & 1) != 0 ? at::autocast::get_autocast_cpu_dtype() : at::kFloat;
    inputs[i] = at::autocast::cached_cast(type, inputs[i], c10::DeviceType::CPU);
  }
}

int64_t wanted_gradients(at::ArrayRef<Tensor> inputs) {
  if (!at::GradMode::is_enabled()) return 0;
  int64_t bits = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && inputs[i].requires_grad()) bits |= int64_t{1} << i;
  }
  return bits;
}

void refuse_gradients(const char* op, at::ArrayRef<Tensor> inputs) {
  require(wanted_gradients(inputs) == 0,
          "raffia::{}: an input requires gradients, but a step has no backward pass: use inputs without gradients, or "
          "torch.no_grad()",
          op);
}

void refuse_second_derivatives(const char* op, at::ArrayRef<Tensor> inputs, Tensors& gradients) {
  torch::autograd::edge_list edges;
  for (const Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) edges.push_back(torch::autograd::impl::gradient_edge(input));
  }
  if (edges.empty()) return;
  const auto refuse = std::make_shared<torch::autograd::Error>(
      fmt::format("raffia::{}: second derivatives are not implemented", op), std::move(edges));
  for (Tensor& gradient : gradients) {
    if (gradient.defined()) torch::autograd::create_gradient_edge(gradient, refuse);
  }
}

}  // namespace raffia::internal::ops
