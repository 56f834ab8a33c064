// The weights of a linear layer as they are stored: fp32, bf16, or int8 with one factor per row.
#ifndef RAFFIA_CORE_WEIGHT_MATRIX_H_
#define RAFFIA_CORE_WEIGHT_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/sibling_api.h"
#include "raffia/views.h"

namespace raffia::internal {

enum class WeightType : uint8_t { f32, bf16, int8 };

RAFFIA_SIBLING_API size_t size_of(WeightType type);
RAFFIA_SIBLING_API const char* name_of(WeightType type);  // "f32", "bf16", "int8"

// Row-major [rows, columns], one row per output. Does not own its memory, which is often a memory-mapped file: aligned to
// an element, not to a vector.
struct WeightMatrix {
  WeightType type = WeightType::f32;
  const void* data = nullptr;
  const float* scales = nullptr;  // [rows] of int8: weight = scale * element; null for the others
  int64_t rows = 0;
  int64_t columns = 0;

  size_t row_bytes() const { return static_cast<size_t>(columns) * size_of(type); }
  const void* row(int64_t index) const { return static_cast<const std::byte*>(data) + static_cast<size_t>(index) * row_bytes(); }
};

// One row as floats. `out` has as many elements as the matrix has columns.
RAFFIA_SIBLING_API void copy_row(const WeightMatrix& weights, int64_t row, std::span<float> out);

// weights [rows, columns] of f32 -> quantized [rows, columns], scales [rows]: scale = max |w| / 127 of the row, elements are
// rounded to nearest, ties to even. A row of zeros has scale 0. If a weight is not finite, throws InvalidArgument with `name` and
// its index.
RAFFIA_SIBLING_API void quantize_rows(std::string_view name, View2 weights, std::span<int8_t> quantized, std::span<float> scales);

// Rounds to nearest, ties to even. Throws InvalidArgument if a weight is not finite or does not fit bf16.
RAFFIA_SIBLING_API void round_weights(std::string_view name, std::span<const float> weights, std::span<BFloat16> rounded);

}  // namespace raffia::internal

#endif  // RAFFIA_CORE_WEIGHT_MATRIX_H_
