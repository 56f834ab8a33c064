// Arrays for benchmarks.
#ifndef RAFFIA_BENCH_ARRAYS_H_
#define RAFFIA_BENCH_ARRAYS_H_

#include <hwy/aligned_allocator.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "raffia/random.h"
#include "raffia/views.h"

namespace raffia::internal::bench {

// The order of axes in memory. Ops see [B, T, H, D] either way.
enum class ArrayLayout : uint8_t { bthd, bhtd };

inline constexpr float kUnitVariance = 1.7320508F;  // of values that are uniform in (-sqrt 3, sqrt 3)

// An aligned array [B, T, H, D] with all pages touched.
class Array4 {
 public:
  Array4(const Extents<4>& shape, DType dtype, ArrayLayout layout);  // zero

  MutView4 view() const { return view_; }
  MutView3 without_tokens() const;  // [B, H, D] of the first token
  MutView3 without_dim() const;     // [B, T, H] of the first element
  std::span<const std::byte> bytes() const { return {bytes_.get(), size_bytes_}; }

  // Uniform in (low, high).
  void fill(const StreamKey& key, float low, float high);

 private:
  size_t size_bytes_;
  hwy::AlignedFreeUniquePtr<std::byte[]> bytes_;
  MutView4 view_;
};

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_ARRAYS_H_
