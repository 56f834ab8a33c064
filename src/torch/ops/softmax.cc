// torch.ops.raffia.softmax and softmax_step.
#include "raffia/reference.h"
#include "raffia/torch/ops.h"
#include "torch/ops/differentiable.h"
#include "torch/ops/executor.h"

namespace raffia::ops {

using namespace internal;
using namespace internal::ops;
namespace {

struct SoftmaxOp {
  static constexpr const char* kName = "softmax";
  static constexpr size_t kOutputs = 1, kDifferentiable = 1;
  enum Input : size_t { q, k, v, key_bias, valid, cu_seqlens, cu_seqlens_k, kInputs };
  static constexpr uint64_t kLow = 1 << q | 1 << k | 1 << v;
  static constexpr const char* kSettings = "bool causal, int window, int before, float? scale";
  using Settings = std::tuple<bool, int64_t, int64_t, c10::optional<double>>;

  static SoftmaxOptions options_of(const Tensors& in, bool causal, int64_t window, int64_t before, c10::optional<double> scale) {
    return {.causal = causal,
            .window = window,
            .before = before,
            .scale = as_float(scale),
            .key_bias = view<3>(in[key_bias]),
            .layout = layout_of(kName, in[q], in[k], in[valid], in[cu_seqlens], in[cu_seqlens_k]),
            .run = {.executor = &torch_executor()}};
  }

  static Tensors allocate(const Tensors& in, bool, int64_t window, int64_t, c10::optional<double>) {
    QkvShape shape(kName, in[q], in[k], in[v], in[valid]);
    shape.pack(kName, in[cu_seqlens], in[cu_seqlens_k]);
    if (in[key_bias].defined()) {
      require_precise(kName, "key_bias", in[key_bias], in[q], true);
      require_shape(kName, "key_bias", in[key_bias], {shape.batch, shape.keys, shape.groups}, "batch, length and heads of k");
    }
    require(window == 0 || shape.queries == shape.keys, "{}: window is {} with {} queries and {} keys, expected the same number",
            kName, window, shape.queries, shape.keys);
    return {at::empty({shape.batch, shape.queries, shape.heads, shape.value_dim}, in[q].options())};
  }

  template <class... S>
  static void forward(const Tensors& in, bool record, Tensors& outputs, S... settings) {
    const SoftmaxOptions options = options_of(in, settings...);
    if (is_double(in[q])) {
      reference::softmax_attention(view<4>(in[q]), view<4>(in[k]), view<4>(in[v]), mutable_view<4>(outputs[0]), options);
      return;
    }
    MutView3 logsumexp;
    if (record) {
      outputs.push_back(at::empty({in[q].size(0), in[q].size(1), in[q].size(2)}, at::kFloat));  // logsumexp
      logsumexp = mutable_view<3>(outputs[1]);
    }
    softmax_attention(view<4>(in[q]), view<4>(in[k]), view<4>(in[v]), mutable_view<4>(outputs[0]), options, logsumexp);
  }

  template <class... S>
  static Tensors backward(const Tensors& in, const Tensors& outputs, const Tensors& gradients, Wanted wanted, S... settings) {
    if (is_double(in[q])) return backward_as_float<SoftmaxOp>(in, gradients, wanted, settings...);
    Tensors result(kInputs);
    for (size_t i : {q, k, v, key_bias}) result[i] = empty_if(wanted[i], in[i]);
    softmax_attention_backward(view<4>(in[q]), view<4>(in[k]), view<4>(in[v]), view<4>(outputs[0]), view<3>(outputs[1]),
                               view<4>(gradients[0]),
                               {.q = mutable_view<4>(result[q]),
                                .k = mutable_view<4>(result[k]),
                                .v = mutable_view<4>(result[v]),
                                .key_bias = mutable_view<3>(result[key_bias])},
                               options_of(in, settings...));
    return result;
  }
};

Tensor softmax_public(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, int64_t window, int64_t before,
                      c10::optional<double> scale, const OptionalTensor& key_bias, const OptionalTensor& valid,
                      const OptionalTensor& cu_seqlens, const OptionalTensor& cu_seqlens_k) {
  return call<SoftmaxOp>({q, k, v, or_undefined(key_bias), or_undefined(valid), contiguous_or_undefined(cu_seqlens),
                          contiguous_or_undefined(cu_seqlens_k)},
                         {causal, window, before, scale})[0];
}

struct SoftmaxStepOp {
  static constexpr const char* kName = "softmax_step";
  enum Input : size_t { q, k_cache, v_cache, lengths };
  static constexpr uint64_t kLow = 1 << q | 1 << k_cache | 1 << v_cache;
  static constexpr const char* kSettings = "float? scale";
  using Settings = std::tuple<c10::optional<double>>;

  static Tensors allocate(const Tensors& in, c10::optional<double>) {
    require_rank(kName, "q", in[q], 3, "[B, H, D]");
    const QkvShape shape(kName, in[q].unsqueeze(1), in[k_cache], in[v_cache], {});
    require_type(kName, "q", in[q], {at::kFloat, at::kBFloat16});
    require_type(kName, "lengths", in[lengths], {at::kLong});
    require_shape(kName, "lengths", in[lengths], {shape.batch}, "batch of q");
    return {at::empty({shape.batch, shape.heads, shape.value_dim}, in[q].options())};
  }

  static void forward(const Tensors& in, bool, Tensors& outputs, c10::optional<double> scale) {
    const Tensor counts = in[lengths].contiguous();
    raffia::softmax_step(view<3>(in[q]), view<4>(in[k_cache]), view<4>(in[v_cache]),
                         {counts.data_ptr<int64_t>(), static_cast<size_t>(counts.numel())}, mutable_view<3>(outputs[0]),
                         {.scale = as_float(scale), .run = {.executor = &torch_executor()}});
  }
};

Tensor softmax_step_public(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& lengths,
                           c10::optional<double> scale) {
  return call_step<SoftmaxStepOp>({q, k_cache, v_cache, lengths}, {scale})[0];
}

TORCH_LIBRARY_FRAGMENT(raffia, library) {
  Kernels<SoftmaxOp>::define(library);
  Kernels<SoftmaxStepOp>::define_forward(library);
  library.def(
      "softmax(Tensor q, Tensor k, Tensor v, *, bool causal=False, int window=0, int before=0, float? scale=None, "
      "Tensor? key_bias=None, Tensor? valid=None, Tensor? cu_seqlens=None, Tensor? cu_seqlens_k=None) -> Tensor",
      &softmax_public);
  library.def("softmax_step(Tensor q, Tensor k_cache, Tensor v_cache, Tensor lengths, *, float? scale=None) -> Tensor",
              &softmax_step_public);
}

}  // namespace

Tensor softmax(const Tensor& q, const Tensor& k, const Tensor& v, const SoftmaxOptions& options, const Tensor& valid,
               const Tensor& key_bias, const Tensor& cu_seqlens, const Tensor& cu_seqlens_k) {
  static const auto op = handle<decltype(softmax_public)>("raffia::softmax");
  return op.call(q, k, v, options.causal, options.window, options.before, as_double(options.scale), or_none(key_bias),
                 or_none(valid), or_none(cu_seqlens), or_none(cu_seqlens_k));
}

Tensor softmax_step(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& lengths,
                    const SoftmaxOptions& options) {
  static const auto op = handle<decltype(softmax_step_public)>("raffia::softmax_step");
  return op.call(q, k_cache, v_cache, lengths, as_double(options.scale));
}

}  // namespace raffia::ops
