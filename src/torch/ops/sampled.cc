// torch.ops.raffia.lara, ra and eva: estimators of whole sequences.
#include "raffia/reference_sampled.h"
#include "raffia/torch/ops.h"
#include "torch/ops/differentiable.h"
#include "torch/ops/executor.h"
#include "torch/ops/random.h"

namespace raffia::ops {

using namespace internal;
using namespace internal::ops;
namespace {

struct Lara {
  static constexpr const char* kName = "lara";
  static constexpr const char* kSettings =
      "int samples, int samples_per_proposal, str proposals, str weights, float mis_opt_strength, bool mean, str draws, "
      "int seed, int layer, int draw, float? scale";
  using Settings = std::tuple<int64_t, int64_t, std::string, std::string, double, bool, std::string, int64_t, int64_t, int64_t,
                              c10::optional<double>>;

  static LaraOptions options(int64_t samples, int64_t samples_per_proposal, const std::string& proposals,
                             const std::string& weights, double strength, bool mean, const std::string& draws, int64_t seed,
                             int64_t layer, int64_t draw, c10::optional<double> scale) {
    return {.samples = samples,
            .samples_per_proposal = samples_per_proposal,
            .proposals = parse_proposals(proposals),
            .weights = parse_sample_weights(weights),
            .mis_opt_strength = static_cast<float>(strength),
            .mean = mean,
            .draws = draws_of(kName, draws),
            .seed = seed_of(seed),
            .layer = number_of(kName, "layer", layer),
            .draw = number_of(kName, "draw", draw),
            .scale = as_float(scale)};
  }
  static void attend(View4 q, View4 k, View4 v, MutView4 out, const LaraOptions& with, std::span<float> record) {
    lara_attention(q, k, v, out, with, record);
  }
  static void attend_in_double(View4 q, View4 k, View4 v, MutView4 out, const LaraOptions& with) {
    reference::lara_attention(q, k, v, out, with);
  }
  static int64_t record_size(View4 q, View4 k, View4 v, const LaraOptions& with) { return lara_record_size(q, k, v, with); }
  static void backward(View4 q, View4 k, View4 v, View4 out, std::span<const float> record, View4 dout,
                       const QkvGradients& gradients, const LaraOptions& with) {
    lara_attention_backward(q, k, v, out, record, dout, gradients, with);
  }
};

struct Ra {
  static constexpr const char* kName = "ra";
  static constexpr const char* kSettings = "int draws, bool causal, int seed, int layer, int draw, float? scale";
  using Settings = std::tuple<int64_t, bool, int64_t, int64_t, int64_t, c10::optional<double>>;

  static RaOptions options(int64_t draws, bool causal, int64_t seed, int64_t layer, int64_t draw, c10::optional<double> scale) {
    return {.draws = draws,
            .causal = causal,
            .seed = seed_of(seed),
            .layer = number_of(kName, "layer", layer),
            .draw = number_of(kName, "draw", draw),
            .scale = as_float(scale)};
  }
  static void attend(View4 q, View4 k, View4 v, MutView4 out, const RaOptions& with, std::span<float>) {
    ra_attention(q, k, v, out, with);
  }
  static void attend_in_double(View4 q, View4 k, View4 v, MutView4 out, const RaOptions& with) {
    reference::ra_attention(q, k, v, out, with);
  }
  static void backward(View4 q, View4 k, View4 v, View4, std::span<const float>, View4 dout, const QkvGradients& gradients,
                       const RaOptions& with) {
    ra_attention_backward(q, k, v, dout, gradients, with);
  }
};

struct Eva {
  static constexpr const char* kName = "eva";
  static constexpr const char* kSettings = "int samples, int window, float? scale";
  using Settings = std::tuple<int64_t, int64_t, c10::optional<double>>;

  static EvaOptions options(int64_t samples, int64_t window, c10::optional<double> scale) {
    return {.samples = samples, .window = window, .scale = as_float(scale)};
  }
  static void attend(View4 q, View4 k, View4 v, MutView4 out, const EvaOptions& with, std::span<float> record) {
    eva_attention(q, k, v, out, with, record);
  }
  static void attend_in_double(View4 q, View4 k, View4 v, MutView4 out, const EvaOptions& with) {
    reference::eva_attention(q, k, v, out, with);
  }
  static int64_t record_size(View4 q, View4 k, View4 v, const EvaOptions& with) { return eva_record_size(q, k, v, with); }
  static void backward(View4 q, View4 k, View4 v, View4 out, std::span<const float> record, View4 dout,
                       const QkvGradients& gradients, const EvaOptions& with) {
    eva_attention_backward(q, k, v, out, record, dout, gradients, with);
  }
};

template <class Estimator>
struct SampledOp {
  static constexpr const char* kName = Estimator::kName;
  enum Input : size_t { q, k, v, valid, cu_seqlens, cu_seqlens_k, kInputs };
  static constexpr size_t kOutputs = 1, kDifferentiable = 1;
  static constexpr uint64_t kLow = 1 << q | 1 << k | 1 << v;
  static constexpr const char* kSettings = Estimator::kSettings;
  using Settings = typename Estimator::Settings;

  template <class... S>
  static auto options_of(const Tensors& in, const S&... settings) {
    auto options = Estimator::options(settings...);
    options.layout = layout_of(kName, in[q], in[k], in[valid], in[cu_seqlens], in[cu_seqlens_k]);
    options.run.executor = &torch_executor();
    return options;
  }

  template <class... S>
  static Tensors allocate(const Tensors& in, const S&... settings) {
    QkvShape shape(kName, in[q], in[k], in[v], in[valid]);
    shape.pack(kName, in[cu_seqlens], in[cu_seqlens_k]);
    (void)Estimator::options(settings...);
    return {at::empty({shape.batch, shape.queries, shape.heads, shape.value_dim}, in[q].options())};
  }

  template <class... S>
  static void forward(const Tensors& in, bool record, Tensors& outputs, const S&... settings) {
    const auto options = options_of(in, settings...);
    if (is_double(in[q])) {
      // The twins do not check their arguments, so the fp32 op checks them first.
      const Tensors floats{to_float(in[q]), to_float(in[k]), to_float(in[v])}, ignored{at::empty_like(outputs[0], at::kFloat)};
      Estimator::attend(view<4>(floats[q]), view<4>(floats[k]), view<4>(floats[v]), mutable_view<4>(ignored[0]), options, {});
      Estimator::attend_in_double(view<4>(in[q]), view<4>(in[k]), view<4>(in[v]), mutable_view<4>(outputs[0]), options);
      return;
    }
    std::span<float> floats;
    if constexpr (requires { &Estimator::record_size; }) {
      if (record) {
        const int64_t size = Estimator::record_size(view<4>(in[q]), view<4>(in[k]), view<4>(in[v]), options);
        outputs.push_back(at::empty({size}, at::kFloat));
        floats = floats_of(outputs.back());
      }
    }
    Estimator::attend(view<4>(in[q]), view<4>(in[k]), view<4>(in[v]), mutable_view<4>(outputs[0]), options, floats);
  }

  template <class... S>
  static Tensors backward(const Tensors& in, const Tensors& outputs, const Tensors& gradients, Wanted wanted,
                          const S&... settings) {
    if (is_double(in[q])) return backward_as_float<SampledOp>(in, gradients, wanted, settings...);
    Tensors result(kInputs);
    for (size_t i : {q, k, v}) result[i] = empty_if(wanted[i], in[i]);
    const std::span<const float> record = outputs.size() > kOutputs ? floats_of(outputs[kOutputs]) : std::span<float>();
    Estimator::backward(view<4>(in[q]), view<4>(in[k]), view<4>(in[v]), view<4>(outputs[0]), record, view<4>(gradients[0]),
                        {.q = mutable_view<4>(result[q]), .k = mutable_view<4>(result[k]), .v = mutable_view<4>(result[v])},
                        options_of(in, settings...));
    return result;
  }
};

Tensors inputs_of(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& valid,
                  const OptionalTensor& cu_seqlens, const OptionalTensor& cu_seqlens_k) {
  return {q, k, v, or_undefined(valid), contiguous_or_undefined(cu_seqlens), contiguous_or_undefined(cu_seqlens_k)};
}

Tensor lara_public(const Tensor& q, const Tensor& k, const Tensor& v, int64_t samples, int64_t samples_per_proposal,
                   std::string proposals, std::string weights, double mis_opt_strength, bool mean, std::string draws,
                   int64_t seed, int64_t layer, int64_t draw, c10::optional<double> scale, const OptionalTensor& valid,
                   const OptionalTensor& cu_seqlens, const OptionalTensor& cu_seqlens_k) {
  return call<SampledOp<Lara>>(
      inputs_of(q, k, v, valid, cu_seqlens, cu_seqlens_k),
      {samples, samples_per_proposal, proposals, weights, mis_opt_strength, mean, draws, seed, layer, draw, scale})[0];
}

Tensor ra_public(const Tensor& q, const Tensor& k, const Tensor& v, int64_t draws, bool causal, int64_t seed, int64_t layer,
                 int64_t draw, c10::optional<double> scale, const OptionalTensor& valid, const OptionalTensor& cu_seqlens,
                 const OptionalTensor& cu_seqlens_k) {
  return call<SampledOp<Ra>>(inputs_of(q, k, v, valid, cu_seqlens, cu_seqlens_k), {draws, causal, seed, layer, draw, scale})[0];
}

Tensor eva_public(const Tensor& q, const Tensor& k, const Tensor& v, int64_t samples, int64_t window, c10::optional<double> scale,
                  const OptionalTensor& valid, const OptionalTensor& cu_seqlens) {
  return call<SampledOp<Eva>>(inputs_of(q, k, v, valid, cu_seqlens, {}), {samples, window, scale})[0];
}

TORCH_LIBRARY_FRAGMENT(raffia, library) {
  Kernels<SampledOp<Lara>>::define(library);
  Kernels<SampledOp<Ra>>::define(library);
  Kernels<SampledOp<Eva>>::define(library);
  library.def(
      "lara(Tensor q, Tensor k, Tensor v, *, int samples=64, int samples_per_proposal=1, str proposals=\"chunk_mean\", "
      "str weights=\"balance\", float mis_opt_strength=1.0, bool mean=False, str draws=\"orthogonal\", int seed=0, int layer=0, "
      "int draw=0, float? scale=None, Tensor? valid=None, Tensor? cu_seqlens=None, Tensor? cu_seqlens_k=None) -> Tensor",
      &lara_public);
  library.def(
      "ra(Tensor q, Tensor k, Tensor v, *, int draws=1, bool causal=False, int seed=0, int layer=0, int draw=0, "
      "float? scale=None, Tensor? valid=None, Tensor? cu_seqlens=None, Tensor? cu_seqlens_k=None) -> Tensor",
      &ra_public);
  library.def(
      "eva(Tensor q, Tensor k, Tensor v, *, int samples=64, int window=32, float? scale=None, Tensor? valid=None, "
      "Tensor? cu_seqlens=None) -> Tensor",
      &eva_public);
}

}  // namespace

Tensor lara(const Tensor& q, const Tensor& k, const Tensor& v, const LaraOptions& options, const Tensor& valid,
            const Tensor& cu_seqlens, const Tensor& cu_seqlens_k) {
  static const auto op = handle<decltype(lara_public)>("raffia::lara");
  return op.call(q, k, v, options.samples, options.samples_per_proposal, std::string(name_of(options.proposals)),
                 std::string(name_of(options.weights)), static_cast<double>(options.mis_opt_strength), options.mean,
                 name_of(options.draws), seed_argument(options.seed), options.layer, options.draw, as_double(options.scale),
                 or_none(valid), or_none(cu_seqlens), or_none(cu_seqlens_k));
}

Tensor ra(const Tensor& q, const Tensor& k, const Tensor& v, const RaOptions& options, const Tensor& valid,
          const Tensor& cu_seqlens, const Tensor& cu_seqlens_k) {
  static const auto op = handle<decltype(ra_public)>("raffia::ra");
  return op.call(q, k, v, options.draws, options.causal, seed_argument(options.seed), options.layer, options.draw,
                 as_double(options.scale), or_none(valid), or_none(cu_seqlens), or_none(cu_seqlens_k));
}

Tensor eva(const Tensor& q, const Tensor& k, const Tensor& v, const EvaOptions& options, const Tensor& valid,
           const Tensor& cu_seqlens) {
  static const auto op = handle<decltype(eva_public)>("raffia::eva");
  return op.call(q, k, v, options.samples, options.window, as_double(options.scale), or_none(valid), or_none(cu_seqlens));
}

}  // namespace raffia::ops
