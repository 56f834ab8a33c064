// Linear layers over stored weights, on several threads.
#ifndef RAFFIA_ESTIMATORS_SHARED_PRODUCTS_H_
#define RAFFIA_ESTIMATORS_SHARED_PRODUCTS_H_

#include <span>

#include "core/sibling_api.h"
#include "core/weight_matrix.h"
#include "raffia/threads.h"
#include "raffia/views.h"

namespace raffia::internal {

struct LinearTask {
  WeightMatrix weights;         // [out, in]
  const float* bias = nullptr;  // [out]; null: none
  View2 x;                      // [tokens, in], f32, columns side by side
  MutView2 y;                   // [tokens, out], the same
  // A token's result has the same bits with any other tokens. false: many tokens are faster. No difference with int8 and int4.
  bool any_company = true;
};

// y = x weights^T + bias for each task, all in one parallel region: a region costs about a microsecond, and a decoding step has
// dozens of products. No task may write what another reads or writes.
//
// Results have the same bits for any number of threads and tasks in the call. Nothing is allocated for few tokens of fp32 and
// bf16, nor for one of int8 and int4 of up to 13,000 columns, whose activations are quantised, once for all tasks with the same x
// (kernels/integer_product.h). Throws InvalidArgument if shapes do not match.
RAFFIA_SIBLING_API void linear(std::span<const LinearTask> tasks, const RunOptions& run = {});

// c [M, N] = a [M, K] b [K, N] + bias, as in the forward and backward pass of a linear layer. One axis of a and of b has stride
// 1; if that of b is K, its columns lie side by side. Columns of c have stride 1. c overlaps none of the others.
struct MatrixProduct {
  View2 a;
  View2 b;
  const float* bias = nullptr;  // [N]; null: none
  MutView2 c;
  bool accumulates = false;  // c += a b + bias
};

// Every element is one chain of multiply-adds in the order of K: its bits depend on its row of a and its column of b alone, and
// are the same for any number of threads. With `accumulates` the chain goes on from what c holds: parts of K one after another
// give the bits of the whole. Throws InvalidArgument if shapes or strides do not match.
RAFFIA_SIBLING_API void multiply(const MatrixProduct& product, const RunOptions& run = {});

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_SHARED_PRODUCTS_H_
