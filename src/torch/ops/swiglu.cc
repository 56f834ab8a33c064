// torch.ops.raffia.swiglu.
#include "torch/ops/swiglu.h"

#include "kernels/layer_ops.h"
#include "reference/layers.h"
#include "torch/ops/differentiable.h"
#include "torch/ops/rows.h"

namespace raffia::internal::ops {
namespace {

struct SwigluOp {
  static constexpr const char* kName = "swiglu";
  static constexpr size_t kOutputs = 1, kDifferentiable = 1;
  static constexpr bool kBackwardIgnoresOutputs = true;
  enum Input : size_t { gate, up, kInputs };
  static constexpr uint64_t kLow = 0;
  static constexpr const char* kSettings = "";
  using Settings = std::tuple<>;

  static Tensors allocate(const Tensors& in) {
    require(in[gate].defined() && in[gate].dim() >= 1, "{}: gate is missing, expected [.., F]", kName);
    require(in[up].defined(), "{}: up is missing, expected the shape of gate", kName);
    require_type(kName, "gate", in[gate], {at::kFloat, at::kDouble});
    require_precise(kName, "up", in[up], in[gate]);
    require_shape(kName, "up", in[up], in[gate].sizes(), "shape of gate");
    return {at::empty(in[gate].sizes(), in[gate].options())};
  }

  static void forward(const Tensors& in, bool, Tensors& outputs) {
    const Tensor g = as_rows(in[gate]), u = as_rows(in[up]), y = as_rows(outputs[0]);
    if (is_double(y)) return twins::swiglu(view<2>(g), view<2>(u), mutable_view<2>(y));
    for_rows(y.size(0), y.size(1),
             [&, gates = view<2>(g), ups = view<2>(u), to = mutable_view<2>(y)](int64_t first, int64_t count) {
               internal::swiglu(gates.slice(0, first, count), ups.slice(0, first, count), to.slice(0, first, count));
             });
  }

  static Tensors backward(const Tensors& in, const Tensors&, const Tensors& gradients, Wanted wanted) {
    const Tensor g = as_rows(in[gate]), u = as_rows(in[up]), dy = as_rows(gradients[0]);
    const Tensor dgate = at::empty_like(g), dup = at::empty_like(u);
    const View2 gates = view<2>(g), ups = view<2>(u), from = view<2>(dy);
    const MutView2 to_gate = mutable_view<2>(dgate), to_up = mutable_view<2>(dup);
    if (is_double(g)) {
      twins::swiglu_backward(gates, ups, from, to_gate, to_up);
    } else {
      for_rows(g.size(0), g.size(1), [&](int64_t first, int64_t count) {
        swiglu_backward(gates.slice(0, first, count), ups.slice(0, first, count), from.slice(0, first, count),
                        to_gate.slice(0, first, count), to_up.slice(0, first, count));
      });
    }
    Tensors result(kInputs);
    if (wanted[gate]) result[gate] = dgate.view(in[gate].sizes());
    if (wanted[up]) result[up] = dup.view(in[up].sizes());
    return result;
  }
};

Tensor swiglu_public(const Tensor& gate, const Tensor& up) { return call<SwigluOp>({gate, up}, {})[0]; }

TORCH_LIBRARY_FRAGMENT(raffia, library) {
  Kernels<SwigluOp>::define(library);
  library.def("swiglu(Tensor gate, Tensor up) -> Tensor", &swiglu_public);
}

}  // namespace

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  if (!is_ours(gate, up)) return at::silu(gate) * up;
  static const auto op = handle<decltype(swiglu_public)>("raffia::swiglu");
  return op.call(gate, up);
}

}  // namespace raffia::internal::ops
