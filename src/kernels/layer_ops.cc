#include "kernels/layer_ops.h"

#include "core/check.h"
#include "core/dispatch.h"
#include "core/scratch.h"
#include "kernels/float_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/layer_ops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off: foreach_target.h comes first
#include "kernels/layer_ops-inl.h"
// clang-format on

#ifndef RAFFIA_KERNELS_LAYER_OPS_ROWS_
#define RAFFIA_KERNELS_LAYER_OPS_ROWS_
namespace raffia::internal {

// Rows [T, E] of floats; the inner form of the views that were checked.
struct FloatRows {
  const float* data;
  int64_t stride;
  const float* operator[](size_t row) const { return data + static_cast<int64_t>(row) * stride; }
};
struct MutFloatRows {
  float* data;
  int64_t stride;
  float* operator[](size_t row) const { return data + static_cast<int64_t>(row) * stride; }
};
struct RowsShape {
  size_t rows, columns;
};

}  // namespace raffia::internal
#endif

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {

void layer_norm_rows(RowsShape shape, FloatRows x, const float* weight, const float* bias, float eps, MutFloatRows y) {
  for (size_t t = 0; t < shape.rows; ++t) layer_norm_row(x[t], weight, bias, eps, shape.columns, y[t]);
}

void rms_norm_rows(RowsShape shape, FloatRows x, const float* weight, float eps, MutFloatRows y) {
  for (size_t t = 0; t < shape.rows; ++t) rms_norm_row(x[t], weight, eps, shape.columns, y[t]);
}

void gelu_rows(RowsShape shape, FloatRows x, MutFloatRows y) {
  for (size_t t = 0; t < shape.rows; ++t) {
    const float* from = x[t];
    map_columns(shape.columns, y[t], [&](size_t i, size_t left) HWY_ATTR { return gelu_of(Tag(), load_some(from + i, left)); });
  }
}

void gelu_backward_rows(RowsShape shape, FloatRows x, FloatRows dy, MutFloatRows dx) {
  for (size_t t = 0; t < shape.rows; ++t) {
    const float *from = x[t], *gradient = dy[t];
    map_columns(shape.columns, dx[t], [&](size_t i, size_t left) HWY_ATTR {
      return hn::Mul(gelu_slope_of(Tag(), load_some(from + i, left)), load_some(gradient + i, left));
    });
  }
}

void swiglu_rows(RowsShape shape, FloatRows gate, FloatRows up, MutFloatRows y) {
  for (size_t t = 0; t < shape.rows; ++t) {
    const float *g = gate[t], *u = up[t];
    map_columns(shape.columns, y[t], [&](size_t i, size_t left) HWY_ATTR {
      return hn::Mul(silu_of(Tag(), load_some(g + i, left)), load_some(u + i, left));
    });
  }
}

void swiglu_backward_rows(RowsShape shape, FloatRows gate, FloatRows up, FloatRows dy, MutFloatRows dgate, MutFloatRows dup) {
  const Tag d;
  for (size_t t = 0; t < shape.rows; ++t) {
    for (size_t i = 0; i < shape.columns; i += kLanes) {
      const size_t left = shape.columns - i;
      const Vec g = load_some(gate[t] + i, left), u = load_some(up[t] + i, left), dout = load_some(dy[t] + i, left);
      store_some(hn::Mul(hn::Mul(dout, u), silu_slope_of(d, g)), dgate[t] + i, left);
      store_some(hn::Mul(dout, silu_of(d, g)), dup[t] + i, left);
    }
  }
}

void sum_of_rows(RowsShape shape, FloatRows a, FloatRows b, MutFloatRows y) {
  for (size_t t = 0; t < shape.rows; ++t) {
    const float *first = a[t], *second = b[t];
    map_columns(shape.columns, y[t],
                [&](size_t i, size_t left) HWY_ATTR { return hn::Add(load_some(second + i, left), load_some(first + i, left)); });
  }
}

// `shape` is that of one token: heads by d/2.
void rotate_token(RowsShape shape, FloatRows x, const float* turns, MutFloatRows y) {
  for (size_t h = 0; h < shape.rows; ++h) rotate_row(x[h], turns, shape.columns, y[h]);
}

// One vector of columns walks through all rows. A ring [J, lanes] keeps the inputs that an output in their place overwrites.
void convolve_rows(RowsShape shape, FloatRows x, size_t taps, FloatRows weights, MutFloatRows history, MutFloatRows y,
                   float* ring) {
  const Tag d;
  for (size_t c = 0; c < shape.columns; c += kLanes) {
    const size_t left = shape.columns - c;
    for (size_t j = 0; j + 1 < taps; ++j) hn::StoreU(load_some(history[j] + c, left), d, ring + j * kLanes);
    size_t newest = taps - 1;
    for (size_t t = 0; t < shape.rows; ++t) {
      hn::StoreU(load_some(x[t] + c, left), d, ring + newest * kLanes);
      size_t at = newest + 1 == taps ? 0 : newest + 1;  // the oldest
      Vec sum = hn::Zero(d);
      for (size_t j = 0; j < taps; ++j) {
        sum = hn::MulAdd(load_some(weights[j] + c, left), hn::LoadU(d, ring + at * kLanes), sum);
        at = at + 1 == taps ? 0 : at + 1;
      }
      store_some(sum, y[t] + c, left);
      newest = newest + 1 == taps ? 0 : newest + 1;
    }
    // What comes next would overwrite the oldest: the others are the history.
    size_t at = newest + 1 == taps ? 0 : newest + 1;
    for (size_t j = 0; j + 1 < taps; ++j) {
      store_some(hn::LoadU(d, ring + at * kLanes), history[j] + c, left);
      at = at + 1 == taps ? 0 : at + 1;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace raffia::internal {
namespace {

HWY_EXPORT(layer_norm_rows);
HWY_EXPORT(rms_norm_rows);
HWY_EXPORT(gelu_rows);
HWY_EXPORT(gelu_backward_rows);
HWY_EXPORT(swiglu_rows);
HWY_EXPORT(swiglu_backward_rows);
HWY_EXPORT(sum_of_rows);
HWY_EXPORT(rotate_token);
HWY_EXPORT(convolve_rows);

void require_length(const char* op, const char* argument, std::span<const float> values, int64_t length, const char* why) {
  require(values.size() == static_cast<size_t>(length), "{}: {} has {} elements, expected {} ({})", op, argument, values.size(),
          length, why);
}

FloatRows rows_of(View2 view) { return {static_cast<const float*>(view.data()), view.stride(0)}; }
MutFloatRows rows_of(MutView2 view) { return {static_cast<float*>(view.data()), view.stride(0)}; }
// Rows without columns are none: they may have no memory.
RowsShape shape_of(View2 x) {
  return {x.extent(1) == 0 ? 0 : static_cast<size_t>(x.extent(0)), static_cast<size_t>(x.extent(1))};
}

// Token `t` of [T, H, d] as rows of heads, and head `h` as rows of tokens.
template <class AnyView3>
auto token_of(AnyView3 view, int64_t t) {
  const AnyView3 one = view.slice(0, t, 1);
  return rows_of(std::conditional_t<std::is_same_v<AnyView3, View3>, View2, MutView2>(
      one.data(), DType::f32, {one.extent(1), one.extent(2)}, {one.stride(1), one.stride(2)}));
}
template <class AnyView3>
auto head_of(AnyView3 view, int64_t h) {
  const AnyView3 one = view.slice(1, h, 1);
  return rows_of(std::conditional_t<std::is_same_v<AnyView3, View3>, View2, MutView2>(
      one.data(), DType::f32, {one.extent(0), one.extent(2)}, {one.stride(0), one.stride(2)}));
}

}  // namespace

void layer_norm(View2 x, std::span<const float> weight, std::span<const float> bias, float eps, MutView2 y) {
  require_rows("layer_norm", "x", x, x.shape(), "its own");
  require_length("layer_norm", "weight", weight, x.extent(1), "columns of x");
  if (!bias.empty()) require_length("layer_norm", "bias", bias, x.extent(1), "columns of x");
  require_rows("layer_norm", "y", y, x.shape(), "shape of x");
  chosen(KernelOp::layer_ops, HWY_DISPATCH_TABLE(layer_norm_rows))(shape_of(x), rows_of(x), weight.data(),
                                                                   bias.empty() ? nullptr : bias.data(), eps, rows_of(y));
}

void rms_norm(View2 x, std::span<const float> weight, float eps, MutView2 y) {
  require_rows("rms_norm", "x", x, x.shape(), "its own");
  require_length("rms_norm", "weight", weight, x.extent(1), "columns of x");
  require_rows("rms_norm", "y", y, x.shape(), "shape of x");
  chosen(KernelOp::layer_ops, HWY_DISPATCH_TABLE(rms_norm_rows))(shape_of(x), rows_of(x), weight.data(), eps, rows_of(y));
}

void head_norm(View3 x, std::span<const float> weight, float eps, MutView3 y) {
  const int64_t heads = x.extent(1), dim = x.extent(2);
  require_rows("head_norm", "x", x, x.shape(), "its own");
  require_length("head_norm", "weight", weight, heads * dim, "heads and columns of x");
  require_rows("head_norm", "y", y, x.shape(), "shape of x");
  const RowsShape shape{static_cast<size_t>(x.extent(0)), static_cast<size_t>(dim)};
  for (int64_t h = 0; h < heads; ++h) {
    chosen(KernelOp::layer_ops, HWY_DISPATCH_TABLE(rms_norm_rows))(shape, head_of(x, h), weight.data() + h * dim, eps,
                                                                   head_of(y, h));
  }
}

void gelu(View2 x, MutView2 y) {
  require_rows("gelu", "x", x, x.shape(), "its own");
  require_rows("gelu", "y", y, x.shape(), "shape of x");
  chosen(KernelOp::layer_ops, HWY_DISPATCH_TABLE(gelu_rows))(shape_of(x), rows_of(x), rows_of(y));
}

void gelu_backward(View2 x, View2 dy, MutView2 dx) {
  require_rows("gelu_backward", "x", x, x.shape(), "its own");
  require_rows("gelu_backward", "dy", dy, x.shape(), "shape of x");
  require_rows("gelu_backward", "dx", dx, x.shape(), "shape of x");
  chosen(KernelOp::layer_ops, HWY_DISPATCH_TABLE(gelu_backward_rows))(shape_of(x), rows_of(x), rows_of(dy), rows_of(dx));
}

void swiglu(View2 gate, View2 up, MutView2 y) {
  require_rows("swiglu", "gate", gate, gate.shape(), "its own");
  require_rows("swiglu", "up", up, gate.shape(), "shape of gate");
  require_rows("swiglu", "y", y, gate.shape(), "shape of gate");
  chosen(KernelOp::layer_ops, HWY_DISPATCH_TABLE(swiglu_rows))(shape_of(gate), rows_of(gate), rows_of(up), rows_of(y));
}

void swiglu_backward(View2 gate, View2 up, View2 dy, MutView2 dgate, MutView2 dup) {
  constexpr const char* kName = "swiglu_backward";
  require_rows(kName, "gate", gate, gate.shape(), "its own");
  require_rows(kName, "up", up, gate.shape(), "shape of gate");
  require_rows(kName, "dy", dy, gate.shape(), "shape of gate");
  require_rows(kName, "dgate", dgate, gate.shape(), "shape of gate");
  require_rows(kName, "dup", dup, gate.shape(), "shape of gate");
  chosen(KernelOp::layer_ops, HWY_DISPATCH_TABLE(swiglu_backward_rows))(shape_of(gate), rows_of(gate), rows_of(up), rows_of(dy),
                                                                        rows_of(dgate), rows_of(dup));
}

void sum_rows(View2 a, View2 b, MutView2 y) {
  require_rows("sum_rows", "a", a, a.shape(), "its own");
  require_rows("sum_rows", "b", b, a.shape(), "shape of a");
  require_rows("sum_rows", "y", y, a.shape(), "shape of a");
  chosen(KernelOp::layer_ops, HWY_DISPATCH_TABLE(sum_of_rows))(shape_of(a), rows_of(a), rows_of(b), rows_of(y));
}

void add_rows(View2 x, MutView2 y) { sum_rows(x, y, y); }

Rotary::Rotary(int64_t head_dim, double base) : head_dim_(head_dim) {
  require(head_dim >= 0 && head_dim % 2 == 0, "Rotary: head_dim is {}, expected an even number", head_dim);
  require(base > 0 && std::isfinite(base), "Rotary: base is {}, expected a number above 0", base);
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    frequencies_.push_back(std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
  }
}

void Rotary::fill(int64_t position, std::span<float> turns) const {
  require_length("Rotary::fill", "turns", turns, head_dim_, "head_dim");
  const size_t half = frequencies_.size();
  for (size_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * frequencies_[i];
    turns[i] = static_cast<float>(std::cos(angle));
    turns[half + i] = static_cast<float>(std::sin(angle));
  }
}

void rotate(View3 x, View2 turns, MutView3 y) {
  require_rows("rotate", "x", x, x.shape(), "its own");
  require(x.extent(2) % 2 == 0, "rotate: x has {} columns, expected an even number", x.extent(2));
  require_rows("rotate", "turns", turns, {x.extent(0), x.extent(2)}, "tokens and columns of x");
  require_rows("rotate", "y", y, x.shape(), "shape of x");
  const RowsShape shape{static_cast<size_t>(x.extent(1)), static_cast<size_t>(x.extent(2) / 2)};
  for (int64_t t = 0; t < x.extent(0); ++t) {
    chosen(KernelOp::layer_ops, HWY_DISPATCH_TABLE(rotate_token))(shape, token_of(x, t), rows_of(turns)[static_cast<size_t>(t)],
                                                                  token_of(y, t));
  }
}

void short_convolution(View2 x, View2 taps, MutView2 history, MutView2 y) {
  constexpr size_t kMaxLanes = 16;
  require_rows("short_convolution", "x", x, x.shape(), "its own");
  require_rows("short_convolution", "taps", taps, {taps.extent(0), x.extent(1)}, "columns of x");
  require(taps.extent(0) >= 1, "short_convolution: taps has {} rows, expected at least 1", taps.extent(0));
  require_rows("short_convolution", "history", history, {taps.extent(0) - 1, x.extent(1)}, "rows of taps - 1, columns of x");
  require_rows("short_convolution", "y", y, x.shape(), "shape of x");
  const size_t count = static_cast<size_t>(taps.extent(0));
  const Scratch ring(1, count * kMaxLanes);
  chosen(KernelOp::layer_ops, HWY_DISPATCH_TABLE(convolve_rows))(shape_of(x), rows_of(x), count, rows_of(taps), rows_of(history),
                                                                 rows_of(y), ring.of(0));
}

}  // namespace raffia::internal
#endif  // HWY_ONCE
