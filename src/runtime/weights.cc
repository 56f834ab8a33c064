#include "runtime/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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

const void* WeightReader::aligned(const Safetensors::Tensor& tensor, size_t alignment) {
  const std::byte* bytes = image_.data() + tensor.begin;
  if (reinterpret_cast<uintptr_t>(bytes) % alignment == 0) return bytes;
  std::vector<float>& copy = copies_.emplace_back((tensor.end - tensor.begin + sizeof(float) - 1) / sizeof(float));
  std::memcpy(copy.data(), bytes, tensor.end - tensor.begin);
  return copy.data();
}

WeightMatrix WeightReader::matrix(const TensorPlan& plan) {
  const StoredTensor stored = stored_tensor(file_, file_.at(plan.name), plan.shape, where_);
  read_.insert(plan.name);
  const WeightFormat& format = *stored.format;
  WeightMatrix matrix{.type = format.type,
                      .data = aligned(*stored.elements, format.element_bytes),
                      .rows = plan.shape[0],
                      .columns = plan.shape[1]};
  if (stored.scales != nullptr) {
    require_finite(*stored.scales);
    matrix.scales = aligned(*stored.scales, format.scale_bytes);
  }
  (plan.is_vocabulary() ? vocabulary_types_ : types_).insert(matrix.type);
  return matrix;
}

std::string_view WeightReader::type_name() const {
  const bool one = types_.size() == 1 && std::ranges::all_of(vocabulary_types_, [&](WeightType type) {
                     return type == *types_.begin() || type == type_in_model(*types_.begin(), true);
                   });
  return one ? name_of(*types_.begin()) : "mixed";
}

void WeightReader::require_finite(const Safetensors::Tensor& scales) const {
  constexpr size_t kPiece = 1 << 14;
  std::vector<float> piece;
  const uint64_t count = static_cast<uint64_t>(element_count(scales.shape).value_or(0));
  for (uint64_t first = 0; first < count; first += piece.size()) {
    piece.resize(std::min<uint64_t>(kPiece, count - first));
    file_.read_part(scales, first, piece);
    const auto bad = std::ranges::find_if_not(piece, [](float scale) { return std::isfinite(scale); });
    if (bad != piece.end()) refuse(scales.name, fmt::format("holds {}, expected finite scales", *bad));
  }
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
