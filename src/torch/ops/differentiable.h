// Defines an op with gradients from a forward and a backward kernel.
//
// An op is a struct:
//   kName           of the public op: raffia::<kName>
//   kInputs         tensors that go in, optional ones included (undefined where they are not given)
//   kLow            the inputs, as bits, that autocast converts to bf16; other floating point inputs become fp32
//   kOutputs        tensors that come out, of which the first kDifferentiable have gradients
//   kSettings       schema of all other arguments, and Settings, a tuple of their types
//   allocate        checks inputs and settings, and makes the outputs (on the device of the inputs)
//   forward         fills allocated outputs, and appends what the backward pass needs if `record` says so
//   backward        gradients of the inputs in `wanted`; others undefined. The gradient of the first output is given,
//                   unless that output is not kept (kBackwardIgnoresOutputs, forget_unread): then it may be undefined
//   forget_unread   optional: takes what backward does not read out of the inputs and outputs that are saved for it
//
// From it come two more ops, raffia::_<kName>_forward and raffia::_<kName>_backward, with kernels for CPU and Meta. The public
// op is a composite of both: dispatch of devices, profiles and traces see the two. Steps have no gradients: an op without
// backward, kDifferentiable and kOutputs.
#ifndef RAFFIA_TORCH_OPS_DIFFERENTIABLE_H_
#define RAFFIA_TORCH_OPS_DIFFERENTIABLE_H_

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "torch/libtorch.h"
#include "torch/ops/tensors.h"

namespace raffia::internal::ops {

using OptionalTensors = c10::List<OptionalTensor>;

OptionalTensors to_list(at::ArrayRef<Tensor> tensors);
Tensors to_tensors(const OptionalTensors& list);

// Under autocast: inputs of `low` in its type, others in fp32. Doubles, integers and masks are not changed.
void apply_autocast(Tensors& inputs, uint64_t low);

// Which of these require gradients, as bits; 0 if gradients are off.
int64_t wanted_gradients(at::ArrayRef<Tensor> inputs);

// Marks gradients computed from `inputs`: differentiating them again throws.
void refuse_second_derivatives(const char* op, at::ArrayRef<Tensor> inputs, Tensors& gradients);

// Steps have no gradients: throws if an input requires them and they are on.
void refuse_gradients(const char* op, at::ArrayRef<Tensor> inputs);

// The op of this name and type, for calls through the dispatcher.
template <class Signature>
auto handle(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// The inputs that have gradients, by number.
class Wanted {
 public:
  explicit Wanted(int64_t bits) : bits_(bits) {}
  bool operator[](size_t input) const { return (bits_ >> input & 1) != 0; }

 private:
  int64_t bits_;
};

template <class Op, class Settings = typename Op::Settings>
struct Kernels;

template <class Op, class... Settings>
struct Kernels<Op, std::tuple<Settings...>> {
  static Tensors forward(const OptionalTensors& inputs, bool record, Settings... settings) {
    const Tensors tensors = to_tensors(inputs);
    Tensors outputs = Op::allocate(tensors, settings...);
    Op::forward(tensors, record, outputs, settings...);
    return outputs;
  }
  static Tensors forward_meta(const OptionalTensors& inputs, bool, Settings... settings) {
    return Op::allocate(to_tensors(inputs), settings...);
  }
  static Tensors backward(const OptionalTensors& inputs, const OptionalTensors& outputs, const OptionalTensors& gradients,
                          int64_t wanted, Settings... settings) {
    return Op::backward(to_tensors(inputs), to_tensors(outputs), to_tensors(gradients), Wanted(wanted), settings...);
  }
  static Tensors backward_meta(const OptionalTensors& inputs, const OptionalTensors&, const OptionalTensors&, int64_t wanted,
                               Settings...) {
    Tensors result;
    for (const Tensor& input : to_tensors(inputs)) result.push_back(empty_if(Wanted(wanted)[result.size()], input));
    return result;
  }

  static Tensors call_forward(at::ArrayRef<Tensor> inputs, bool record, const std::tuple<Settings...>& settings) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = handle<decltype(forward)>(fmt::format("raffia::_{}_forward", Op::kName).c_str());
    return std::apply([&](const Settings&... each) { return op.call(to_list(inputs), record, each...); }, settings);
  }
  static Tensors call_backward(at::ArrayRef<Tensor> inputs, at::ArrayRef<Tensor> outputs, at::ArrayRef<Tensor> gradients,
                               int64_t wanted, const std::tuple<Settings...>& settings) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = handle<decltype(backward)>(fmt::format("raffia::_{}_backward", Op::kName).c_str());
    const auto call = [&](const Settings&... each) {
      return op.call(to_list(inputs), to_list(outputs), to_list(gradients), wanted, each...);
    };
    return std::apply(call, settings);
  }

  // Behind the other arguments of a schema.
  static std::string settings() { return *Op::kSettings == '\0' ? "" : fmt::format(", {}", Op::kSettings); }

  static void define_forward(torch::Library& library) {
    const std::string name = fmt::format("_{}_forward", Op::kName);
    library.def(fmt::format("{}(Tensor?[] inputs, bool record{}) -> Tensor[]", name, settings()).c_str());
    library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::CPU, &forward));
    library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Meta, &forward_meta));
  }
  static void define(torch::Library& library) {
    define_forward(library);
    const std::string name = fmt::format("_{}_backward", Op::kName);
    library.def(
        fmt::format("{}(Tensor?[] inputs, Tensor?[] outputs, Tensor?[] gradients, int wanted{}) -> Tensor[]", name, settings())
            .c_str());
    library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::CPU, &backward));
    library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Meta, &backward_meta));
  }
};

template <class Op>
struct Differentiable : torch::autograd::Function<Differentiable<Op>> {
  using Context = torch::autograd::AutogradContext;
  static constexpr size_t kArguments = 3;  // of `forward`, before the tensors

  // The settings, in a form that a context keeps.
  struct Kept : torch::CustomClassHolder {
    Kept(const typename Op::Settings& all, int64_t bits) : settings(all), wanted(bits) {}
    typename Op::Settings settings;
    int64_t wanted;
  };

  // The tensors are passed a second time, one by one: autograd takes gradients only for such arguments.
  template <class... Each>
  static Tensors forward(Context* context, const Tensors* inputs, const typename Op::Settings* settings, int64_t wanted,
                         const Each&...) {
    Tensors outputs = Kernels<Op>::call_forward(*inputs, true, *settings);
    Tensors saved = *inputs;
    saved.insert(saved.end(), outputs.begin(), outputs.end());
    // What backward() does not read is not kept, and callers may change it.
    if constexpr (requires { Op::kBackwardIgnoresOutputs; }) std::fill_n(saved.begin() + Op::kInputs, Op::kOutputs, Tensor());
    if constexpr (requires { Op::forget_unread(saved); }) Op::forget_unread(saved);
    context->save_for_backward(std::move(saved));
    context->saved_data["kept"] = c10::IValue::make_capsule(c10::make_intrusive<Kept>(*settings, wanted));
    context->set_materialize_grads(false);
    outputs.resize(Op::kOutputs);
    context->mark_non_differentiable({outputs.begin() + Op::kDifferentiable, outputs.end()});
    return outputs;
  }

  static Tensors backward(Context* context, Tensors gradients) {
    Tensors result(kArguments + Op::kInputs);
    const auto defined = [](const Tensor& gradient) { return gradient.defined(); };
    if (std::none_of(gradients.begin(), gradients.end(), defined)) return result;
    const Tensors saved = context->get_saved_variables();
    const at::ArrayRef<Tensor> inputs = at::ArrayRef<Tensor>(saved).slice(0, Op::kInputs);
    const at::ArrayRef<Tensor> outputs = at::ArrayRef<Tensor>(saved).slice(Op::kInputs);
    const auto kept = c10::static_intrusive_pointer_cast<Kept>(context->saved_data["kept"].toCapsule());
    if (!gradients[0].defined() && outputs[0].defined()) gradients[0] = at::zeros_like(outputs[0]);
    Tensors found = Kernels<Op>::call_backward(inputs, outputs, gradients, kept->wanted, kept->settings);
    if (at::GradMode::is_enabled()) {
      gradients.insert(gradients.end(), saved.begin(), saved.end());
      refuse_second_derivatives(Op::kName, gradients, found);
    }
    std::move(found.begin(), found.end(), result.begin() + kArguments);
    return result;
  }
};

// The backward kernel of double inputs: that of fp32, after a forward pass in fp32.
template <class Op, class... Settings>
Tensors backward_as_float(const Tensors& inputs, const Tensors& gradients, Wanted wanted, const Settings&... settings) {
  const auto rounded = [](const Tensors& tensors) {
    Tensors result;
    for (const Tensor& tensor : tensors) result.push_back(to_float(tensor));
    return result;
  };
  const Tensors floats = rounded(inputs);
  Tensors outputs = Op::allocate(floats, settings...);
  Op::forward(floats, true, outputs, settings...);
  Tensors result = Op::backward(floats, outputs, rounded(gradients), wanted, settings...);
  for (size_t i = 0; i < result.size(); ++i) result[i] = to_type_of(result[i], inputs[i]);
  return result;
}

// The implementation of the public op.
template <class Op>
Tensors call(Tensors inputs, const typename Op::Settings& settings) {
  apply_autocast(inputs, Op::kLow);
  const int64_t wanted = wanted_gradients(inputs);
  if (wanted == 0) return Kernels<Op>::call_forward(inputs, false, settings);
  const auto apply = [&]<size_t... I>(std::index_sequence<I...>) {
    return Differentiable<Op>::apply(&std::as_const(inputs), &settings, wanted, or_none(inputs[I])...);
  };
  return apply(std::make_index_sequence<Op::kInputs>());
}

// The implementation of the public op of a step: it has only a forward kernel.
template <class Op>
Tensors call_step(Tensors inputs, const typename Op::Settings& settings) {
  apply_autocast(inputs, Op::kLow);
  refuse_gradients(Op::kName, inputs);
  return Kernels<Op>::call_forward(inputs, false, settings);
}

}  // namespace raffia::internal::ops

#endif  // RAFFIA_TORCH_OPS_DIFFERENTIABLE_H_
