// torch.ops.raffia.hybrid and hybrid_step.
#include "raffia/reference_sampled.h"
#include "raffia/torch/ops.h"
#include "torch/ops/differentiable.h"
#include "torch/ops/executor.h"
#include "torch/ops/map.h"
#include "torch/ops/window_state.h"

namespace raffia::ops {

using namespace internal;
using namespace internal::ops;
namespace {

struct HybridOp {
  static constexpr const char* kName = "hybrid";
  enum Input : size_t { q, k, v, gate, log_scale, q_far, k_far, state, valid, weight, sigma, bias, cu_seqlens, kInputs };
  static constexpr size_t kOutputs = 3, kDifferentiable = 1;  // out, state, report
  static constexpr uint64_t kLow = 1 << q | 1 << k | 1 << v | 1 << q_far | 1 << k_far;
  static constexpr const char* kSettings = "str map, int window, float? scale";
  using Settings = std::tuple<std::string, int64_t, c10::optional<double>>;

  static Map map_of(const Tensors& in, const std::string& map) {
    return {.kind = parse_map_kind(map), .weight = in[weight], .sigma = in[sigma], .bias = in[bias]};
  }

  static FeatureMap made_map(const Tensors& in, const std::string& kind) {
    const Tensor& key = in[k_far].defined() ? in[k_far] : in[k];
    return make_map(map_of(in, kind), key.size(-2), key.size(-1));
  }

  static HybridOptions options_of(const Tensors& in, int64_t window, c10::optional<double> scale) {
    return {.window = window,
            .scale = as_float(scale),
            .layout = layout_of(kName, in[q], in[k], in[valid], in[cu_seqlens]),
            .run = {.executor = &torch_executor()}};
  }

  // Of [B, T, ..] tensors.
  static HybridInputs views_of(const Tensors& in) {
    return {.q = view<4>(in[q]),
            .k = view<4>(in[k]),
            .v = view<4>(in[v]),
            .gate_logits = view<3>(in[gate]),
            .log_scale = view<1>(in[log_scale]),
            .q_far = optional_view<4>(in[q_far]),
            .k_far = optional_view<4>(in[k_far])};
  }

  static WindowStateShape state_shape(const Tensors& in, const Map& map, int64_t window, c10::optional<double> scale) {
    const bool has_far = in[k_far].defined();
    const int64_t far_dim = has_far ? in[k_far].size(-1) : in[k].size(-1);
    // Of the map, the shape takes sizes alone: those of one without numbers.
    const FeatureMap sizes = FeatureMap::identity(features_of(map, far_dim), in[k].size(-2));
    const int64_t sequences = in[cu_seqlens].defined() ? in[cu_seqlens].size(0) - 1 : in[k].size(0);
    WindowStateShape shape = hybrid_state_shape(sequences, in[k].size(-2), in[k].size(-1), in[v].size(-1), sizes, has_far,
                                                {.window = window, .scale = as_float(scale)});
    if (has_far) shape.far_dim = far_dim;
    return shape;
  }

  // `name`: the op, or its step, without time axis.
  static Tensors allocate_for(const char* name, bool step, const Tensors& in, const std::string& kind, int64_t window,
                              c10::optional<double> scale) {
    QkvShape shape(name, in[q], in[k], in[v], in[valid], step);
    shape.pack(name, in[cu_seqlens]);
    require(shape.queries == shape.keys, "{}: {} queries and {} keys, expected the same number", name, shape.queries, shape.keys);
    require(window >= 1, "{}: window is {}, expected at least 1", name, window);
    require_shape(name, "gate_logits", in[gate], shape.sizes(shape.keys, {shape.groups}), "batch, length and heads of k");
    require_precise(name, "gate_logits", in[gate], in[q], true);
    require_shape(name, "log_scale", in[log_scale], {shape.heads}, "heads of q");
    require_precise(name, "log_scale", in[log_scale], in[q]);
    require(in[q_far].defined() == in[k_far].defined(), "{}: one of q_far and k_far is given, expected both or neither", name);
    int64_t far_dim = shape.dim;
    if (in[q_far].defined()) {
      far_dim = in[q_far].size(-1);
      require_shape(name, "q_far", in[q_far], shape.sizes(shape.queries, {shape.heads, far_dim}),
                    "shape of q, with any head size");
      require_shape(name, "k_far", in[k_far], shape.sizes(shape.keys, {shape.groups, far_dim}),
                    "shape of k, with the head size of q_far");
      require_type(name, "q_far", in[q_far], {in[q].scalar_type()});
      require_type(name, "k_far", in[k_far], {in[q].scalar_type()});
    }
    const Map map = map_of(in, kind);
    require_map(name, map, shape.groups, far_dim);
    const WindowStateShape of = state_shape(in, map, window, scale);
    require(!is_double(in[q]) || !in[state].defined(), "{}: double inputs start from empty memory, expected no state", name);
    require_state(name, in[state], of);
    return {at::empty(shape.sizes(shape.queries, {shape.heads, shape.value_dim}), in[q].options()),
            at::empty(tensor_shape(of), in[q].options().dtype(at::kFloat)), at::empty({2}, in[q].options().dtype(at::kLong))};
  }

  static Tensors allocate(const Tensors& in, const std::string& kind, int64_t window, c10::optional<double> scale) {
    return allocate_for(kName, false, in, kind, window, scale);
  }

  static void forward(const Tensors& in, bool record, Tensors& outputs, const std::string& kind, int64_t window,
                      c10::optional<double> scale) {
    const HybridOptions options = options_of(in, window, scale);
    if (is_double(in[q])) {  // the state is that of the fp32 op
      Tensors floats;
      for (const Tensor& each : in) floats.push_back(to_float(each));
      Tensors rounded = allocate(floats, kind, window, scale);
      forward(floats, false, rounded, kind, window, scale);
      outputs[1] = rounded[1];
      const Tensor& key = in[k_far].defined() ? in[k_far] : in[k];
      const reference::Map map = make_reference_map(map_of(in, kind), key.size(2), key.size(3));
      outputs[2] = report_tensor(reference::hybrid_attention(views_of(in), map, mutable_view<4>(outputs[0]), options));
      return;
    }
    const FeatureMap map = made_map(in, kind);
    WindowState memory = load_state(in[state], state_shape(in, map_of(in, kind), window, scale));
    const HybridInputs inputs = views_of(in);
    std::span<float> floats;
    if (record) {
      outputs.push_back(at::empty({hybrid_record_size(inputs, map, options)}, at::kFloat));
      floats = floats_of(outputs.back());
    }
    outputs[2] = report_tensor(hybrid_attention(inputs, map, memory, mutable_view<4>(outputs[0]), options, floats));
    outputs[1] = store_state(memory);
  }

  static Tensors backward(const Tensors& in, const Tensors& outputs, const Tensors& gradients, Wanted wanted,
                          const std::string& kind, int64_t window, c10::optional<double> scale) {
    if (is_double(in[q])) return backward_as_float<HybridOp>(in, gradients, wanted, kind, window, scale);
    const Map map = map_of(in, kind), dmap = zero_gradient(map, wanted[weight], wanted[sigma], wanted[bias]);
    Tensors result(kInputs);
    for (size_t i : {q, k, v, gate, q_far, k_far}) result[i] = empty_if(wanted[i], in[i]);
    result[log_scale] = zeros_if(wanted[log_scale], in[log_scale]);
    const HybridGradients wants{.q = mutable_view<4>(result[q]),
                                .k = mutable_view<4>(result[k]),
                                .v = mutable_view<4>(result[v]),
                                .gate_logits = mutable_view<3>(result[gate]),
                                .log_scale = mutable_view<1>(result[log_scale]),
                                .q_far = mutable_view<4>(result[q_far]),
                                .k_far = mutable_view<4>(result[k_far]),
                                .map = internal::ops::views_of(dmap)};
    const auto differentiate = [&](const auto&... initial) {
      hybrid_attention_backward(views_of(in), made_map(in, kind), initial..., view<4>(outputs[0]), floats_of(outputs[kOutputs]),
                                view<4>(gradients[0]), wants, options_of(in, window, scale));
    };
    if (in[state].defined()) {
      differentiate(load_state(in[state], state_shape(in, map, window, scale)));
    } else {
      differentiate();
    }
    result[weight] = to_type_of(dmap.weight, in[weight]);
    result[sigma] = to_type_of(dmap.sigma, in[sigma]);
    result[bias] = to_type_of(dmap.bias, in[bias]);
    return result;
  }
};

struct HybridStepOp : HybridOp {
  static constexpr const char* kName = "hybrid_step";

  static Tensors allocate(const Tensors& in, const std::string& kind, int64_t window, c10::optional<double> scale) {
    return allocate_for(kName, true, in, kind, window, scale);
  }

  static void forward(const Tensors& in, bool, Tensors& outputs, const std::string& kind, int64_t window,
                      c10::optional<double> scale) {
    Tensors timed = in;  // with a time axis
    for (size_t i : {q, k, v, gate, q_far, k_far}) {
      if (in[i].defined()) timed[i] = in[i].unsqueeze(1);
    }
    WindowState memory = load_state(in[state], state_shape(in, map_of(in, kind), window, scale));
    const Report report = raffia::hybrid_step(views_of(timed), made_map(in, kind), memory,
                                              mutable_view<4>(outputs[0].unsqueeze(1)), options_of(in, window, scale));
    outputs[1] = store_state(memory);
    outputs[2] = report_tensor(report);
  }
};

using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;

ThreeTensors hybrid_public(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate_logits, const Tensor& log_scale,
                           const OptionalTensor& q_far, const OptionalTensor& k_far, std::string map,
                           const OptionalTensor& weight, const OptionalTensor& sigma, const OptionalTensor& bias,
                           const OptionalTensor& state, int64_t window, c10::optional<double> scale, const OptionalTensor& valid,
                           const OptionalTensor& cu_seqlens) {
  const Tensors outputs = call<HybridOp>(
      {q, k, v, gate_logits, log_scale, or_undefined(q_far), or_undefined(k_far), or_undefined(state), or_undefined(valid),
       or_undefined(weight), or_undefined(sigma), or_undefined(bias), contiguous_or_undefined(cu_seqlens)},
      {map, window, scale});
  return {outputs[0], outputs[1], outputs[2]};
}

ThreeTensors hybrid_step_public(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate_logits,
                                const Tensor& log_scale, const OptionalTensor& q_far, const OptionalTensor& k_far,
                                std::string map, const OptionalTensor& weight, const OptionalTensor& sigma,
                                const OptionalTensor& bias, const OptionalTensor& state, int64_t window,
                                c10::optional<double> scale) {
  const Tensors outputs = call_step<HybridStepOp>({q,
                                                   k,
                                                   v,
                                                   gate_logits,
                                                   log_scale,
                                                   or_undefined(q_far),
                                                   or_undefined(k_far),
                                                   or_undefined(state),
                                                   {},
                                                   or_undefined(weight),
                                                   or_undefined(sigma),
                                                   or_undefined(bias),
                                                   {}},
                                                  {map, window, scale});
  return {outputs[0], outputs[1], outputs[2]};
}

TORCH_LIBRARY_FRAGMENT(raffia, library) {
  Kernels<HybridOp>::define(library);
  Kernels<HybridStepOp>::define_forward(library);
  const std::string arguments =
      "(Tensor q, Tensor k, Tensor v, Tensor gate_logits, Tensor log_scale, *, Tensor? q_far=None, Tensor? k_far=None, "
      "str map=\"trig\", Tensor? weight=None, Tensor? sigma=None, Tensor? bias=None, Tensor? state=None, int window=32, "
      "float? scale=None";
  const std::string outputs = " -> (Tensor out, Tensor state_out, Tensor report)";
  library.def(("hybrid" + arguments + ", Tensor? valid=None, Tensor? cu_seqlens=None)" + outputs).c_str(), &hybrid_public);
  library.def(("hybrid_step" + arguments + ")" + outputs).c_str(), &hybrid_step_public);
}

}  // namespace

Carried hybrid(const HybridTensors& in, const Map& map, const Tensor& state, const HybridOptions& options, const Tensor& valid,
               const Tensor& cu_seqlens) {
  static const auto op = handle<decltype(hybrid_public)>("raffia::hybrid");
  auto [out, next, report] =
      op.call(in.q, in.k, in.v, in.gate_logits, in.log_scale, or_none(in.q_far), or_none(in.k_far),
              std::string(name_of(map.kind)), or_none(map.weight), or_none(map.sigma), or_none(map.bias), or_none(state),
              options.window, as_double(options.scale), or_none(valid), or_none(cu_seqlens));
  return {out, next, report};
}

Carried hybrid_step(const HybridTensors& in, const Map& map, const Tensor& state, const HybridOptions& options) {
  static const auto op = handle<decltype(hybrid_step_public)>("raffia::hybrid_step");
  auto [out, next, report] = op.call(in.q, in.k, in.v, in.gate_logits, in.log_scale, or_none(in.q_far), or_none(in.k_far),
                                     std::string(name_of(map.kind)), or_none(map.weight), or_none(map.sigma), or_none(map.bias),
                                     or_none(state), options.window, as_double(options.scale));
  return {out, next, report};
}

}  // namespace raffia::ops
