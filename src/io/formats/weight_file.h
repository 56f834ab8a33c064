// model.safetensors with matrices in a given type: fp32, bf16, or int8 with one scale per row.
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
  bool is_matrix = false;  // stored in the type that is asked for; all others are fp32
};

const char* dtype_of(WeightType type);  // as files name it: "F32", "BF16", "I8"

// The scales of a matrix that is stored as int8.
std::string scale_name(std::string_view matrix);

// The error of the stored rows of matrices: |stored - row| / |row|, without rows of zeros.
struct StorageReport {
  uint64_t bytes = 0;  // of the file
  int64_t matrices = 0, rows = 0;
  double worst = 0, mean = 0;
  std::string worst_tensor;  // where
};

// Writes matrices as F32, BF16, or as I8 with their scales [rows] of F32 beside them, a few rows in memory at a time.
// `progress` is called before each tensor is written. Throws IoError, and InvalidArgument for weights that are not finite.
StorageReport write_weights(const std::filesystem::path& path, std::span<const WeightSource> sources, WeightType type,
                            const std::function<void(const WeightSource&)>& progress = {},
                            const std::map<std::string, std::string>& metadata = {});

// The tensors of a weight file as floats, converted from any stored type; scales are not listed as tensors. Which ones are
// matrices is not known here: see planned_weights(). `file` must outlive the result. Throws FormatError for types that no model
// has.
std::vector<WeightSource> weight_sources(const Safetensors& file, std::string_view where);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_FORMATS_WEIGHT_FILE_H_
