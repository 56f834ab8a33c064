#include "torch/ops/tensors.h"

#include <fmt/format.h>

#include <algorithm>

#include "estimators/shared/sequences.h"

namespace raffia::internal::ops {

void require_rank(const std::string& op, const char* argument, const Tensor& tensor, int64_t rank, const char* axes) {
  require(tensor.defined(), "{}: {} is missing, expected a tensor {}", op, argument, axes);
  require(tensor.dim() == rank, "{}: {} has shape {}, expected {} axes {}", op, argument,
          to_string(tensor.sizes().data(), tensor.sizes().size()), rank, axes);
}

void require_shape(const std::string& op, const char* argument, const Tensor& tensor, at::IntArrayRef expected, const char* why) {
  require(tensor.defined(), "{}: {} is missing, expected shape {} ({})", op, argument,
          to_string(expected.data(), expected.size()), why);
  require(tensor.sizes() == expected, "{}: {} has shape {}, expected {} ({})", op, argument,
          to_string(tensor.sizes().data(), tensor.sizes().size()), to_string(expected.data(), expected.size()), why);
}

void require_type(const std::string& op, const char* argument, const Tensor& tensor,
                  std::initializer_list<at::ScalarType> expected) {
  if (std::find(expected.begin(), expected.end(), tensor.scalar_type()) != expected.end()) return;
  std::string names;
  for (at::ScalarType each : expected) names += (names.empty() ? "" : " or ") + std::string(c10::toString(each));
  throw InvalidArgument(fmt::format("{}: {} is {}, expected {}", op, argument, c10::toString(tensor.scalar_type()), names));
}

void require_precise(const std::string& op, const char* argument, const Tensor& tensor, const Tensor& q, bool low) {
  if (is_double(q)) {
    require_type(op, argument, tensor, {at::kDouble});
  } else if (low) {
    require_type(op, argument, tensor, {at::kFloat, at::kBFloat16});
  } else {
    require_type(op, argument, tensor, {at::kFloat});
  }
}

QkvShape::QkvShape(const std::string& op, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& valid, bool step)
    : is_step(step) {
  const int64_t rank = step ? 3 : 4;
  require_rank(op, "q", q, rank, step ? "[B, H, D]" : "[B, T, H, D]");
  require_rank(op, "k", k, rank, step ? "[B, G, D]" : "[B, T, G, D]");
  require_rank(op, "v", v, rank, step ? "[B, G, V]" : "[B, T, G, V]");
  if (step) require_type(op, "q", q, {at::kFloat, at::kBFloat16});
  require_type(op, "q", q, {at::kFloat, at::kBFloat16, at::kDouble});
  require_type(op, "k", k, {q.scalar_type()});
  require_type(op, "v", v, {q.scalar_type()});
  batch = q.size(0);
  queries = step ? 1 : q.size(1);
  keys = step ? 1 : k.size(1);
  heads = q.size(-2);
  groups = k.size(-2);
  dim = q.size(-1);
  value_dim = v.size(-1);
  sequences = batch;
  require_shape(op, "k", k, sizes(keys, {groups, dim}), "batch and dimensions of q");
  require(groups >= 1 && heads % groups == 0, "{}: k has {} heads, expected a divisor of the {} heads of q", op, groups, heads);
  require_shape(op, "v", v, sizes(keys, {groups, value_dim}), "batch of q, length and heads of k");
  if (valid.defined()) {
    require_type(op, "valid", valid, {at::kBool, at::kByte});
    require_shape(op, "valid", valid, {batch, keys}, "batch and length of k");
  }
}

void QkvShape::pack(const std::string& op, const Tensor& cu_seqlens, const Tensor& cu_seqlens_k) {
  if (!cu_seqlens.defined()) {
    require(!cu_seqlens_k.defined(), "{}: cu_seqlens_k is given without cu_seqlens, expected both", op);
    return;
  }
  require_rank(op, "cu_seqlens", cu_seqlens, 1, "[N + 1]");
  require_type(op, "cu_seqlens", cu_seqlens, {at::kLong});
  require(cu_seqlens.size(0) >= 1, "{}: cu_seqlens is empty, expected offsets from 0 to the length", op);
  require(batch == 1, "{}: cu_seqlens is given with a batch of {}, expected 1", op, batch);
  sequences = cu_seqlens.size(0) - 1;
  if (!cu_seqlens_k.defined()) return;
  require_type(op, "cu_seqlens_k", cu_seqlens_k, {at::kLong});
  require_shape(op, "cu_seqlens_k", cu_seqlens_k, cu_seqlens.sizes(), "as cu_seqlens");
}

Layout layout_of(const char* op, const Tensor& q, const Tensor& k, const Tensor& valid, const Tensor& cu_seqlens,
                 const Tensor& cu_seqlens_k) {
  const auto numbers = [](const Tensor& tensor) -> std::span<const int64_t> {
    if (!tensor.defined()) return {};
    return {tensor.data_ptr<int64_t>(), static_cast<size_t>(tensor.numel())};
  };
  const Layout layout{
      .valid = view<2>(valid), .lengths = {}, .cu_seqlens = numbers(cu_seqlens), .cu_seqlens_k = numbers(cu_seqlens_k)};
  // Checked here, too: the reference twins do not check their arguments.
  if (!layout.cu_seqlens.empty()) (void)sequences_of(op, layout, q.size(0), q.size(1), k.size(1));
  return layout;
}

std::vector<int64_t> QkvShape::sizes(int64_t time, std::initializer_list<int64_t> rest) const {
  std::vector<int64_t> all{batch};
  if (!is_step) all.push_back(time);
  all.insert(all.end(), rest);
  return all;
}

DType dtype_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::f32;
    case at::kBFloat16:
      return DType::bf16;
    case at::kDouble:
      return DType::f64;
    case at::kBool:
    case at::kByte:
      return DType::u8;
    default:
      throw InvalidArgument(
          fmt::format("raffia: a tensor is {}, expected Float, BFloat16, Double or Bool", c10::toString(tensor.scalar_type())));
  }
}

void require_dense(const Tensor& tensor, size_t rank) {
  require(tensor.device().is_cpu() && tensor.layout() == at::kStrided,
          "raffia: a tensor is on {} with layout {}, expected a strided one on cpu", tensor.device().str(),
          tensor.layout() == at::kStrided ? "strided" : "another");
  require(tensor.dim() == static_cast<int64_t>(rank), "raffia: a tensor has shape {}, expected {} axes",
          to_string(tensor.sizes().data(), tensor.sizes().size()), rank);
}

Tensor report_tensor(const Report& report) {
  Tensor tensor = at::empty({2}, at::kLong);
  tensor.data_ptr<int64_t>()[0] = report.rows;
  tensor.data_ptr<int64_t>()[1] = report.clamped;
  return tensor;
}

}  // namespace raffia::internal::ops
