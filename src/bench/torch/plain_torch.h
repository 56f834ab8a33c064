// Attention in plain torch ops, as one would write it without Raffia: the baseline of `raffia bench train`.
//
// All causal, q, k, v [B, T, H, d] -> [B, T, H, d], any dtype, differentiable.
#ifndef RAFFIA_BENCH_TORCH_PLAIN_TORCH_H_
#define RAFFIA_BENCH_TORCH_PLAIN_TORCH_H_

#include <ATen/ATen.h>

#include <cstdint>

namespace raffia::internal::bench {

// Matrix product, mask, softmax, matrix product: [T, T] scores per head.
at::Tensor plain_softmax(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

// RFA-Gate with trig features in its chunked form: products within chunks and folded chunks as batched matrix products over all
// chunks at once, and the states between chunks. gate_logits [B, T, H], draws [H, D, d], sigma [H, d].
struct PlainGated {
  int64_t chunk = 64;
  double eps = 1e-3;
};
at::Tensor plain_gated(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& gate_logits,
                       const at::Tensor& draws, const at::Tensor& sigma, const PlainGated& options = {});

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_TORCH_PLAIN_TORCH_H_
