#include "runtime/weights.h"

#include <fmt/format.h>

#include <cstring>

#include "io/formats/weight_file.h"
#include "raffia/error.h"

namespace raffia::internal::runtime {

WeightReader::WeightReader(std::span<const std::byte> image, const ModelPlan& plan, std::string_view where)
    : image_(image), where_(where), file_(Safetensors::over(image, where)) {
  require_tensors(file_, plan, where);
}

void WeightReader::refuse(std::string_view name, std::string_view reason) const {
  throw FormatError(fmt::format("{}: tensor \"{}\" {}", where_, name, reason));
}

const Safetensors::Tensor& WeightReader::tensor(const std::string& name, const std::vector<int64_t>& shape) {
  const Safetensors::Tensor* found = file_.find(name);
  if (found == nullptr) refuse(name, "is missing");
  if (found->shape != shape) {
    refuse(name, fmt::format("has shape {}, expected {}", to_string(found->shape), to_string(shape)));
  }
  read_.insert(name);
  return *found;
}

std::vector<float> WeightReader::floats(const std::string& name, const std::vector<int64_t>& shape) {
  const Safetensors::Tensor& found = tensor(name, shape);
  if (found.dtype != "F32" && found.dtype != "BF16") refuse(name, fmt::format("is {}, expected F32 or BF16", found.dtype));
  return file_.read(name).values;
}

std::vector<float> WeightReader::floats(const TensorPlan& tensor) { return floats(tensor.name, tensor.shape); }

WeightMatrix WeightReader::matrix(const TensorPlan& plan) {
  const Safetensors::Tensor& found = tensor(plan.name, plan.shape);
  const int64_t rows = plan.shape[0], columns = plan.shape[1];
  WeightMatrix matrix{
      .type = WeightType::f32, .data = image_.data() + found.begin, .scales = nullptr, .rows = rows, .columns = columns};
  size_t size = sizeof(float);
  if (found.dtype == "I8") {
    copies_.push_back(floats(scale_name(plan.name), {rows}));
    matrix.type = WeightType::int8;
    matrix.scales = copies_.back().data();
    size = 1;
  } else if (found.dtype == "BF16") {
    matrix.type = WeightType::bf16;
    size = 2;
  } else if (found.dtype != "F32") {
    refuse(plan.name, fmt::format("is {}, expected F32, BF16 or I8", found.dtype));
  }
  if (reinterpret_cast<uintptr_t>(matrix.data) % size != 0) {
    std::vector<float>& copy = copies_.emplace_back((found.end - found.begin + sizeof(float) - 1) / sizeof(float));
    std::memcpy(copy.data(), matrix.data, found.end - found.begin);
    matrix.data = copy.data();
  }
  types_.insert(matrix.type);
  return matrix;
}

Linear WeightReader::linear(const LinearLayerPlan& plan) {
  Linear linear{.weight = matrix(plan.weight)};
  if (plan.bias) linear.bias = floats(*plan.bias);
  return linear;
}

void WeightReader::expect_all_read(const ModelPlan& plan) const {
  for (const TensorPlan& tensor : plan.tensors) {
    if (!read_.contains(tensor.name)) refuse(tensor.name, "is part of the model, but nothing reads it");
  }
}

}  // namespace raffia::internal::runtime
