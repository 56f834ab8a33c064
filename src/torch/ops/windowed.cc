// torch.ops.raffia.causal_lara, causal_eva and their steps: estimators that carry a state of windows.
#include "raffia/reference_sampled.h"
#include "raffia/torch/ops.h"
#include "torch/ops/differentiable.h"
#include "torch/ops/executor.h"
#include "torch/ops/random.h"
#include "torch/ops/window_state.h"

namespace raffia::ops {

using namespace internal;
using namespace internal::ops;
namespace {

struct CausalLara {
  static constexpr const char* kName = "causal_lara";
  static constexpr const char* kStepName = "causal_lara_step";
  static constexpr const char* kSettings =
      "int window, int chunk, int samples, int samples_per_proposal, bool streaming, str draws, int seed, int layer, int draw, "
      "float? scale";
  using Settings =
      std::tuple<int64_t, int64_t, int64_t, int64_t, bool, std::string, int64_t, int64_t, int64_t, c10::optional<double>>;

  static CausalLaraOptions options(int64_t window, int64_t chunk, int64_t samples, int64_t samples_per_proposal, bool streaming,
                                   const std::string& draws, int64_t seed, int64_t layer, int64_t draw,
                                   c10::optional<double> scale) {
    return {.window = window,
            .chunk = chunk,
            .samples = samples,
            .samples_per_proposal = samples_per_proposal,
            .streaming = streaming,
            .draws = draws_of(kName, draws),
            .seed = seed_of(seed),
            .layer = number_of(kName, "layer", layer),
            .draw = number_of(kName, "draw", draw),
            .scale = as_float(scale)};
  }
  static bool has_state(const CausalLaraOptions& with) { return with.streaming; }
  static WindowStateShape state_shape(const QkvShape& of, const CausalLaraOptions& with) {
    return causal_lara_state_shape(of.sequences, of.heads, of.groups, of.dim, of.value_dim, with);
  }
  static void attend(View4 q, View4 k, View4 v, WindowState* state, MutView4 out, const CausalLaraOptions& with,
                     std::span<float> record) {
    if (state != nullptr) {
      causal_lara_attention(q, k, v, *state, out, with, record);
    } else {
      causal_lara_attention(q, k, v, out, with, record);
    }
  }
  static void attend_in_double(View4 q, View4 k, View4 v, MutView4 out, const CausalLaraOptions& with) {
    reference::causal_lara_attention(q, k, v, out, with);
  }
  static int64_t record_size(View4 q, View4 k, View4 v, const CausalLaraOptions& with) {
    return causal_lara_record_size(q, k, v, with);
  }
  static void backward(View4 q, View4 k, View4 v, const WindowState* initial, View4 out, std::span<const float> record,
                       View4 dout, const QkvGradients& gradients, const CausalLaraOptions& with) {
    if (initial != nullptr) {
      causal_lara_attention_backward(q, k, v, *initial, out, record, dout, gradients, with);
    } else {
      causal_lara_attention_backward(q, k, v, out, record, dout, gradients, with);
    }
  }
  static void step(View3 q, View3 k, View3 v, WindowState& state, MutView3 out, const CausalLaraOptions& with) {
    raffia::causal_lara_step(q, k, v, state, out, with);
  }
};

struct CausalEva {
  static constexpr const char* kName = "causal_eva";
  static constexpr const char* kStepName = "causal_eva_step";
  static constexpr const char* kSettings =
      "int window, int chunk, int summaries, int features, float decay, str draws, int seed, int layer, int draw, float? scale";
  using Settings =
      std::tuple<int64_t, int64_t, int64_t, int64_t, double, std::string, int64_t, int64_t, int64_t, c10::optional<double>>;

  static CausalEvaOptions options(int64_t window, int64_t chunk, int64_t summaries, int64_t features, double decay,
                                  const std::string& draws, int64_t seed, int64_t layer, int64_t draw,
                                  c10::optional<double> scale) {
    return {.window = window,
            .chunk = chunk,
            .summaries = summaries,
            .features = features,
            .decay = static_cast<float>(decay),
            .draws = draws_of(kName, draws),
            .seed = seed_of(seed),
            .layer = number_of(kName, "layer", layer),
            .draw = number_of(kName, "draw", draw),
            .scale = as_float(scale)};
  }
  static bool has_state(const CausalEvaOptions& with) { return with.summaries > 0; }
  static WindowStateShape state_shape(const QkvShape& of, const CausalEvaOptions& with) {
    return causal_eva_state_shape(of.sequences, of.heads, of.groups, of.dim, of.value_dim, with);
  }
  static void attend(View4 q, View4 k, View4 v, WindowState* state, MutView4 out, const CausalEvaOptions& with,
                     std::span<float> record) {
    if (state != nullptr) {
      causal_eva_attention(q, k, v, *state, out, with, record);
    } else {
      causal_eva_attention(q, k, v, out, with, record);
    }
  }
  static void attend_in_double(View4 q, View4 k, View4 v, MutView4 out, const CausalEvaOptions& with) {
    reference::causal_eva_attention(q, k, v, out, with);
  }
  static int64_t record_size(View4 q, View4 k, View4 v, const CausalEvaOptions& with) {
    return causal_eva_record_size(q, k, v, with);
  }
  static void backward(View4 q, View4 k, View4 v, const WindowState* initial, View4 out, std::span<const float> record,
                       View4 dout, const QkvGradients& gradients, const CausalEvaOptions& with) {
    if (initial != nullptr) {
      causal_eva_attention_backward(q, k, v, *initial, out, record, dout, gradients, with);
    } else {
      causal_eva_attention_backward(q, k, v, out, record, dout, gradients, with);
    }
  }
  static void step(View3 q, View3 k, View3 v, WindowState& state, MutView3 out, const CausalEvaOptions& with) {
    raffia::causal_eva_step(q, k, v, state, out, with);
  }
};

template <class Estimator>
struct WindowedOp {
  static constexpr const char* kName = Estimator::kName;
  enum Input : size_t { q, k, v, state, valid, cu_seqlens, kInputs };
  static constexpr size_t kOutputs = 2, kDifferentiable = 1;  // out, state
  static constexpr uint64_t kLow = 1 << q | 1 << k | 1 << v;
  static constexpr const char* kSettings = Estimator::kSettings;
  using Settings = typename Estimator::Settings;

  template <class... S>
  static auto options_of(const Tensors& in, const S&... settings) {
    auto options = Estimator::options(settings...);
    options.layout = layout_of(kName, in[q], in[k], in[valid], in[cu_seqlens]);
    options.run.executor = &torch_executor();
    return options;
  }

  static QkvShape shape_of(const char* name, bool step, const Tensors& in) {
    QkvShape shape(name, in[q], in[k], in[v], in[valid], step);
    shape.pack(name, in[cu_seqlens]);
    return shape;
  }

  // `name`: the op, or its step, without time axis.
  template <class... S>
  static Tensors allocate_for(const char* name, bool step, const Tensors& in, const S&... settings) {
    const QkvShape shape = shape_of(name, step, in);
    require(shape.queries == shape.keys, "{}: {} queries and {} keys, expected the same number", name, shape.queries, shape.keys);
    const auto options = Estimator::options(settings...);
    const bool carries = Estimator::has_state(options);
    require(carries || (!in[state].defined() && !step), "{}: with these settings no state can be carried, expected no state",
            name);
    require(!is_double(in[q]) || !in[state].defined(), "{}: double inputs start from empty memory, expected no state", name);
    std::vector<int64_t> sizes{shape.sequences, 0};
    if (carries) {
      const WindowStateShape of = Estimator::state_shape(shape, options);
      require_state(name, in[state], of);
      sizes = tensor_shape(of);
    }
    return {at::empty(shape.sizes(shape.queries, {shape.heads, shape.value_dim}), in[q].options()),
            at::empty(sizes, in[q].options().dtype(at::kFloat))};
  }

  template <class... S>
  static Tensors allocate(const Tensors& in, const S&... settings) {
    return allocate_for(kName, false, in, settings...);
  }

  // The initial state; nullopt if no state can be carried.
  template <class Options>
  static std::optional<WindowState> past_of(const Tensors& in, const Options& options, bool step = false) {
    if (!Estimator::has_state(options)) return std::nullopt;
    return load_state(in[state], Estimator::state_shape(shape_of(kName, step, in), options));
  }

  template <class... S>
  static void forward(const Tensors& in, bool record, Tensors& outputs, const S&... settings) {
    const auto options = options_of(in, settings...);
    if (is_double(in[q])) {  // the state is that of the fp32 op, which also checks the arguments: the twins do not
      const Tensors floats{to_float(in[q]), to_float(in[k]), to_float(in[v]), Tensor(), in[valid], in[cu_seqlens]};
      Tensors rounded = allocate(floats, settings...);
      forward(floats, false, rounded, settings...);
      outputs[1] = rounded[1];
      Estimator::attend_in_double(view<4>(in[q]), view<4>(in[k]), view<4>(in[v]), mutable_view<4>(outputs[0]), options);
      return;
    }
    std::optional<WindowState> memory = past_of(in, options);
    const auto past = memory ? &*memory : nullptr;
    std::span<float> floats;
    if (record) {
      const int64_t size = Estimator::record_size(view<4>(in[q]), view<4>(in[k]), view<4>(in[v]), options);
      outputs.push_back(at::empty({size}, at::kFloat));
      floats = floats_of(outputs.back());
    }
    Estimator::attend(view<4>(in[q]), view<4>(in[k]), view<4>(in[v]), past, mutable_view<4>(outputs[0]), options, floats);
    if (memory) outputs[1] = store_state(*memory);
  }

  template <class... S>
  static Tensors backward(const Tensors& in, const Tensors& outputs, const Tensors& gradients, Wanted wanted,
                          const S&... settings) {
    if (is_double(in[q])) return backward_as_float<WindowedOp>(in, gradients, wanted, settings...);
    Tensors result(kInputs);
    for (size_t i : {q, k, v}) result[i] = empty_if(wanted[i], in[i]);
    const auto options = options_of(in, settings...);
    const std::optional<WindowState> past = in[state].defined() ? past_of(in, options) : std::nullopt;
    Estimator::backward(view<4>(in[q]), view<4>(in[k]), view<4>(in[v]), past ? &*past : nullptr, view<4>(outputs[0]),
                        floats_of(outputs[kOutputs]), view<4>(gradients[0]),
                        {.q = mutable_view<4>(result[q]), .k = mutable_view<4>(result[k]), .v = mutable_view<4>(result[v])},
                        options);
    return result;
  }
};

template <class Estimator>
struct WindowedStepOp : WindowedOp<Estimator> {
  using Whole = WindowedOp<Estimator>;
  static constexpr const char* kName = Estimator::kStepName;

  template <class... S>
  static Tensors allocate(const Tensors& in, const S&... settings) {
    return Whole::allocate_for(kName, true, in, settings...);
  }

  template <class... S>
  static void forward(const Tensors& in, bool, Tensors& outputs, const S&... settings) {
    const auto options = Whole::options_of(in, settings...);
    WindowState memory = *Whole::past_of(in, options, true);
    Estimator::step(view<3>(in[Whole::q]), view<3>(in[Whole::k]), view<3>(in[Whole::v]), memory, mutable_view<3>(outputs[0]),
                    options);
    outputs[1] = store_state(memory);
  }
};

using TwoTensors = std::tuple<Tensor, Tensor>;

template <class Settings>
struct PublicOps;

// The public functions, with the settings of an estimator as their own arguments.
template <class... S>
struct PublicOps<std::tuple<S...>> {
  template <class Estimator>
  static TwoTensors whole(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& state, S... settings,
                          const OptionalTensor& valid, const OptionalTensor& cu_seqlens) {
    const Tensors outputs = call<WindowedOp<Estimator>>(
        {q, k, v, or_undefined(state), or_undefined(valid), contiguous_or_undefined(cu_seqlens)}, std::tuple<S...>(settings...));
    return {outputs[0], outputs[1]};
  }
  template <class Estimator>
  static TwoTensors step(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& state, S... settings) {
    const Tensors outputs =
        call_step<WindowedStepOp<Estimator>>({q, k, v, or_undefined(state), {}, {}}, std::tuple<S...>(settings...));
    return {outputs[0], outputs[1]};
  }
};

using LaraPublic = PublicOps<CausalLara::Settings>;
using EvaPublic = PublicOps<CausalEva::Settings>;

TORCH_LIBRARY_FRAGMENT(raffia, library) {
  Kernels<WindowedOp<CausalLara>>::define(library);
  Kernels<WindowedOp<CausalEva>>::define(library);
  Kernels<WindowedStepOp<CausalLara>>::define_forward(library);
  Kernels<WindowedStepOp<CausalEva>>::define_forward(library);
  const std::string inputs = "(Tensor q, Tensor k, Tensor v, *, Tensor? state=None, ",
                    outputs = " -> (Tensor out, Tensor state_out)";
  const std::string lara =
      "int window=32, int chunk=8, int samples=128, int samples_per_proposal=1, bool streaming=True, str draws=\"orthogonal\", "
      "int seed=0, int layer=0, int draw=0, float? scale=None";
  const std::string eva =
      "int window=32, int chunk=8, int summaries=256, int features=64, float decay=1.0, str draws=\"orthogonal\", int seed=0, "
      "int layer=0, int draw=0, float? scale=None";
  library.def(("causal_lara" + inputs + lara + ", Tensor? valid=None, Tensor? cu_seqlens=None)" + outputs).c_str(),
              &LaraPublic::whole<CausalLara>);
  library.def(("causal_eva" + inputs + eva + ", Tensor? valid=None, Tensor? cu_seqlens=None)" + outputs).c_str(),
              &EvaPublic::whole<CausalEva>);
  library.def(("causal_lara_step" + inputs + lara + ")" + outputs).c_str(), &LaraPublic::step<CausalLara>);
  library.def(("causal_eva_step" + inputs + eva + ")" + outputs).c_str(), &EvaPublic::step<CausalEva>);
}

CausalLara::Settings settings_of(const CausalLaraOptions& with) {
  return {with.window,
          with.chunk,
          with.samples,
          with.samples_per_proposal,
          with.streaming,
          name_of(with.draws),
          seed_argument(with.seed),
          with.layer,
          with.draw,
          as_double(with.scale)};
}

CausalEva::Settings settings_of(const CausalEvaOptions& with) {
  return {with.window,
          with.chunk,
          with.summaries,
          with.features,
          static_cast<double>(with.decay),
          name_of(with.draws),
          seed_argument(with.seed),
          with.layer,
          with.draw,
          as_double(with.scale)};
}

// No denominator is clamped here.
Carried carried(const TwoTensors& outputs) { return {std::get<0>(outputs), std::get<1>(outputs), report_tensor({})}; }

template <class Op, class Options>
Carried call_whole(const Op& op, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& state, const Options& options,
                   const Tensor& valid, const Tensor& cu_seqlens) {
  const auto call = [&](const auto&... settings) {
    return op.call(q, k, v, or_none(state), settings..., or_none(valid), or_none(cu_seqlens));
  };
  return carried(std::apply(call, settings_of(options)));
}

template <class Op, class Options>
Carried call_one(const Op& op, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& state, const Options& options) {
  return carried(
      std::apply([&](const auto&... settings) { return op.call(q, k, v, or_none(state), settings...); }, settings_of(options)));
}

}  // namespace

Carried causal_lara(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& state, const CausalLaraOptions& options,
                    const Tensor& valid, const Tensor& cu_seqlens) {
  static const auto op = handle<decltype(LaraPublic::whole<CausalLara>)>("raffia::causal_lara");
  return call_whole(op, q, k, v, state, options, valid, cu_seqlens);
}

Carried causal_eva(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& state, const CausalEvaOptions& options,
                   const Tensor& valid, const Tensor& cu_seqlens) {
  static const auto op = handle<decltype(EvaPublic::whole<CausalEva>)>("raffia::causal_eva");
  return call_whole(op, q, k, v, state, options, valid, cu_seqlens);
}

Carried causal_lara_step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& state,
                         const CausalLaraOptions& options) {
  static const auto op = handle<decltype(LaraPublic::step<CausalLara>)>("raffia::causal_lara_step");
  return call_one(op, q, k, v, state, options);
}

Carried causal_eva_step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& state, const CausalEvaOptions& options) {
  static const auto op = handle<decltype(EvaPublic::step<CausalEva>)>("raffia::causal_eva_step");
  return call_one(op, q, k, v, state, options);
}

}  // namespace raffia::ops
