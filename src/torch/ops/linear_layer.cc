// torch.ops.raffia.linear_layer.
#include "torch/ops/linear_layer.h"

#include "estimators/shared/products.h"
#include "kernels/layer_ops.h"
#include "reference/layers.h"
#include "torch/ops/differentiable.h"
#include "torch/ops/executor.h"
#include "torch/ops/rows.h"

namespace raffia::internal::ops {
namespace {

struct LinearLayerOp {
  static constexpr const char* kName = "linear_layer";
  static constexpr size_t kOutputs = 1, kDifferentiable = 1;
  static constexpr bool kBackwardIgnoresOutputs = true;  // it reads the sums before gelu, behind the outputs
  enum Input : size_t { x, weight, bias, kInputs };
  static constexpr uint64_t kLow = 0;
  static constexpr const char* kSettings = "bool gelu";
  using Settings = std::tuple<bool>;

  static RunOptions run_options() { return {.executor = &torch_executor()}; }

  static Tensors allocate(const Tensors& in, bool) {
    for (const auto& [name, tensor] : {std::pair("x", in[x]), std::pair("weight", in[weight])}) {
      require(tensor.defined() && tensor.dim() >= 1, "{}: {} is missing, expected [.., in]", kName, name);
      require_type(kName, name, tensor, {at::kFloat, at::kDouble});
    }
    require_precise(kName, "weight", in[weight], in[x]);
    const int64_t columns = in[x].size(-1);
    require_rank(kName, "weight", in[weight], 2, "[out, in]");
    require_shape(kName, "weight", in[weight], {in[weight].size(0), columns}, "columns of x");
    if (in[bias].defined()) {
      require_precise(kName, "bias", in[bias], in[x]);
      require_shape(kName, "bias", in[bias], {in[weight].size(0)}, "rows of weight");
    }
    std::vector<int64_t> sizes = in[x].sizes().vec();
    sizes.back() = in[weight].size(0);
    return {at::empty(sizes, in[x].options())};
  }

  static void forward(const Tensors& in, bool record, Tensors& outputs, bool gelu) {
    const Tensor from = as_rows(in[x]), matrix = in[weight].contiguous(), added = contiguous_or_undefined(or_none(in[bias]));
    const Tensor to = as_rows(outputs[0]);
    if (is_double(to)) {
      twins::linear(view<2>(from), view<2>(matrix), view<1>(added), mutable_view<2>(to));
      if (gelu) twins::gelu(view<2>(to), mutable_view<2>(to));
      return;
    }
    const Tensor sums = gelu && record ? at::empty_like(to) : to;
    multiply({.a = view<2>(from),
              .b = turned(view<2>(matrix)),
              .bias = added.defined() ? added.data_ptr<float>() : nullptr,
              .c = mutable_view<2>(sums)},
             run_options());
    if (!gelu) return;
    for_rows(sums.size(0), sums.size(1), [&, y = mutable_view<2>(to)](int64_t first, int64_t count) {
      internal::gelu(view<2>(sums).slice(0, first, count), y.slice(0, first, count));
    });
    if (record) outputs.push_back(sums);
  }

  static Tensors backward(const Tensors& in, const Tensors& outputs, const Tensors& gradients, Wanted wanted, bool gelu) {
    if (is_double(in[x])) return backward_as_float<LinearLayerOp>(in, gradients, wanted, gelu);
    Tensor dy = as_rows(gradients[0]);
    if (gelu) {
      const Tensor& sums = outputs[kOutputs];
      const Tensor dsums = at::empty_like(dy);
      for_rows(dy.size(0), dy.size(1), [&](int64_t first, int64_t count) {
        gelu_backward(view<2>(sums).slice(0, first, count), view<2>(dy).slice(0, first, count),
                      mutable_view<2>(dsums).slice(0, first, count));
      });
      dy = dsums;
    }
    Tensors result(kInputs);
    for (size_t i : {x, weight}) result[i] = empty_if(wanted[i], in[i]);
    const Tensor from = as_rows(in[x]), matrix = in[weight].contiguous();
    if (wanted[x]) {
      multiply({.a = view<2>(dy), .b = view<2>(matrix), .c = mutable_view<2>(as_rows(result[x]))}, run_options());
    }
    if (wanted[weight]) {
      multiply({.a = turned(view<2>(dy)), .b = view<2>(from), .c = mutable_view<2>(result[weight])}, run_options());
    }
    if (wanted[bias]) result[bias] = dy.sum(0);
    return result;
  }
};

Tensor linear_layer_public(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, bool gelu) {
  return call<LinearLayerOp>({x, weight, or_undefined(bias)}, {gelu})[0];
}

TORCH_LIBRARY_FRAGMENT(raffia, library) {
  Kernels<LinearLayerOp>::define(library);
  library.def("linear_layer(Tensor x, Tensor weight, Tensor? bias=None, bool gelu=False) -> Tensor", &linear_layer_public);
}

}  // namespace

Tensor linear_layer(const Tensor& x, const Tensor& weight, const Tensor& bias, Activation activation) {
  const bool gelu = activation == Activation::gelu;
  if (!is_ours(x, weight)) {
    const Tensor sums = at::linear(x, weight, or_none(bias));
    return gelu ? at::gelu(sums) : sums;
  }
  static const auto op = handle<decltype(linear_layer_public)>("raffia::linear_layer");
  return op.call(x, weight, or_none(bias), gelu);
}

}  // namespace raffia::internal::ops
