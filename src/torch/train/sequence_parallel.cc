#include "torch/train/sequence_parallel.h"

#include <torch/autograd.h>

#include "core/check.h"
#include "torch/ops/executor.h"
#include "torch/ops/map.h"
#include "torch/ops/state.h"

namespace raffia::internal::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// States [.., F (V + 1) + 2]: sums and normaliser decay; the mass decays with them; the logarithm of the decay comes last.
Tensor memory_of(const Tensor& state) { return state.narrow(-1, 0, state.size(-1) - 1); }
Tensor log_decay_of(const Tensor& state) { return state.narrow(-1, state.size(-1) - 1, 1); }

// The state after the tokens of `earlier` and then those of `later`, where `later` was folded from empty memory.
Tensor compose(const Tensor& earlier, const Tensor& later) {
  const Tensor decay = log_decay_of(later).exp();
  return at::cat({memory_of(earlier) * decay + memory_of(later), log_decay_of(earlier) + log_decay_of(later)}, -1);
}

// The state after these tokens, from empty memory.
Tensor fold(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate_logits, const ops::Map& map) {
  if (ops::is_double(k)) return ops::rfa_gate(q, k, v, gate_logits, map).state;
  const FeatureMap features = ops::make_map(map, k.size(2), k.size(3));
  State state(features, {.batch = k.size(0), .value_dim = v.size(3)});
  fold_keys(ops::view<4>(k), ops::view<4>(v), ops::view<3>(gate_logits), features, state,
            {.run = {.executor = &ops::torch_executor()}});
  return ops::store_state(state);
}

// The end of the slice before. Its gradient is sent back to that rank.
class TailBefore : public Function<TailBefore> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& tail, Group* group) {
    ctx->saved_data["group"] = reinterpret_cast<int64_t>(group);
    const Tensor tails = group->all_gather(tail);
    return group->first() ? at::zeros_like(tail) : tails[group->rank() - 1].clone();
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    Group* group = reinterpret_cast<Group*>(ctx->saved_data["group"].toInt());
    const Tensor all = group->all_gather(gradients[0]);
    const bool last = group->rank() + 1 == group->size();
    return {last ? at::zeros_like(gradients[0]) : all[group->rank() + 1].clone(), Tensor()};
  }
};

// The op over this rank's slice as a separate graph, which the backward pass runs through once or twice.
struct Slice : torch::CustomClassHolder {
  Group* group = nullptr;
  variable_list inputs;  // q, k, v, gate_logits, weight, sigma, bias: leaves, or undefined
  Tensor initial;        // state before the slice: a leaf
  ops::Carried carried;
  Tensor log_decays;  // [size, B, G, 1]: of the slices of all ranks

  // Gradients of the inputs, and of the initial state where asked for, from those of the output and of the state after the slice.
  struct Gradients {
    variable_list inputs;
    Tensor initial;
  };
  Gradients backward(const Tensor& dout, const Tensor& dlast, bool of_inputs, bool of_initial) const {
    variable_list roots{carried.out}, root_gradients{dout}, leaves;
    if (dlast.defined()) {
      roots.push_back(carried.state);
      root_gradients.push_back(dlast);
    }
    Gradients result{variable_list(inputs.size()), {}};
    const auto wanted = [&](const Tensor& input) { return of_inputs && input.defined() && input.requires_grad(); };
    for (const Tensor& input : inputs) {
      if (wanted(input)) leaves.push_back(input);
    }
    if (of_initial) leaves.push_back(initial);
    const variable_list found = torch::autograd::grad(roots, leaves, root_gradients, /*retain_graph=*/true,
                                                      /*create_graph=*/false, /*allow_unused=*/true);
    size_t next = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (wanted(inputs[i])) result.inputs[i] = found[next++];
    }
    if (of_initial) result.initial = found[next].defined() ? found[next] : at::zeros_like(initial);
    return result;
  }
};

class SplitGate : public Function<SplitGate> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate_logits,
                               const c10::optional<Tensor>& weight, const c10::optional<Tensor>& sigma,
                               const c10::optional<Tensor>& bias, MapKind kind, Group* group, bool differentiable) {
    auto slice = c10::make_intrusive<Slice>();
    slice->group = group;
    for (const Tensor& input :
         {q, k, v, gate_logits, weight.value_or(Tensor()), sigma.value_or(Tensor()), bias.value_or(Tensor())}) {
      slice->inputs.push_back(input.defined() ? input.detach().requires_grad_(differentiable && input.requires_grad()) : input);
    }
    const variable_list& in = slice->inputs;
    const ops::Map map{.kind = kind, .weight = in[4], .sigma = in[5], .bias = in[6]};

    // Grad mode is off here.
    const Tensor states = group->all_gather(fold(in[0], in[1], in[2], in[3], map));  // [size, B, G, F (V + 1) + 2]
    slice->log_decays = log_decay_of(states);
    Tensor initial = at::zeros_like(states[0]);
    for (int64_t rank = 0; rank < group->rank(); ++rank) initial = compose(initial, states[rank]);
    Tensor whole = initial;
    for (int64_t rank = group->rank(); rank < group->size(); ++rank) whole = compose(whole, states[rank]);

    slice->initial = initial.requires_grad_(differentiable && !group->first());
    {
      const at::AutoGradMode with_graph(differentiable);
      slice->carried = ops::rfa_gate(in[0], in[1], in[2], in[3], map, slice->initial);
    }
    const Tensor out = slice->carried.out.detach(), report = slice->carried.report;
    if (differentiable) ctx->saved_data["slice"] = c10::IValue::make_capsule(slice);
    ctx->mark_non_differentiable({whole, report});
    return {out, whole, report};
  }

  // With own(r) the gradient of the state before slice r that its own outputs cause, and dS(r) that of the state after it:
  //   dS(r) = own(r + 1) + decay(r + 1) dS(r + 1),   nothing after the last slice.
  // The first rank needs no own part, and that of the last comes with its gradients: those two go through their slice once.
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto slice = c10::static_intrusive_pointer_cast<Slice>(ctx->saved_data["slice"].toCapsule());
    Group* group = slice->group;
    const int64_t rank = group->rank(), last = group->size() - 1;
    const Tensor& dout = gradients[0];

    Slice::Gradients result;
    if (rank > 0) result = slice->backward(dout, {}, /*of_inputs=*/rank == last, /*of_initial=*/true);
    const Tensor own = group->all_gather(rank > 0 ? result.initial : at::zeros_like(slice->initial));
    if (rank < last) {
      Tensor dlast = at::zeros_like(slice->initial);
      for (int64_t later = last; later > rank; --later) dlast = own[later] + slice->log_decays[later].exp() * dlast;
      result = slice->backward(dout, dlast, /*of_inputs=*/true, /*of_initial=*/false);
    } else if (rank == 0) {
      result = slice->backward(dout, {}, /*of_inputs=*/true, /*of_initial=*/false);
    }
    variable_list all = result.inputs;
    all.resize(all.size() + 3);  // kind, group, differentiable
    return all;
  }
};

}  // namespace

SequenceParallel::SequenceParallel(Group& group, int64_t slice_length) : group_(group), slice_length_(slice_length) {
  require(slice_length >= 1, "SequenceParallel: slice_length is {}, expected 1 or more", slice_length);
}

Tensor SequenceParallel::tail_before(const Tensor& tail) { return TailBefore::apply(tail, &group_); }

ops::Carried SequenceParallel::gated(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate_logits,
                                     const ops::Map& map) {
  require(q.dim() == 4 && q.size(1) == slice_length_, "SequenceParallel: q has {} tokens, expected {} (the length of a slice)",
          q.dim() == 4 ? q.size(1) : 0, slice_length_);
  bool differentiable = false;
  for (const Tensor& input : {q, k, v, gate_logits, map.weight, map.sigma, map.bias}) {
    differentiable |= input.defined() && input.requires_grad();
  }
  differentiable &= at::GradMode::is_enabled();
  const auto present = [](const Tensor& tensor) { return tensor.defined() ? c10::make_optional(tensor) : c10::nullopt; };
  const variable_list results = SplitGate::apply(q, k, v, gate_logits, present(map.weight), present(map.sigma), present(map.bias),
                                                 map.kind, &group_, differentiable);
  return {.out = results[0], .state = results[1], .report = results[2]};
}

}  // namespace raffia::internal::train
