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

namespace raffia::runtime {

// y = x weight^T + bias
struct Linear {
  WeightMatrix weight = {};
  std::vector<float> bias = {};  // [out]; empty: none

  const float* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }
};

// Provides the tensors of a model to its parts, by name.
class WeightReader {
 public:
  virtual ~WeightReader() = default;

  virtual std::vector<float> floats(const std::string& name, const std::vector<int64_t>& shape) = 0;  // widened to fp32
  virtual WeightMatrix matrix(const std::string& name, int64_t rows, int64_t columns) = 0;
  Linear linear(const std::string& prefix, int64_t out, int64_t in, bool bias);
};

struct TensorShape {
  std::string name;
  std::vector<int64_t> shape;
  bool is_matrix = false;  // of a linear layer or of embeddings: may be stored as bf16 or int8
};

// Lists the tensors that are asked for. It returns tensors of the right size with undefined contents.
class WeightList : public WeightReader {
 public:
  std::vector<float> floats(const std::string& name, const std::vector<int64_t>& shape) override;
  WeightMatrix matrix(const std::string& name, int64_t rows, int64_t columns) override;
  const std::vector<TensorShape>& tensors() const { return tensors_; }

 private:
  std::vector<TensorShape> tensors_;
};

// Reads every tensor of a weight file once. Errors are FormatErrors that name file and tensor.
class StoredWeights : public WeightReader {
 public:
  StoredWeights(std::span<const std::byte> image, std::string_view where);

  std::vector<float> floats(const std::string& name, const std::vector<int64_t>& shape) override;  // F32 or BF16
  WeightMatrix matrix(const std::string& name, int64_t rows, int64_t columns) override;            // F32, BF16, or I8 with scales

  void expect_no_more() const;  // throws if the file has tensors that were not read

  const Safetensors& file() const { return file_; }
  int64_t parameters() const { return parameters_; }            // number of weights read, without scales
  const std::set<WeightType>& types() const { return types_; }  // of the matrices

  // Aligned copies of matrices whose bytes in the file are not aligned to their element type. Must outlive the matrices.
  std::deque<std::vector<float>> take_copies() { return std::move(copies_); }

 private:
  const Safetensors::Tensor& tensor(const std::string& name, const std::vector<int64_t>& shape);
  [[noreturn]] void refuse(std::string_view name, std::string_view reason) const;

  std::span<const std::byte> image_;
  std::string where_;
  Safetensors file_;
  std::set<std::string, std::less<>> asked_;
  std::set<WeightType> types_;
  int64_t parameters_ = 0;
  std::deque<std::vector<float>> copies_;
};

}  // namespace raffia::runtime

#endif  // RAFFIA_RUNTIME_WEIGHTS_H_
