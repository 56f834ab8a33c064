// Tensors by name, in files: weights of models, parts of checkpoints.
#ifndef RAFFIA_TORCH_TENSOR_FILE_H_
#define RAFFIA_TORCH_TENSOR_FILE_H_

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torch/libtorch.h"

namespace raffia::internal {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// float, int64, uint8 and bool tensors; every bit is kept.
void save_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                  const std::map<std::string, std::string>& metadata = {});  // atomic
NamedTensors load_tensors(const std::filesystem::path& path);                // throws IoError, FormatError

// These throw FormatError, which names the file `where` and the tensor, if a number is not finite, or is NaN.
void require_finite(const at::Tensor& tensor, std::string_view name, std::string_view where);
void require_no_nan(const at::Tensor& tensor, std::string_view name, std::string_view where);

}  // namespace raffia::internal

#endif  // RAFFIA_TORCH_TENSOR_FILE_H_
