// Tensors as views of the core library, and the checks before that.
#ifndef RAFFIA_TORCH_OPS_TENSORS_H_
#define RAFFIA_TORCH_OPS_TENSORS_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/check.h"
#include "raffia/attention.h"
#include "raffia/views.h"

namespace raffia::ops {}
namespace raffia::internal::ops {

using namespace raffia::ops;

using at::Tensor;
using Tensors = std::vector<Tensor>;
using OptionalTensor = c10::optional<Tensor>;

inline Tensor or_undefined(const OptionalTensor& tensor) { return tensor.value_or(Tensor()); }

inline OptionalTensor or_none(const Tensor& tensor) { return tensor.defined() ? OptionalTensor(tensor) : OptionalTensor(); }

inline std::optional<float> as_float(const c10::optional<double>& value) {
  return value ? std::optional<float>(static_cast<float>(*value)) : std::nullopt;
}

inline c10::optional<double> as_double(const std::optional<float>& value) {
  return value ? c10::optional<double>(static_cast<double>(*value)) : c10::nullopt;
}

inline c10::optional<double> as_double(const std::optional<double>& value) {
  return value ? c10::optional<double>(*value) : c10::nullopt;
}

inline bool is_double(const Tensor& tensor) { return tensor.scalar_type() == at::kDouble; }

// Throws InvalidArgument, which names `op`, unless `tensor` has this shape.
void require_shape(const std::string& op, const char* argument, const Tensor& tensor, at::IntArrayRef expected, const char* why);
void require_rank(const std::string& op, const char* argument, const Tensor& tensor, int64_t rank, const char* axes);
void require_type(const std::string& op, const char* argument, const Tensor& tensor,
                  std::initializer_list<at::ScalarType> expected);

// q [B, Tq, H, D], k [B, Tk, G, D], v [B, Tk, G, V] of one element type (fp32, bf16 or double), valid [B, Tk] (bool, or
// undefined); steps have no time axis. The sizes are valid after the tensors have been checked.
struct QkvShape {
  QkvShape(const std::string& op, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& valid, bool step = false);

  // [batch, time, rest..], without time in a step.
  std::vector<int64_t> sizes(int64_t time, std::initializer_list<int64_t> rest) const;

  // Packed sequences in a batch of one: offsets [N + 1], int64; undefined if there are none. `cu_seqlens_k`: the same for keys,
  // if they differ. Checks everything except the offsets themselves, which layout_of() checks.
  void pack(const std::string& op, const Tensor& cu_seqlens, const Tensor& cu_seqlens_k = {});

  bool is_step;
  int64_t batch, queries, keys, heads, groups, dim, value_dim;
  int64_t sequences;  // entries of a state: the batch, or the number of packed sequences
};

// Padding and packing. Offsets must be contiguous and outlive the layout. Throws InvalidArgument, which names `op`.
Layout layout_of(const char* op, const Tensor& q, const Tensor& k, const Tensor& valid, const Tensor& cu_seqlens,
                 const Tensor& cu_seqlens_k = {});

// An optional input that is read element by element: undefined, or contiguous.
inline Tensor contiguous_or_undefined(const OptionalTensor& tensor) { return tensor ? tensor->contiguous() : Tensor(); }

// fp32, or double if the inputs are; with `low`, `what` may also be bf16.
void require_precise(const std::string& op, const char* argument, const Tensor& tensor, const Tensor& q, bool low = false);

DType dtype_of(const Tensor& tensor);

void require_dense(const Tensor& tensor, size_t rank);

// Absent if the tensor is undefined.
template <size_t Rank>
MutView<Rank> mutable_view(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  require_dense(tensor, Rank);
  Extents<Rank> shape{}, strides{};
  for (size_t i = 0; i < Rank; ++i) {
    shape[i] = tensor.size(static_cast<int64_t>(i));
    strides[i] = tensor.stride(static_cast<int64_t>(i));
  }
  return MutView<Rank>(tensor.data_ptr(), dtype_of(tensor), shape, strides);
}

template <size_t Rank>
View<Rank> view(const Tensor& tensor) {
  return mutable_view<Rank>(tensor);
}

// Of an optional input. One without elements has no memory, but it is given all the same: it is not absent.
template <size_t Rank>
View<Rank> optional_view(const Tensor& tensor) {
  static constexpr float kNothing = 0;
  const View<Rank> found = view<Rank>(tensor);
  if (!tensor.defined() || found.data() != nullptr) return found;
  return View<Rank>(&kNothing, found.dtype(), found.shape(), found.strides());
}

// The floats of a contiguous fp32 tensor.
inline std::span<float> floats_of(const Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())};
}

// Report as int64 [2]: rows, clamped.
Tensor report_tensor(const Report& report);

// Makes the requested gradients, uninitialised and contiguous.
inline Tensor empty_if(bool wanted, const Tensor& like) {
  return wanted && like.defined() ? at::empty_like(like, at::MemoryFormat::Contiguous) : Tensor();
}

// Of sums: zero, fp32.
inline Tensor zeros_if(bool wanted, const Tensor& like) {
  return wanted && like.defined() ? at::zeros(like.sizes(), like.options().dtype(at::kFloat)) : Tensor();
}

inline Tensor to_type_of(const Tensor& gradient, const Tensor& of) {
  return gradient.defined() ? gradient.to(of.scalar_type()) : gradient;
}

// Double tensors as fp32; others unchanged.
inline Tensor to_float(const Tensor& tensor) { return tensor.defined() && is_double(tensor) ? tensor.to(at::kFloat) : tensor; }

}  // namespace raffia::internal::ops

#endif  // RAFFIA_TORCH_OPS_TENSORS_H_
