// model.safetensors with matrices in a given type (core/weight_matrix.h).
#ifndef RAFFIA_IO_FORMATS_WEIGHT_FILE_H_
#define RAFFIA_IO_FORMATS_WEIGHT_FILE_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/weight_matrix.h"
#include "io/formats/safetensors.h"

namespace raffia::internal {

// A tensor that is read a few rows at a time; a row has one index of the first axis.
struct WeightSource {
  std::string name;
  std::vector<int64_t> shape;
  std::function<void(int64_t first_row, std::span<float> rows)> read;
  bool is_matrix = false;      // stored in the type that is asked for; all others are fp32
  bool is_vocabulary = false;  // a matrix with a row per token: see type_in_model()
};

// The format of matrices whose elements have this dtype; null: none has.
RAFFIA_SIBLING_API const WeightFormat* find_weight_format(std::string_view element);

// The scales of a matrix whose type has some.
std::string scale_name(std::string_view matrix);

// Shapes in a file of a matrix [rows, columns] and of its scales.
std::vector<int64_t> stored_shape(const WeightFormat& format, int64_t rows, int64_t columns);
std::vector<int64_t> scale_shape(const WeightFormat& format, int64_t rows, int64_t columns);

// The tensor of a matrix in a file as it is stored, checked against its shape: its format, elements, and the tensor of its scales
// (null if there are none). Throws FormatError.
struct StoredTensor {
  const WeightFormat* format;
  const Safetensors::Tensor* elements;
  const Safetensors::Tensor* scales;
};
StoredTensor stored_tensor(const Safetensors& file, const Safetensors::Tensor& tensor, std::span<const int64_t> shape,
                           std::string_view where);

// The error of the stored rows of matrices: |stored - row| / |row|, without rows of zeros.
struct StorageReport {
  uint64_t bytes = 0;  // of the file
  int64_t matrices = 0, rows = 0;
  double worst = 0, mean = 0;
  std::string worst_tensor;  // where
};

// Writes matrices in a type, with their scales beside them, a few rows in memory at a time.
// `progress` is called before each tensor is written. Throws IoError, and InvalidArgument for weights that are not finite.
StorageReport write_weights(const std::filesystem::path& path, std::span<const WeightSource> sources, WeightType type,
                            const std::function<void(const WeightSource&)>& progress = {},
                            const std::map<std::string, std::string>& metadata = {});

// A tensor of a weight file as floats, converted from its stored type. A matrix [rows, columns] has `shape`, which need not be
// that of its stored elements. `file` must outlive the result. Throws FormatError for types that no model has.
WeightSource weight_source(const Safetensors& file, const Safetensors::Tensor& tensor, std::span<const int64_t> shape,
                           bool is_matrix, std::string_view where);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_FORMATS_WEIGHT_FILE_H_
