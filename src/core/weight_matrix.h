// The weights of a linear layer as they are stored: fp32, bf16, int8 with a scale per row, int4 with a scale per group of 32
// columns.
#ifndef RAFFIA_CORE_WEIGHT_MATRIX_H_
#define RAFFIA_CORE_WEIGHT_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/named.h"
#include "core/sibling_api.h"
#include "raffia/views.h"

namespace raffia::internal {

enum class WeightType : uint8_t { f32, bf16, int8, int4 };

inline constexpr Named<WeightType> kWeightTypes[] = {
    {"f32", WeightType::f32}, {"bf16", WeightType::bf16}, {"int8", WeightType::int8}, {"int4", WeightType::int4}};
inline std::string_view name_of(WeightType type) { return name_in(kWeightTypes, type); }

// Columns of a group of int4, which have one scale; also those of a block of activations that are quantised together.
constexpr int64_t kWeightGroup = 32;

struct WeightMatrix;

// All that depends on the type of weights, except for how products are computed.
struct WeightFormat {
  enum class Scales : uint8_t { none, row, group };

  WeightType type;
  const char* element;   // dtype of the stored elements in a weight file
  size_t element_bytes;  // their alignment as well
  int64_t group;         // columns that are stored together: a row is a whole number of groups
  size_t group_bytes;
  Scales scales;
  const char* scale;  // dtype of the scales
  size_t scale_bytes;
  bool by_integers;       // products quantise the activations as well, and multiply integers
  WeightType vocabulary;  // of the matrices with a row per token, embeddings and output, in a model of this type

  // Rows of f32, columns side by side, in this type. Throws InvalidArgument with `name` for weights that are not finite or do not
  // fit.
  void (*store)(std::string_view name, View2 weights, std::byte* stored, std::byte* scales);
  void (*widen_row)(const WeightMatrix& weights, int64_t row, float* out);

  int64_t groups(int64_t columns) const { return (columns + group - 1) / group; }
  size_t row_bytes(int64_t columns) const { return static_cast<size_t>(groups(columns)) * group_bytes; }
  int64_t row_scales(int64_t columns) const { return scales == Scales::none ? 0 : scales == Scales::row ? 1 : groups(columns); }
  size_t row_scale_bytes(int64_t columns) const { return static_cast<size_t>(row_scales(columns)) * scale_bytes; }
};

RAFFIA_SIBLING_API std::span<const WeightFormat> weight_formats();
RAFFIA_SIBLING_API const WeightFormat& format_of(WeightType type);

// The type of a matrix in a model of type `type`. `vocabulary`: it has a row per token.
inline WeightType type_in_model(WeightType type, bool vocabulary) { return vocabulary ? format_of(type).vocabulary : type; }

// Row-major [rows, columns], one row per output. Does not own its memory, which is often a memory-mapped file: aligned to
// an element, not to a vector.
struct WeightMatrix {
  WeightType type = WeightType::f32;
  const void* data = nullptr;
  const void* scales = nullptr;  // f32 [rows] of int8, bf16 [rows, groups] of int4: weight = scale * element
  int64_t rows = 0;
  int64_t columns = 0;

  const WeightFormat& format() const { return format_of(type); }
  size_t row_bytes() const { return format().row_bytes(columns); }
  const void* row(int64_t index) const { return static_cast<const std::byte*>(data) + static_cast<size_t>(index) * row_bytes(); }
  const float* row_scales() const { return static_cast<const float*>(scales); }  // of int8
  const BFloat16* group_scales(int64_t row) const {                              // of int4
    return static_cast<const BFloat16*>(scales) + row * format().groups(columns);
  }
};

// The value of an element of int4 is the stored nibble minus this. Group g of a row has 16 bytes: byte i holds column 32 g + i in
// its lower half and column 32 g + 16 + i in its upper half. Columns past the end are zeros.
constexpr int kNibbleZero = 8;

// One row as floats. `out` has as many elements as the matrix has columns.
RAFFIA_SIBLING_API void copy_row(const WeightMatrix& weights, int64_t row, std::span<float> out);

// Weights in their stored form, and the memory of it.
struct StoredWeights {
  WeightMatrix matrix;
  std::vector<std::byte> elements, scales;
};

// weights [rows, columns] of f32, columns side by side.
//
//   bf16  rounded to nearest, ties to even
//   int8  scale = max |w| / 127 of the row, elements rounded to nearest, ties to even. A row of zeros has scale 0
//   int4  elements -8 .. 7; of some scales of a group that with the least squared error, after it was rounded to bf16
//
// Throws InvalidArgument with `name` and the place if a weight is not finite, or does not fit bf16.
RAFFIA_SIBLING_API StoredWeights store_weights(std::string_view name, View2 weights, WeightType type);

}  // namespace raffia::internal

#endif  // RAFFIA_CORE_WEIGHT_MATRIX_H_
