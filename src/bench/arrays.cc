#include "bench/arrays.h"

#include <fmt/format.h>

#include <cstring>

#include "raffia/error.h"

namespace raffia::internal::bench {
namespace {

// Throws where the product does not fit in what an address can reach.
size_t checked_bytes(const Extents<4>& shape, DType dtype) {
  constexpr double kAddressable = 1e14;
  double bytes = static_cast<double>(size_of(dtype));
  for (const int64_t extent : shape) bytes *= static_cast<double>(extent);
  if (bytes > kAddressable) {
    throw Error(
        fmt::format("an array of shape {} takes {:.3g} bytes, more than can be addressed", to_string(shape.data(), 4), bytes));
  }
  return static_cast<size_t>(bytes);
}

MutView4 view_of(std::byte* bytes, const Extents<4>& shape, DType dtype, ArrayLayout layout) {
  if (layout == ArrayLayout::bthd) return {bytes, dtype, shape, contiguous_strides(shape)};
  const Extents<4> in_memory{shape[0], shape[2], shape[1], shape[3]};
  return MutView4(bytes, dtype, in_memory, contiguous_strides(in_memory)).permuted({0, 2, 1, 3});
}

}  // namespace

Array4::Array4(const Extents<4>& shape, DType dtype, ArrayLayout layout)
    : size_bytes_(checked_bytes(shape, dtype)), bytes_(hwy::AllocateAligned<std::byte>(size_bytes_)) {
  if (bytes_ == nullptr) throw Error(fmt::format("out of memory: cannot allocate {} bytes", size_bytes_));
  std::memset(bytes_.get(), 0, size_bytes_);
  view_ = view_of(bytes_.get(), shape, dtype, layout);
}

MutView3 Array4::without_tokens() const {
  return {view_.data(),
          view_.dtype(),
          {view_.extent(0), view_.extent(2), view_.extent(3)},
          {view_.stride(0), view_.stride(2), view_.stride(3)}};
}

MutView3 Array4::without_dim() const {
  return {view_.data(),
          view_.dtype(),
          {view_.extent(0), view_.extent(1), view_.extent(2)},
          {view_.stride(0), view_.stride(1), view_.stride(2)}};
}

void Array4::fill(const StreamKey& key, float low, float high) {
  RandomStream random(key);
  const int64_t count = view_.size();
  const auto next = [&] { return low + (high - low) * static_cast<float>(random.next_u32() >> 8) * 0x1p-24F; };
  if (view_.dtype() == DType::bf16) {
    auto* values = static_cast<BFloat16*>(view_.data());
    for (int64_t i = 0; i < count; ++i) values[i] = BFloat16::from_float(next());
  } else {
    auto* values = static_cast<float*>(view_.data());
    for (int64_t i = 0; i < count; ++i) values[i] = next();
  }
}

}  // namespace raffia::internal::bench
