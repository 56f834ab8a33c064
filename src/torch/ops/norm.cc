// torch.ops.raffia.norm.
#include "torch/ops/norm.h"

#include "kernels/layer_ops.h"
#include "kernels/norm_backward.h"
#include "reference/layers.h"
#include "torch/ops/differentiable.h"
#include "torch/ops/rows.h"

namespace raffia::internal::ops {
namespace {

struct NormOp {
  static constexpr const char* kName = "norm";
  static constexpr size_t kOutputs = 2, kDifferentiable = 2;
  enum Input : size_t { x, added, weight, bias, kInputs };
  static constexpr uint64_t kLow = 0;
  static constexpr const char* kSettings = "float eps";
  using Settings = std::tuple<double>;

  // The norm, and the sum that it is of; without `added` that is x, and nothing is given for it.
  static Tensors allocate(const Tensors& in, double) {
    require(in[x].defined() && in[x].dim() >= 1, "{}: x is missing, expected [.., E]", kName);
    require_type(kName, "x", in[x], {at::kFloat, at::kDouble});
    const auto require_one = [&](const char* name, const Tensor& tensor, at::IntArrayRef shape, const char* why) {
      if (!tensor.defined()) return;
      require_precise(kName, name, tensor, in[x]);
      require_shape(kName, name, tensor, shape, why);
    };
    require(in[weight].defined(), "{}: weight is missing, expected [E]", kName);
    require_one("added", in[added], in[x].sizes(), "shape of x");
    require_one("weight", in[weight], {in[x].size(-1)}, "columns of x");
    require_one("bias", in[bias], {in[x].size(-1)}, "columns of x");
    const Tensor y = at::empty(in[x].sizes(), in[x].options());
    return {y, in[added].defined() ? at::empty_like(y) : at::empty({0}, in[x].options())};
  }

  static void forward(const Tensors& in, bool, Tensors& outputs, double eps) {
    const Tensor from = as_rows(in[x]), matrix = in[weight].contiguous(), shift = contiguous_or_undefined(or_none(in[bias]));
    const Tensor more = in[added].defined() ? as_rows(in[added]) : Tensor();
    const Tensor sum = more.defined() ? as_rows(outputs[1]) : from, y = as_rows(outputs[0]);
    if (is_double(y)) {
      if (more.defined()) Tensor(sum).copy_(from + more);
      if (shift.defined()) return twins::layer_norm(view<2>(sum), view<1>(matrix), view<1>(shift), eps, mutable_view<2>(y));
      return twins::rms_norm(view<2>(sum), view<1>(matrix), eps, mutable_view<2>(y));
    }
    const View2 a = view<2>(from), b = view<2>(more);
    const MutView2 sums = mutable_view<2>(sum), to = mutable_view<2>(y);
    for_rows(y.size(0), y.size(1), [&](int64_t first, int64_t count) {
      const MutView2 here = sums.slice(0, first, count);
      if (!b.absent()) sum_rows(a.slice(0, first, count), b.slice(0, first, count), here);
      if (shift.defined()) {
        layer_norm(here, floats_of(matrix), floats_of(shift), static_cast<float>(eps), to.slice(0, first, count));
      } else {
        rms_norm(here, floats_of(matrix), static_cast<float>(eps), to.slice(0, first, count));
      }
    });
  }

  // Of the summands only the sum is read. Shapes on Meta are those of all inputs.
  static void forget_unread(Tensors& saved) {
    if (saved[x].is_meta()) return;
    saved[kInputs] = Tensor();
    if (saved[added].defined() && saved[added].numel() > 0) saved[x] = saved[added] = Tensor();
  }

  static Tensors backward(const Tensors& in, const Tensors& outputs, const Tensors& gradients, Wanted wanted, double eps) {
    const bool adds = outputs[1].defined() && outputs[1].numel() > 0;
    const Tensor& normed = adds ? outputs[1] : in[x];
    const Tensor sum = as_rows(normed), dy = gradients[0].defined() ? as_rows(gradients[0]) : at::zeros_like(sum);
    const Tensor dsum = adds && gradients[1].defined() ? as_rows(gradients[1]) : Tensor();
    const Tensor dx = at::empty_like(sum), dweight = at::zeros_like(in[weight], at::MemoryFormat::Contiguous);
    const Tensor dbias = in[bias].defined() ? at::zeros_like(in[bias], at::MemoryFormat::Contiguous) : Tensor();
    const Tensor matrix = in[weight].contiguous();
    is_double(sum) ? by_twins(sum, matrix, dy, dsum, dx, dweight, dbias, eps)
                   : by_kernels(sum, matrix, dy, dsum, dx, dweight, dbias, eps);
    Tensors result(kInputs);
    // One tensor for both summands, not two views: autograd changes no gradient in place that somebody else has, too.
    const Tensor of_sum = dx.view(normed.sizes());
    for (size_t i : {x, added}) {
      if (wanted[i]) result[i] = of_sum;
    }
    if (wanted[weight]) result[weight] = dweight;
    if (wanted[bias]) result[bias] = dbias;
    return result;
  }

 private:
  static void by_twins(const Tensor& sum, const Tensor& matrix, const Tensor& dy, const Tensor& dsum, Tensor dx,
                       const Tensor& dweight, const Tensor& dbias, double eps) {
    if (dbias.defined()) {
      twins::layer_norm_backward(view<2>(sum), view<1>(matrix), eps, view<2>(dy), mutable_view<2>(dx), mutable_view<1>(dweight),
                                 mutable_view<1>(dbias));
    } else {
      twins::rms_norm_backward(view<2>(sum), view<1>(matrix), eps, view<2>(dy), mutable_view<2>(dx), mutable_view<1>(dweight));
    }
    if (dsum.defined()) dx.add_(dsum);
  }

  // Runs of rows have sums of their own, which are added in their order: the same bits for any number of threads.
  static void by_kernels(const Tensor& sum, const Tensor& matrix, const Tensor& dy, const Tensor& dsum, const Tensor& dx,
                         const Tensor& dweight, const Tensor& dbias, double eps) {
    const int64_t columns = sum.size(1), pieces = pieces_of_rows(sum.size(0), columns);
    const Tensor sums = at::zeros({pieces, 2, columns}, sum.options());
    const auto row_of = [&](int64_t piece, int64_t which) {
      return floats_of(sums).subspan(static_cast<size_t>((piece * 2 + which) * columns), static_cast<size_t>(columns));
    };
    const View2 in = view<2>(sum), from = view<2>(dy), more = view<2>(dsum);
    const MutView2 to = mutable_view<2>(dx);
    for_rows(sum.size(0), columns, [&](int64_t first, int64_t count) {
      const int64_t piece = first / rows_of_piece(columns);
      const NormGradients of{.x = in.slice(0, first, count),
                             .weight = floats_of(matrix),
                             .eps = static_cast<float>(eps),
                             .dy = from.slice(0, first, count),
                             .added = more.absent() ? View2() : more.slice(0, first, count),
                             .dx = to.slice(0, first, count),
                             .dweight = row_of(piece, 0),
                             .dbias = dbias.defined() ? row_of(piece, 1) : std::span<float>()};
      dbias.defined() ? layer_norm_backward(of) : rms_norm_backward(of);
    });
    const auto add = [&](std::span<float> part, const Tensor& total) {
      const Extents<2> shape{1, columns};
      add_rows(View2(part.data(), shape), MutView2(total.data_ptr<float>(), shape));
    };
    for (int64_t piece = 0; piece < pieces; ++piece) {
      add(row_of(piece, 0), dweight);
      if (dbias.defined()) add(row_of(piece, 1), dbias);
    }
  }
};

std::tuple<Tensor, Tensor> norm_public(const Tensor& x, const OptionalTensor& added, const Tensor& weight,
                                       const OptionalTensor& bias, double eps) {
  const Tensors found = call<NormOp>({x, or_undefined(added), weight, or_undefined(bias)}, {eps});
  return {found[0], added ? found[1] : x};
}

TORCH_LIBRARY_FRAGMENT(raffia, library) {
  Kernels<NormOp>::define(library);
  library.def("norm(Tensor x, Tensor? added, Tensor weight, Tensor? bias=None, float eps=1e-5) -> (Tensor, Tensor)",
              &norm_public);
}

}  // namespace

Tensor rms_norm_of_torch(const Tensor& x, const Tensor& weight, double eps) {
  const Tensor wide = x.scalar_type() == at::kBFloat16 ? x.to(at::kFloat) : x;
  return (wide * at::rsqrt(wide.square().mean(-1, true) + eps) * weight).to(x.scalar_type());
}

Normed norm(const Tensor& x, const Tensor& added, const Tensor& weight, const Tensor& bias, double eps) {
  if (!is_ours(x, weight) || (added.defined() && !is_ours(added, weight))) {
    const Tensor sum = added.defined() ? x + added : x;
    return {bias.defined() ? at::layer_norm(sum, {sum.size(-1)}, weight, bias, eps) : rms_norm_of_torch(sum, weight, eps), sum};
  }
  static const auto op = handle<decltype(norm_public)>("raffia::norm");
  const auto [y, sum] = op.call(x, or_none(added), weight, or_none(bias), eps);
  return {y, sum};
}

}  // namespace raffia::internal::ops
