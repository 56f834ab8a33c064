// Weights of models in files.
#include <fmt/format.h>

#include "io/formats/safetensors.h"
#include "io/formats/weight_file.h"
#include "model/model_directory.h"
#include "model/plan.h"
#include "raffia/error.h"
#include "torch/nn/models.h"
#include "torch/tensor_file.h"

namespace raffia::internal::nn {
namespace {

// Parameters and buffers by name.
NamedTensors tensors_of(const ModelImpl& model) {
  NamedTensors all;
  for (const auto& item : model.named_parameters()) all.emplace_back(item.key(), item.value());
  for (const auto& item : model.named_buffers()) all.emplace_back(item.key(), item.value());
  return all;
}

}  // namespace

void save_weights(const ModelImpl& model, const std::filesystem::path& path, uint64_t tokenizer) {
  NamedTensors tensors = tensors_of(model);
  for (auto& [name, tensor] : tensors) tensor = tensor.detach().to(at::kCPU, at::kFloat);
  save_tensors(path, tensors, seals_of(model.config(), tokenizer));
}

void load_weights(ModelImpl& model, const std::filesystem::path& path) {
  const Safetensors file = Safetensors::open(path);
  file.require_checksum();
  const auto tensors = tensors_of(model);
  for (const auto& found : file.tensors()) {
    const WeightFormat* format = find_weight_format(found.dtype);
    if (format != nullptr && format->by_integers) {
      throw FormatError(
          fmt::format("{}: tensor \"{}\" is {}: quantized models cannot be trained or evaluated here, expected "
                      "the model that was quantized",
                      path.string(), found.name, name_of(format->type)));
    }
  }
  // Names and shapes are checked before anything is changed.
  require_tensors(file, plan_of(model.config()), path.string());
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) {
    FloatArray array = file.read(name);
    const Tensor read = at::from_blob(array.values.data(), tensor.sizes(), at::kFloat);
    require_finite(read, name, path.string());
    Tensor(tensor).copy_(read);
  }
}

}  // namespace raffia::internal::nn
