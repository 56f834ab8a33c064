// With n = (x - mean) inverse and g = dy weight: dx = inverse (g - mean(g) - n mean(g n)), dweight += dy n, dbias += dy. A row
// stays in L1: what it is normalised by is computed again rather than kept from the forward pass.
#include "kernels/norm_backward.h"

#include "core/check.h"
#include "core/dispatch.h"
#include "kernels/float_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm_backward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off: foreach_target.h comes first
#include "kernels/layer_ops-inl.h"
// clang-format on

#ifndef RAFFIA_KERNELS_NORM_BACKWARD_ROW_
#define RAFFIA_KERNELS_NORM_BACKWARD_ROW_
namespace raffia::internal {

struct NormGradientsOfRow {
  const float *x, *weight, *dy, *added;  // added: null if there is none
  float *dx, *dweight, *dbias;           // dbias: the same
};

}  // namespace raffia::internal
#endif

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {

template <bool kCentred>
HWY_INLINE void norm_backward_row(const NormGradientsOfRow& row, const NormOfRow& norm, size_t columns) {
  const Tag d;
  const float count = static_cast<float>(columns);
  const Vec mean = hn::Set(d, norm.mean), inverse = hn::Set(d, norm.inverse);
  const auto normal = [&](size_t i, size_t left) HWY_ATTR { return hn::Mul(hn::Sub(load_some(row.x + i, left), mean), inverse); };
  // Lanes past the end have a weight of 0.
  const auto weighted = [&](size_t i, size_t left)
                            HWY_ATTR { return hn::Mul(load_some(row.dy + i, left), load_some(row.weight + i, left)); };
  const float mean_gn =
      sum_columns(columns, [&](size_t i, size_t left) HWY_ATTR { return hn::Mul(weighted(i, left), normal(i, left)); }) / count;
  const float mean_g = kCentred ? sum_columns(columns, weighted) / count : 0.0f;
  const Vec common = hn::Set(d, mean_g), along = hn::Set(d, mean_gn);
  for (size_t i = 0; i < columns; i += kLanes) {
    const size_t left = columns - i;
    const Vec dy = load_some(row.dy + i, left), n = normal(i, left);
    store_some(hn::MulAdd(dy, n, load_some(row.dweight + i, left)), row.dweight + i, left);
    if (row.dbias != nullptr) store_some(hn::Add(dy, load_some(row.dbias + i, left)), row.dbias + i, left);
    Vec dx = hn::Mul(dy, load_some(row.weight + i, left));
    if (kCentred) dx = hn::Sub(dx, common);
    dx = hn::Mul(hn::NegMulAdd(n, along, dx), inverse);
    if (row.added != nullptr) dx = hn::Add(dx, load_some(row.added + i, left));
    store_some(dx, row.dx + i, left);
  }
}

void layer_norm_backward_row(const NormGradientsOfRow& row, float eps, size_t columns) {
  norm_backward_row<true>(row, layer_norm_of(row.x, eps, columns), columns);
}

void rms_norm_backward_row(const NormGradientsOfRow& row, float eps, size_t columns) {
  norm_backward_row<false>(row, rms_norm_of(row.x, eps, columns), columns);
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace raffia::internal {
namespace {

HWY_EXPORT(layer_norm_backward_row);
HWY_EXPORT(rms_norm_backward_row);

using RowFunction = void(const NormGradientsOfRow& row, float eps, size_t columns);

void for_each_row(const char* op, const NormGradients& of, RowFunction* backward) {
  const auto columns = static_cast<size_t>(of.x.extent(1));
  require_rows(op, "x", of.x, of.x.shape(), "shape of x");
  require_rows(op, "dy", of.dy, of.x.shape(), "shape of x");
  require_rows(op, "dx", of.dx, of.x.shape(), "shape of x");
  if (!of.added.absent()) require_rows(op, "added", of.added, of.x.shape(), "shape of x");
  require(of.weight.size() == columns && of.dweight.size() == columns && (of.dbias.empty() || of.dbias.size() == columns),
          "{}: weight has {} elements, dweight {}, dbias {}, expected {} (columns of x), for dbias also 0", op, of.weight.size(),
          of.dweight.size(), of.dbias.size(), columns);
  if (columns == 0) return;  // there may be no memory
  const auto row_of = [](const auto& view, int64_t t) { return static_cast<const float*>(view.data()) + t * view.stride(0); };
  for (int64_t t = 0; t < of.x.extent(0); ++t) {
    const NormGradientsOfRow row{.x = row_of(of.x, t),
                                 .weight = of.weight.data(),
                                 .dy = row_of(of.dy, t),
                                 .added = of.added.absent() ? nullptr : row_of(of.added, t),
                                 .dx = static_cast<float*>(of.dx.data()) + t * of.dx.stride(0),
                                 .dweight = of.dweight.data(),
                                 .dbias = of.dbias.empty() ? nullptr : of.dbias.data()};
    backward(row, of.eps, columns);
  }
}

}  // namespace

void layer_norm_backward(const NormGradients& of) {
  for_each_row("layer_norm_backward", of, chosen(KernelOp::norm_backward, HWY_DISPATCH_TABLE(layer_norm_backward_row)));
}

void rms_norm_backward(const NormGradients& of) {
  for_each_row("rms_norm_backward", of, chosen(KernelOp::norm_backward, HWY_DISPATCH_TABLE(rms_norm_backward_row)));
}

}  // namespace raffia::internal
#endif  // HWY_ONCE
