#include "runtime/weights.h"

#include <fmt/format.h>

#include <cstring>

#include "raffia/error.h"

namespace raffia::runtime {

std::vector<float> WeightList::floats(const std::string& name, const std::vector<int64_t>& shape) {
  tensors_.push_back({.name = name, .shape = shape});
  return std::vector<float>(static_cast<size_t>(*element_count(shape)), 1.0F);
}

WeightMatrix WeightList::matrix(const std::string& name, int64_t rows, int64_t columns) {
  tensors_.push_back({.name = name, .shape = {rows, columns}, .is_matrix = true});
  return {.rows = rows, .columns = columns};
}

StoredWeights::StoredWeights(std::span<const std::byte> image, std::string_view where)
    : image_(image), where_(where), file_(Safetensors::over(image, where)) {}

void StoredWeights::refuse(std::string_view name, std::string_view reason) const {
  throw FormatError(fmt::format("{}: tensor \"{}\" {}", where_, name, reason));
}

const Safetensors::Tensor& StoredWeights::tensor(const std::string& name, const std::vector<int64_t>& shape) {
  const Safetensors::Tensor* found = file_.find(name);
  if (found == nullptr) refuse(name, "is missing");
  if (found->shape != shape) {
    refuse(name, fmt::format("has shape {}, expected {}", to_string(found->shape), to_string(shape)));
  }
  asked_.insert(name);
  return *found;
}

std::vector<float> StoredWeights::floats(const std::string& name, const std::vector<int64_t>& shape) {
  const Safetensors::Tensor& found = tensor(name, shape);
  if (found.dtype != "F32" && found.dtype != "BF16") refuse(name, fmt::format("is {}, expected F32 or BF16", found.dtype));
  std::vector<float> values = file_.read(name).values;
  parameters_ += static_cast<int64_t>(values.size());
  return values;
}

WeightMatrix StoredWeights::matrix(const std::string& name, int64_t rows, int64_t columns) {
  const Safetensors::Tensor& found = tensor(name, {rows, columns});
  WeightMatrix matrix{
      .type = WeightType::f32, .data = image_.data() + found.begin, .scales = nullptr, .rows = rows, .columns = columns};
  size_t size = sizeof(float);
  if (found.dtype == "I8") {
    const std::string scale = name + "_scale";
    copies_.push_back(floats(scale, {rows}));
    parameters_ -= rows;
    matrix.type = WeightType::int8;
    matrix.scales = copies_.back().data();
    size = 1;
  } else if (found.dtype == "BF16") {
    matrix.type = WeightType::bf16;
    size = 2;
  } else if (found.dtype != "F32") {
    refuse(name, fmt::format("is {}, expected F32, BF16 or I8", found.dtype));
  }
  if (reinterpret_cast<uintptr_t>(matrix.data) % size != 0) {
    std::vector<float>& copy = copies_.emplace_back((found.end - found.begin + sizeof(float) - 1) / sizeof(float));
    std::memcpy(copy.data(), matrix.data, found.end - found.begin);
    matrix.data = copy.data();
  }
  types_.insert(matrix.type);
  parameters_ += rows * columns;
  return matrix;
}

Linear WeightReader::linear(const std::string& prefix, int64_t out, int64_t in, bool bias) {
  Linear linear{.weight = matrix(prefix + ".weight", out, in)};
  if (bias) linear.bias = floats(prefix + ".bias", {out});
  return linear;
}

void StoredWeights::expect_no_more() const {
  for (const Safetensors::Tensor& found : file_.tensors()) {
    if (!asked_.contains(found.name)) refuse(found.name, "is not part of the model");
  }
}

}  // namespace raffia::runtime
