// Products of activations with stored weights: y [tokens, rows] = x [tokens, columns] W^T + bias.
//
// Two orders of summation, in both of which a result has the same bits for any number of rows in a call, and however the rows are
// cut into calls:
// - weight_product-inl.h: every (token, row) has one vector of partial sums with lanes along the columns, a tail filled up with
//   zeros, one sum across lanes, then the bias. The same bits for any number of tokens, too.
// - weight_gemm-inl.h, for many tokens: one chain of multiply-adds over the columns, then the bias.
#ifndef RAFFIA_KERNELS_WEIGHT_PRODUCT_H_
#define RAFFIA_KERNELS_WEIGHT_PRODUCT_H_

#include <cstddef>
#include <cstdint>

#include "core/weight_matrix.h"

namespace raffia::internal {

struct WeightProduct {
  WeightMatrix weights;         // f32 or bf16
  const float* bias = nullptr;  // [rows]; null: none
  size_t tokens = 0;
  const float* x = nullptr;  // [tokens, columns]; strides in floats from one token to the next
  int64_t x_stride = 0;
  float* y = nullptr;  // [tokens, rows]
  int64_t y_stride = 0;
  bool any_company = true;  // the same bits for any number of tokens. false: from kPackedFrom tokens on in another order, faster

  // Always in the faster order, for any number of tokens and 1 or more columns. Then the factors may be stored the other way
  // round, as in gradients, and products may be added to y.
  bool always_packed = false;
  bool x_turned = false;        // x is [columns, tokens], x_stride is from one column to the next
  bool weights_turned = false;  // weights of f32 are [columns, rows], weights_stride is from one column to the next
  int64_t weights_stride = 0;
  bool accumulates = false;  // y += x W^T: the chains of multiply-adds go on from what y holds
};

// Calls over a multiple of this many rows need no smaller tiles: in the first order, in the second.
constexpr int64_t kProductRows = 24, kGemmPieceRows = 128;

constexpr int64_t kRowsApart =
    13;  // between the rows of a tile of few tokens; odd, since 8 streams in one L1 set would evict each other
constexpr size_t kBytesAhead = 16384;  // how far ahead weights are prefetched with more tokens, or one tile if that is more
constexpr size_t kPackedFrom = 24;     // tokens from which blocks of weights are widened into panels
constexpr size_t kBlockRows = 12;      // rows and columns of such a block: 24 KiB of L1 as floats
constexpr size_t kBlockColumns = 512;
constexpr size_t kBlockTokens = 256;  // tokens whose sums are laid aside between blocks of columns

// Rows and columns of a block of weights for many tokens of one text (weight_gemm-inl.h).
constexpr size_t kGemmRows = 256;
constexpr size_t kGemmColumns = 256;

size_t weight_product_scratch_floats(const WeightProduct& product);  // 0 for few tokens

// Rows [begin, end) of the weights, which are columns of y.
void weight_product(const WeightProduct& product, int64_t begin, int64_t end, float* scratch);

}  // namespace raffia::internal

#endif  // RAFFIA_KERNELS_WEIGHT_PRODUCT_H_
