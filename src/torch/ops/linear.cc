// torch.ops.raffia.rfa, causal_rfa, rfa_gate and their steps: linear attention.
#include "raffia/reference.h"
#include "raffia/torch/ops.h"
#include "torch/ops/differentiable.h"
#include "torch/ops/executor.h"
#include "torch/ops/map.h"
#include "torch/ops/state.h"

namespace raffia::ops {

using namespace internal;
using namespace internal::ops;
namespace {

enum class Form { whole, causal, gated };

template <Form kForm>
struct LinearOp {
  static constexpr const char* kName = kForm == Form::whole ? "rfa" : kForm == Form::causal ? "causal_rfa" : "rfa_gate";
  static constexpr bool kCausal = kForm != Form::whole;
  enum Input : size_t { q, k, v, gate, state, valid, weight, sigma, bias, cu_seqlens, cu_seqlens_k, kInputs };
  // Outputs: out, state (causal ones), report.
  static constexpr size_t kOutputs = kCausal ? 3 : 2, kDifferentiable = kCausal ? 2 : 1;
  static constexpr uint64_t kLow = 1 << q | 1 << k | 1 << v;
  static constexpr const char* kSettings = "str map, float? eps";
  using Settings = std::tuple<std::string, c10::optional<double>>;

  static Map map_of(const Tensors& in, const std::string& map) {
    return {.kind = parse_map_kind(map), .weight = in[weight], .sigma = in[sigma], .bias = in[bias]};
  }

  static StateShape state_shape(const Tensors& in, const Map& map) {
    const int64_t sequences = in[cu_seqlens].defined() ? in[cu_seqlens].size(0) - 1 : in[k].size(0);
    return {sequences, in[k].size(-2), features_of(map, in[k].size(-1)), in[v].size(-1)};
  }

  static raffia::AttentionOptions options_of(const Tensors& in, c10::optional<double> eps) {
    return {.eps = as_float(eps),
            .layout = layout_of(kName, in[q], in[k], in[valid], in[cu_seqlens], in[cu_seqlens_k]),
            .run = {.executor = &torch_executor()}};
  }

  static Tensors allocate(const Tensors& in, const std::string& kind, c10::optional<double> eps) {
    return allocate_for(kName, false, in, kind, eps);
  }

  // `name`: the op, or its step, without time axis.
  static Tensors allocate_for(const char* name, bool step, const Tensors& in, const std::string& kind,
                              c10::optional<double> eps) {
    QkvShape shape(name, in[q], in[k], in[v], in[valid], step);
    shape.pack(name, in[cu_seqlens], in[cu_seqlens_k]);
    const Map map = map_of(in, kind);
    require_map(name, map, shape.groups, shape.dim);
    require(shape.value_dim >= 1, "{}: v has dim 0, expected at least 1", name);
    require(!eps || *eps >= 0, "{}: eps is {}, expected at least 0", name, eps.value_or(0));
    if (kForm == Form::gated) {
      require_shape(name, "gate_logits", in[gate], shape.sizes(shape.keys, {shape.groups}), "batch, length and heads of k");
      require_precise(name, "gate_logits", in[gate], in[q], true);
    }
    Tensors outputs{at::empty(shape.sizes(shape.queries, {shape.heads, shape.value_dim}), in[q].options())};
    if (kCausal) {
      require(shape.queries == shape.keys, "{}: {} queries and {} keys, expected the same number", name, shape.queries,
              shape.keys);
      const at::ScalarType type = is_double(in[q]) ? at::kDouble : at::kFloat;
      const std::vector<int64_t> sizes = tensor_shape(state_shape(in, map));
      if (in[state].defined()) {
        require_shape(name, "state", in[state], sizes, "sequences and heads of k, F * (V + 1) + 2");
        require_type(name, "state", in[state], {type});
      }
      outputs.push_back(at::empty(sizes, in[q].options().dtype(type)));
    }
    outputs.push_back(at::empty({2}, in[q].options().dtype(at::kLong)));
    return outputs;
  }

  static void forward(const Tensors& in, bool record, Tensors& outputs, const std::string& kind, c10::optional<double> eps) {
    const Map map = map_of(in, kind);
    const raffia::AttentionOptions options = options_of(in, eps);
    if (is_double(in[q])) return forward_double(in, outputs, map, options);

    const FeatureMap made = make_map(map, in[k].size(-2), in[k].size(-1));
    const View4 vq = view<4>(in[q]), vk = view<4>(in[k]), vv = view<4>(in[v]);
    const MutView4 out = mutable_view<4>(outputs[0]);
    Report report;
    std::span<float> floats;
    if (record) {
      outputs.push_back(at::empty({record_size(vq, vk, vv, made, options)}, at::kFloat));
      floats = floats_of(outputs.back());
    }
    if constexpr (kCausal) {
      State memory = load_state(in[state], state_shape(in, map));
      report = kForm == Form::gated ? gated_attention(vq, vk, vv, view<3>(in[gate]), made, memory, out, options, floats)
                                    : causal_attention(vq, vk, vv, made, memory, out, options, floats);
      outputs[1] = store_state(memory);
    } else {
      report = rfa_attention(vq, vk, vv, made, out, options, floats);
    }
    outputs[kOutputs - 1] = report_tensor(report);
  }

  static void forward_double(const Tensors& in, Tensors& outputs, const Map& map, const raffia::AttentionOptions& options) {
    const reference::Map made = make_reference_map(map, in[k].size(-2), in[k].size(-1));
    const View4 vq = view<4>(in[q]), vk = view<4>(in[k]), vv = view<4>(in[v]);
    const MutView4 out = mutable_view<4>(outputs[0]);
    Report report;
    if constexpr (kCausal) {
      reference::Memory memory = load_memory(in[state], state_shape(in, map));
      report = kForm == Form::gated ? reference::gated_attention(vq, vk, vv, view<3>(in[gate]), made, memory, out, options)
                                    : reference::causal_attention(vq, vk, vv, made, memory, out, options);
      outputs[1] = store_memory(memory);
    } else {
      report = reference::rfa_attention(vq, vk, vv, made, out, options);
    }
    outputs[kOutputs - 1] = report_tensor(report);
  }

  static Tensors backward(const Tensors& in, const Tensors& outputs, const Tensors& gradients, Wanted wanted,
                          const std::string& kind, c10::optional<double> eps) {
    if (is_double(in[q])) return backward_as_float<LinearOp>(in, gradients, wanted, kind, eps);
    const Map map = map_of(in, kind), dmap = zero_gradient(map, wanted[weight], wanted[sigma], wanted[bias]);
    const FeatureMap made = make_map(map, in[k].size(-2), in[k].size(-1));
    const View4 vq = view<4>(in[q]), vk = view<4>(in[k]), vv = view<4>(in[v]);
    const View4 dout = view<4>(gradients[0]);
    Tensors result(kInputs);
    for (size_t i : {q, k, v, gate}) result[i] = empty_if(wanted[i], in[i]);
    AttentionGradients wants{.q = mutable_view<4>(result[q]),
                             .k = mutable_view<4>(result[k]),
                             .v = mutable_view<4>(result[v]),
                             .gate_logits = mutable_view<3>(result[gate]),
                             .map = views_of(dmap)};
    const raffia::AttentionOptions options = options_of(in, eps);
    const std::span<const float> record = floats_of(outputs[kOutputs]);
    if constexpr (kCausal) {
      const Tensor& dstate = gradients[1];
      State dmemory = load_state(dstate, state_shape(in, map));
      if (dstate.defined() || wanted[state]) wants.state = &dmemory;
      if (kForm == Form::gated) {
        gated_attention_backward(vq, vk, vv, view<3>(in[gate]), made, view<4>(outputs[0]), record, dout, wants, options);
      } else {
        causal_attention_backward(vq, vk, vv, made, view<4>(outputs[0]), record, dout, wants, options);
      }
      if (wanted[state]) result[state] = store_state(dmemory);
    } else {
      rfa_attention_backward(vq, vk, vv, made, view<4>(outputs[0]), record, dout, wants, options);
    }
    result[weight] = to_type_of(dmap.weight, in[weight]);
    result[sigma] = to_type_of(dmap.sigma, in[sigma]);
    result[bias] = to_type_of(dmap.bias, in[bias]);
    return result;
  }
};

template <Form kForm>
struct LinearStepOp : LinearOp<kForm> {
  using Whole = LinearOp<kForm>;
  static constexpr const char* kName = kForm == Form::causal ? "causal_rfa_step" : "rfa_gate_step";

  static Tensors allocate(const Tensors& in, const std::string& kind, c10::optional<double> eps) {
    return Whole::allocate_for(kName, true, in, kind, eps);
  }

  static void forward(const Tensors& in, bool, Tensors& outputs, const std::string& kind, c10::optional<double> eps) {
    const Map map = Whole::map_of(in, kind);
    const FeatureMap made = make_map(map, in[Whole::k].size(1), in[Whole::k].size(2));
    const View3 q = view<3>(in[Whole::q]), k = view<3>(in[Whole::k]), v = view<3>(in[Whole::v]);
    const MutView3 out = mutable_view<3>(outputs[0]);
    const raffia::AttentionOptions options{.eps = as_float(eps), .run = {.executor = &torch_executor()}};
    State memory = load_state(in[Whole::state], Whole::state_shape(in, map));
    Report report;
    if constexpr (kForm == Form::gated) {
      report = gated_step(q, k, v, view<2>(in[Whole::gate]), made, memory, out, options);
    } else {
      report = causal_step(q, k, v, made, memory, out, options);
    }
    outputs[1] = store_state(memory);
    outputs[2] = report_tensor(report);
  }
};

using RfaOp = LinearOp<Form::whole>;
using CausalRfaOp = LinearOp<Form::causal>;
using RfaGateOp = LinearOp<Form::gated>;

std::tuple<Tensor, Tensor> rfa_public(const Tensor& q, const Tensor& k, const Tensor& v, std::string map,
                                      const OptionalTensor& weight, const OptionalTensor& sigma, const OptionalTensor& bias,
                                      const OptionalTensor& valid, c10::optional<double> eps, const OptionalTensor& cu_seqlens,
                                      const OptionalTensor& cu_seqlens_k) {
  const Tensors outputs = call<RfaOp>({q,
                                       k,
                                       v,
                                       {},
                                       {},
                                       or_undefined(valid),
                                       or_undefined(weight),
                                       or_undefined(sigma),
                                       or_undefined(bias),
                                       contiguous_or_undefined(cu_seqlens),
                                       contiguous_or_undefined(cu_seqlens_k)},
                                      {map, eps});
  return {outputs[0], outputs[1]};
}

using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;

ThreeTensors causal_rfa_public(const Tensor& q, const Tensor& k, const Tensor& v, std::string map, const OptionalTensor& weight,
                               const OptionalTensor& sigma, const OptionalTensor& bias, const OptionalTensor& state,
                               const OptionalTensor& valid, c10::optional<double> eps, const OptionalTensor& cu_seqlens) {
  const Tensors outputs = call<CausalRfaOp>({q,
                                             k,
                                             v,
                                             {},
                                             or_undefined(state),
                                             or_undefined(valid),
                                             or_undefined(weight),
                                             or_undefined(sigma),
                                             or_undefined(bias),
                                             contiguous_or_undefined(cu_seqlens),
                                             {}},
                                            {map, eps});
  return {outputs[0], outputs[1], outputs[2]};
}

ThreeTensors rfa_gate_public(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate_logits, std::string map,
                             const OptionalTensor& weight, const OptionalTensor& sigma, const OptionalTensor& bias,
                             const OptionalTensor& state, const OptionalTensor& valid, c10::optional<double> eps,
                             const OptionalTensor& cu_seqlens) {
  const Tensors outputs = call<RfaGateOp>({q,
                                           k,
                                           v,
                                           gate_logits,
                                           or_undefined(state),
                                           or_undefined(valid),
                                           or_undefined(weight),
                                           or_undefined(sigma),
                                           or_undefined(bias),
                                           contiguous_or_undefined(cu_seqlens),
                                           {}},
                                          {map, eps});
  return {outputs[0], outputs[1], outputs[2]};
}

ThreeTensors causal_rfa_step_public(const Tensor& q, const Tensor& k, const Tensor& v, std::string map,
                                    const OptionalTensor& weight, const OptionalTensor& sigma, const OptionalTensor& bias,
                                    const OptionalTensor& state, c10::optional<double> eps) {
  const Tensors outputs = call_step<LinearStepOp<Form::causal>>(
      {q, k, v, {}, or_undefined(state), {}, or_undefined(weight), or_undefined(sigma), or_undefined(bias), {}, {}}, {map, eps});
  return {outputs[0], outputs[1], outputs[2]};
}

ThreeTensors rfa_gate_step_public(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate_logits, std::string map,
                                  const OptionalTensor& weight, const OptionalTensor& sigma, const OptionalTensor& bias,
                                  const OptionalTensor& state, c10::optional<double> eps) {
  const Tensors outputs = call_step<LinearStepOp<Form::gated>>(
      {q, k, v, gate_logits, or_undefined(state), {}, or_undefined(weight), or_undefined(sigma), or_undefined(bias), {}, {}},
      {map, eps});
  return {outputs[0], outputs[1], outputs[2]};
}

TORCH_LIBRARY_FRAGMENT(raffia, library) {
  Kernels<LinearStepOp<Form::causal>>::define_forward(library);
  Kernels<LinearStepOp<Form::gated>>::define_forward(library);
  library.def(
      "causal_rfa_step(Tensor q, Tensor k, Tensor v, *, str map=\"trig\", Tensor? weight=None, Tensor? sigma=None, "
      "Tensor? bias=None, Tensor? state=None, float? eps=None) -> (Tensor out, Tensor state_out, Tensor report)",
      &causal_rfa_step_public);
  library.def(
      "rfa_gate_step(Tensor q, Tensor k, Tensor v, Tensor gate_logits, *, str map=\"trig\", Tensor? weight=None, "
      "Tensor? sigma=None, Tensor? bias=None, Tensor? state=None, float? eps=None) "
      "-> (Tensor out, Tensor state_out, Tensor report)",
      &rfa_gate_step_public);
  Kernels<RfaOp>::define(library);
  Kernels<CausalRfaOp>::define(library);
  Kernels<RfaGateOp>::define(library);
  library.def(
      "rfa(Tensor q, Tensor k, Tensor v, *, str map=\"trig\", Tensor? weight=None, Tensor? sigma=None, Tensor? bias=None, "
      "Tensor? valid=None, float? eps=None, Tensor? cu_seqlens=None, Tensor? cu_seqlens_k=None) -> (Tensor out, Tensor report)",
      &rfa_public);
  library.def(
      "causal_rfa(Tensor q, Tensor k, Tensor v, *, str map=\"trig\", Tensor? weight=None, Tensor? sigma=None, "
      "Tensor? bias=None, Tensor? state=None, Tensor? valid=None, float? eps=None, Tensor? cu_seqlens=None) "
      "-> (Tensor out, Tensor state_out, Tensor report)",
      &causal_rfa_public);
  library.def(
      "rfa_gate(Tensor q, Tensor k, Tensor v, Tensor gate_logits, *, str map=\"trig\", Tensor? weight=None, "
      "Tensor? sigma=None, Tensor? bias=None, Tensor? state=None, Tensor? valid=None, float? eps=None, Tensor? cu_seqlens=None) "
      "-> (Tensor out, Tensor state_out, Tensor report)",
      &rfa_gate_public);
}

}  // namespace

Read rfa(const Tensor& q, const Tensor& k, const Tensor& v, const Map& map, const Tensor& valid, std::optional<double> eps,
         const Tensor& cu_seqlens, const Tensor& cu_seqlens_k) {
  static const auto op = handle<decltype(rfa_public)>("raffia::rfa");
  auto [out, report] = op.call(q, k, v, std::string(name_of(map.kind)), or_none(map.weight), or_none(map.sigma),
                               or_none(map.bias), or_none(valid), as_double(eps), or_none(cu_seqlens), or_none(cu_seqlens_k));
  return {out, report};
}

Carried causal_rfa(const Tensor& q, const Tensor& k, const Tensor& v, const Map& map, const Tensor& state, const Tensor& valid,
                   std::optional<double> eps, const Tensor& cu_seqlens) {
  static const auto op = handle<decltype(causal_rfa_public)>("raffia::causal_rfa");
  auto [out, next, report] = op.call(q, k, v, std::string(name_of(map.kind)), or_none(map.weight), or_none(map.sigma),
                                     or_none(map.bias), or_none(state), or_none(valid), as_double(eps), or_none(cu_seqlens));
  return {out, next, report};
}

Carried rfa_gate(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate_logits, const Map& map,
                 const Tensor& state, const Tensor& valid, std::optional<double> eps, const Tensor& cu_seqlens) {
  static const auto op = handle<decltype(rfa_gate_public)>("raffia::rfa_gate");
  auto [out, next, report] =
      op.call(q, k, v, gate_logits, std::string(name_of(map.kind)), or_none(map.weight), or_none(map.sigma), or_none(map.bias),
              or_none(state), or_none(valid), as_double(eps), or_none(cu_seqlens));
  return {out, next, report};
}

Carried causal_rfa_step(const Tensor& q, const Tensor& k, const Tensor& v, const Map& map, const Tensor& state,
                        std::optional<double> eps) {
  static const auto op = handle<decltype(causal_rfa_step_public)>("raffia::causal_rfa_step");
  auto [out, next, report] = op.call(q, k, v, std::string(name_of(map.kind)), or_none(map.weight), or_none(map.sigma),
                                     or_none(map.bias), or_none(state), as_double(eps));
  return {out, next, report};
}

Carried rfa_gate_step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate_logits, const Map& map,
                      const Tensor& state, std::optional<double> eps) {
  static const auto op = handle<decltype(rfa_gate_step_public)>("raffia::rfa_gate_step");
  auto [out, next, report] = op.call(q, k, v, gate_logits, std::string(name_of(map.kind)), or_none(map.weight),
                                     or_none(map.sigma), or_none(map.bias), or_none(state), as_double(eps));
  return {out, next, report};
}

}  // namespace raffia::ops
