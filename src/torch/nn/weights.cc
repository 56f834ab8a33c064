// Weights of models in files.
#include <fmt/format.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/safetensors.h"
#include "raffia/error.h"
#include "torch/nn/models.h"

namespace raffia::nn {
namespace {

// Parameters and buffers by name.
std::vector<std::pair<std::string, Tensor>> tensors_of(const ModelImpl& model) {
  std::vector<std::pair<std::string, Tensor>> all;
  for (const auto& item : model.named_parameters()) all.emplace_back(item.key(), item.value());
  for (const auto& item : model.named_buffers()) all.emplace_back(item.key(), item.value());
  return all;
}

}  // namespace

void save_weights(const ModelImpl& model, const std::filesystem::path& path) {
  std::vector<Tensor> kept;  // what the bytes below belong to
  std::vector<TensorToWrite> written;
  for (const auto& [name, tensor] : tensors_of(model)) {
    const Tensor& plain = kept.emplace_back(tensor.detach().to(at::kCPU, at::kFloat).contiguous());
    written.push_back({name, "F32", plain.sizes().vec(),
                       std::as_bytes(std::span(plain.data_ptr<float>(), static_cast<size_t>(plain.numel())))});
  }
  write_safetensors(path, written, {{"format", "raffia"}});
}

void load_weights(ModelImpl& model, const std::filesystem::path& path) {
  const Safetensors file = Safetensors::open(path);
  const auto tensors = tensors_of(model);
  // All is checked before anything is changed.
  for (const auto& [name, tensor] : tensors) {
    const Safetensors::Tensor* found = file.find(name);
    if (found == nullptr) throw FormatError(fmt::format("{}: tensor \"{}\" is missing", path.string(), name));
    if (found->shape != tensor.sizes().vec()) {
      throw FormatError(fmt::format("{}: tensor \"{}\" has shape {}, expected {}", path.string(), name, to_string(found->shape),
                                    to_string(tensor.sizes().vec())));
    }
  }
  for (const auto& found : file.tensors()) {
    const bool is_known = std::any_of(tensors.begin(), tensors.end(), [&](const auto& one) { return one.first == found.name; });
    if (!is_known) throw FormatError(fmt::format("{}: tensor \"{}\" belongs to no part of the model", path.string(), found.name));
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) {
    FloatArray array = file.read(name);
    Tensor(tensor).copy_(at::from_blob(array.values.data(), tensor.sizes(), at::kFloat));
  }
}

}  // namespace raffia::nn
