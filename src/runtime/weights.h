// The tensors of a weight file as the graph uses them: matrices are read in place, small vectors are copied as fp32.
#ifndef RAFFIA_RUNTIME_WEIGHTS_H_
#define RAFFIA_RUNTIME_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/weight_matrix.h"
#include "io/formats/safetensors.h"
#include "model/plan.h"

namespace raffia::internal::runtime {

// y = x weight^T + bias
struct Linear {
  WeightMatrix weight = {};
  std::vector<float> bias = {};  // [out]; empty: none

  const float* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }
};

// Reads every tensor of a model once from its weight file. Errors are FormatErrors that name file and tensor.
class WeightReader {
 public:
  // The file must have exactly the tensors of the plan.
  WeightReader(std::span<const std::byte> image, const ModelPlan& plan, std::string_view where);

  std::vector<float> floats(const TensorPlan& tensor);  // F32, or BF16 that is widened
  WeightMatrix matrix(const TensorPlan& tensor);        // any stored type, with its scales
  Linear linear(const LinearLayerPlan& plan);

  void expect_all_read(const ModelPlan& plan) const;  // throws if a part of the model was left out

  const Safetensors& file() const { return file_; }
  std::string_view type_name() const;  // of the matrices: see Model::weight_type()

  // Aligned copies of matrices whose bytes in the file are not aligned to their element type. Must outlive the matrices.
  std::deque<std::vector<float>> take_copies() { return std::move(copies_); }

 private:
  const Safetensors::Tensor& tensor(const std::string& name, const std::vector<int64_t>& shape);
  std::vector<float> floats(const std::string& name, const std::vector<int64_t>& shape);
  // The bytes of a tensor, or a copy if they are not aligned.
  const void* aligned(const Safetensors::Tensor& tensor, size_t alignment);
  void require_finite(const Safetensors::Tensor& scales) const;
  [[noreturn]] void refuse(std::string_view name, std::string_view reason) const;

  std::span<const std::byte> image_;
  std::string where_;
  Safetensors file_;
  std::set<std::string, std::less<>> read_;
  std::set<WeightType> types_, vocabulary_types_;  // of matrices without and with a row per token
  std::deque<std::vector<float>> copies_;
};

}  // namespace raffia::internal::runtime

#endif  // RAFFIA_RUNTIME_WEIGHTS_H_
