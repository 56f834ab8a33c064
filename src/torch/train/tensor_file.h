// Tensors by name, in files. What the parts of a checkpoint are made of.
#ifndef RAFFIA_TORCH_TRAIN_TENSOR_FILE_H_
#define RAFFIA_TORCH_TRAIN_TENSOR_FILE_H_

#include <torch/torch.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace raffia::train {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// float, int64, uint8 and bool tensors; every bit is kept.
void save_tensors(const std::filesystem::path& path, const NamedTensors& tensors);  // atomic
NamedTensors load_tensors(const std::filesystem::path& path);                       // throws IoError, FormatError

}  // namespace raffia::train

#endif  // RAFFIA_TORCH_TRAIN_TENSOR_FILE_H_
