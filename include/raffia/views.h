// Strided, non-owning views of arrays: how every op receives its inputs and outputs.
//
// A view is a pointer, an element type, a shape and strides counted in elements. Layouts other than row-major need no copy:
// a [B, H, T, D] array is read as [B, T, H, D] by `View4(data, {B, H, T, D}).permuted({0, 2, 1, 3})`.
// A default-constructed view is `absent()`: the default of optional arguments (masks, biases, gradients).
#ifndef RAFFIA_VIEWS_H_
#define RAFFIA_VIEWS_H_

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "raffia/api.h"
#include "raffia/cxx20.h"

namespace raffia {

// The upper half of an IEEE float32: 8 bits of exponent, 7 of fraction.
struct BFloat16 {
  uint16_t bits = 0;

  static constexpr BFloat16 from_float(float value) {  // rounds to nearest even; NaN stays NaN
    const uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffU) > 0x7f800000U) return {static_cast<uint16_t>((u >> 16) | 0x40U)};
    return {static_cast<uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16)};
  }
  constexpr float to_float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

enum class DType : uint8_t {
  f32,   // what kernels compute in
  bf16,  // inputs and outputs of kernels; converted chunk by chunk, accumulated in fp32
  f64,   // reference twins only
  u8,    // masks: 1 takes part, 0 does not
};

RAFFIA_API size_t size_of(DType dtype);
RAFFIA_API const char* name_of(DType dtype);

template <typename T>
constexpr DType dtype_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, float>) {
    return DType::f32;
  } else if constexpr (std::is_same_v<U, BFloat16>) {
    return DType::bf16;
  } else if constexpr (std::is_same_v<U, double>) {
    return DType::f64;
  } else {
    static_assert(
        std::is_same_v<U, uint8_t> || std::is_same_v<U, bool>,
        "a raffia view is over float, raffia::BFloat16, double (reference implementations) or uint8_t and bool (masks)");
    return DType::u8;
  }
}

template <size_t Rank>
using Extents = std::array<int64_t, Rank>;

// Row-major strides, in elements.
template <size_t Rank>
constexpr Extents<Rank> contiguous_strides(const Extents<Rank>& shape) {
  Extents<Rank> strides{};
  int64_t step = 1;
  for (size_t i = Rank; i-- > 0;) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

namespace detail {

// A list in braces that must be complete: an array would fill missing numbers with zeros.
template <size_t Rank, size_t Count>
constexpr Extents<Rank> extents_of(const int64_t (&list)[Count]) {
  static_assert(Count == Rank,
                "a raffia view needs one extent (and one stride) for each of its axes: View4 takes four, View3 three");
  Extents<Rank> extents{};
  for (size_t i = 0; i < Rank; ++i) extents[i] = list[i];
  return extents;
}

}  // namespace detail

// "[2, 128, 8]", for messages.
RAFFIA_API std::string to_string(const int64_t* extents, size_t rank);

namespace detail {

RAFFIA_API double load_element(const void* data, DType dtype, int64_t offset);
RAFFIA_API void store_element(void* data, DType dtype, int64_t offset, double value);

// Element types that a view may point to: a mutable view must not point to const.
template <typename T, bool kMutable>
concept ElementFor = !kMutable || !std::is_const_v<T>;

template <size_t Rank, bool kMutable>
class BasicView {
 public:
  using Pointer = std::conditional_t<kMutable, void*, const void*>;

  BasicView() = default;

  // Row-major over `data`, which outlives the view.
  template <ElementFor<kMutable> T>
  BasicView(T* data, const Extents<Rank>& shape) : BasicView(data, shape, contiguous_strides(shape)) {}

  template <ElementFor<kMutable> T>
  BasicView(T* data, const Extents<Rank>& shape, const Extents<Rank>& strides)
      : data_(data), dtype_(dtype_of<T>()), shape_(shape), strides_(strides) {}

  // Extents in braces: View4(data, {B, T, H, D}).
  template <ElementFor<kMutable> T, size_t Count>
  BasicView(T* data, const int64_t (&shape)[Count]) : BasicView(data, extents_of<Rank>(shape)) {}
  template <ElementFor<kMutable> T, size_t Count, size_t StrideCount>
  BasicView(T* data, const int64_t (&shape)[Count], const int64_t (&strides)[StrideCount])
      : BasicView(data, extents_of<Rank>(shape), extents_of<Rank>(strides)) {}
  template <ElementFor<kMutable> T, size_t StrideCount>
  BasicView(T* data, const Extents<Rank>& shape, const int64_t (&strides)[StrideCount])
      : BasicView(data, shape, extents_of<Rank>(strides)) {}

  BasicView(Pointer data, DType dtype, const Extents<Rank>& shape, const Extents<Rank>& strides)
      : data_(data), dtype_(dtype), shape_(shape), strides_(strides) {}

  // A mutable view converts to a read-only one.
  template <bool kOther, typename = std::enable_if_t<!kMutable && kOther>>
  BasicView(const BasicView<Rank, kOther>& other)  // NOLINT(google-explicit-constructor): like T* to const T*
      : data_(other.data()), dtype_(other.dtype()), shape_(other.shape()), strides_(other.strides()) {}

  bool absent() const { return data_ == nullptr && size() == 0; }
  Pointer data() const { return data_; }
  DType dtype() const { return dtype_; }
  const Extents<Rank>& shape() const { return shape_; }
  const Extents<Rank>& strides() const { return strides_; }
  int64_t extent(size_t axis) const { return shape_[axis]; }
  int64_t stride(size_t axis) const { return strides_[axis]; }

  int64_t size() const {
    int64_t count = 1;
    for (int64_t extent : shape_) count *= extent;
    return count;
  }

  // Axis i of the result is axis order[i] of this view.
  BasicView permuted(const std::array<size_t, Rank>& order) const {
    Extents<Rank> shape{}, strides{};
    for (size_t i = 0; i < Rank; ++i) {
      shape[i] = shape_[order[i]];
      strides[i] = strides_[order[i]];
    }
    return BasicView(data_, dtype_, shape, strides);
  }

  // `count` entries of `axis`, from `begin`.
  BasicView slice(size_t axis, int64_t begin, int64_t count) const {
    Extents<Rank> shape = shape_;
    shape[axis] = count;
    return BasicView(at_offset(begin * strides_[axis]), dtype_, shape, strides_);
  }

  // One element as double: for references and tests, not for hot loops.
  template <std::integral... Index>
  double operator()(Index... index) const {
    return load_element(data_, dtype_, offset(index...));
  }

  template <std::integral... Index>
  void set(double value, Index... index) const {
    static_assert(kMutable);
    store_element(data_, dtype_, offset(index...), value);
  }

  template <std::integral... Index>
  int64_t offset(Index... index) const {
    static_assert(sizeof...(Index) == Rank);
    const Extents<Rank> at{static_cast<int64_t>(index)...};
    int64_t sum = 0;
    for (size_t i = 0; i < Rank; ++i) sum += at[i] * strides_[i];
    return sum;
  }

 private:
  Pointer at_offset(int64_t elements) const {
    using Byte = std::conditional_t<kMutable, std::byte, const std::byte>;
    if (data_ == nullptr) return nullptr;
    return static_cast<Byte*>(data_) + elements * static_cast<int64_t>(size_of(dtype_));
  }

  Pointer data_ = nullptr;
  DType dtype_ = DType::f32;
  Extents<Rank> shape_{};
  Extents<Rank> strides_{};
};

}  // namespace detail

template <size_t Rank>
using View = detail::BasicView<Rank, false>;
template <size_t Rank>
using MutView = detail::BasicView<Rank, true>;

using View1 = View<1>;
using View2 = View<2>;
using View3 = View<3>;
using View4 = View<4>;
using MutView1 = MutView<1>;
using MutView2 = MutView<2>;
using MutView3 = MutView<3>;
using MutView4 = MutView<4>;

}  // namespace raffia

#endif  // RAFFIA_VIEWS_H_
