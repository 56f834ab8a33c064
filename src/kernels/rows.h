// The tokens of one head as a kernel sees them: rows [T, D] of fp32 or bf16 with any strides, counted in elements.
#ifndef RAFFIA_KERNELS_ROWS_H_
#define RAFFIA_KERNELS_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "raffia/views.h"

namespace raffia::internal {

constexpr size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

struct Rows {
  const void* data = nullptr;
  DType dtype = DType::f32;
  int64_t row_stride = 0;
  int64_t col_stride = 1;

  bool direct() const { return dtype == DType::f32 && col_stride == 1; }
  const float* direct_row(size_t t) const { return static_cast<const float*>(data) + static_cast<int64_t>(t) * row_stride; }
  float at(size_t t, size_t column) const {
    const int64_t i = static_cast<int64_t>(t) * row_stride + static_cast<int64_t>(column) * col_stride;
    return dtype == DType::f32 ? static_cast<const float*>(data)[i] : static_cast<const BFloat16*>(data)[i].to_float();
  }
};

struct MutRows {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t row_stride = 0;
  int64_t col_stride = 1;

  bool direct() const { return dtype == DType::f32 && col_stride == 1; }
  float* direct_row(size_t t) const { return static_cast<float*>(data) + static_cast<int64_t>(t) * row_stride; }
  Rows readable() const { return {data, dtype, row_stride, col_stride}; }
  MutRows columns_from(size_t column) const {
    MutRows moved = *this;
    moved.data = static_cast<std::byte*>(data) + static_cast<int64_t>(column * size_of(dtype)) * col_stride;
    return moved;
  }
  void set(size_t t, size_t column, float value) const {
    const int64_t i = static_cast<int64_t>(t) * row_stride + static_cast<int64_t>(column) * col_stride;
    if (dtype == DType::f32) {
      static_cast<float*>(data)[i] = value;
    } else {
      static_cast<BFloat16*>(data)[i] = BFloat16::from_float(value);
    }
  }
};

// Row t of any type and strides, for code that reads rows of floats by their pointer too.
struct RowColumns {
  const Rows& rows;
  size_t t;
  template <class Index>
  float operator[](Index column) const {
    return rows.at(t, static_cast<size_t>(column));
  }
};

// Row t of `from` as floats in one piece.
inline void copy_floats(const Rows& from, size_t t, size_t columns, float* to) {
  if (from.direct()) {
    std::copy_n(from.direct_row(t), columns, to);
  } else {
    for (size_t i = 0; i < columns; ++i) to[i] = from.at(t, i);
  }
}

// Row t of `from` to row u of `to`.
inline void copy_row(const Rows& from, size_t t, size_t columns, const MutRows& to, size_t u) {
  if (to.direct()) {
    copy_floats(from, t, columns, to.direct_row(u));
  } else {
    for (size_t i = 0; i < columns; ++i) to.set(u, i, from.at(t, i));
  }
}

// Head `h` of batch entry `b`, from token `t` on.
template <class AnyRows, class AnyView>
AnyRows rows_of(const AnyView& view, int64_t b, int64_t t, int64_t h) {
  if (view.data() == nullptr) return {};  // absent, or never to be read
  auto* bytes = static_cast<std::conditional_t<std::is_same_v<AnyRows, MutRows>, std::byte, const std::byte>*>(view.data());
  bytes += view.offset(b, t, h, int64_t{0}) * static_cast<int64_t>(size_of(view.dtype()));
  return {bytes, view.dtype(), view.stride(1), view.stride(3)};
}

}  // namespace raffia::internal

#endif  // RAFFIA_KERNELS_ROWS_H_
