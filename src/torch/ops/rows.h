// What ops on rows of activations share: tensors as rows, tasks of rows on torch's threads.
#ifndef RAFFIA_TORCH_OPS_ROWS_H_
#define RAFFIA_TORCH_OPS_ROWS_H_

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <cstdint>

#include "torch/ops/executor.h"
#include "torch/ops/tensors.h"

namespace raffia::internal::ops {

constexpr int64_t kElementsPerTask = 1 << 15;  // of an activation: 10 to 20 microseconds

// [.., E] as contiguous [T, E]: the same memory if it is contiguous already.
inline Tensor as_rows(const Tensor& x) {
  int64_t rows = 1;
  for (const int64_t size : x.sizes().slice(0, static_cast<size_t>(x.dim()) - 1)) rows *= size;
  return x.reshape({rows, x.size(-1)}).contiguous();
}

// a^T as a view.
inline View2 turned(View2 a) { return {a.data(), a.dtype(), {a.extent(1), a.extent(0)}, {a.stride(1), a.stride(0)}}; }

// Rows are cut into the same pieces for any number of threads.
inline int64_t rows_of_piece(int64_t columns) { return std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, columns)); }
inline int64_t pieces_of_rows(int64_t rows, int64_t columns) {
  return (rows + rows_of_piece(columns) - 1) / rows_of_piece(columns);
}

// task(first, count) for pieces of rows on all threads.
template <class Task>
void for_rows(int64_t rows, int64_t columns, const Task& task) {
  const int64_t count = rows_of_piece(columns);
  const auto run = [&](int64_t index, int) { task(index * count, std::min(count, rows - index * count)); };
  torch_executor().run(pieces_of_rows(rows, columns), torch_executor().concurrency(), run);
}

// Whether modules call Raffia's op with these: fp32 on the CPU or on Meta, without autocast.
inline bool is_ours(const Tensor& x, const Tensor& weight) {
  return x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat && !x.is_cuda() && !at::autocast::is_cpu_enabled();
}

}  // namespace raffia::internal::ops

#endif  // RAFFIA_TORCH_OPS_ROWS_H_
