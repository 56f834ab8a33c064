// Products of activations with int8 and int4 weights, by integers.
//
// Each token is quantised in blocks of 32 columns: scale = max |x| / 127 of the block, elements q rounded to nearest. Then
//
//   y[t, r] = bias[r] + s[r] sum_b scale[t, b] float(sum over the columns c of block b of q[t, c] w[r, c])      int8
//   y[t, r] = bias[r] + sum_b (scale[t, b] s[r, b]) float(sum over the columns c of block b of q[t, c] w[r, c])  int4
//
// The inner sums are exact, the outer ones are added in the order of the blocks, each product and sum rounded on its own. So a
// result has the same bits for any number of tokens or rows in a call, however rows are cut into calls, and on every ISA.
#ifndef RAFFIA_KERNELS_INTEGER_PRODUCT_H_
#define RAFFIA_KERNELS_INTEGER_PRODUCT_H_

#include <cstddef>
#include <cstdint>

#include "core/weight_matrix.h"
#include "raffia/views.h"

namespace raffia::internal {

constexpr size_t kIntegerBlock = kWeightGroup;  // columns of activations with a common scale
constexpr size_t kIntegerPad = 128;             // a token's columns are filled up with zeros to a multiple of this

// Activations [tokens, columns] as integers. A block with an element that is not finite has scale NaN and elements 0, so that all
// results of its token are NaN. One whose elements are below 2^-100 is 0: an inverse scale could overflow.
class QuantizedTokens {
 public:
  static constexpr float kTiny = 0x1p-100f;

  QuantizedTokens() = default;
  // `memory`: floats(tokens, columns) floats, aligned to 64 bytes.
  QuantizedTokens(size_t tokens, size_t columns, float* memory);
  static size_t floats(size_t tokens, size_t columns);

  size_t padded() const { return padded_; }  // columns
  size_t blocks() const { return padded_ / kIntegerBlock; }
  int8_t* values(size_t token) const { return values_ + token * padded_; }
  float* scales(size_t token) const { return scales_ + token * blocks(); }
  int32_t* sums(size_t token) const { return sums_ + token * blocks(); }  // of the elements of each block

 private:
  size_t padded_ = 0;
  int8_t* values_ = nullptr;
  float* scales_ = nullptr;
  int32_t* sums_ = nullptr;
};

// Tokens [begin, end) of x [tokens, columns], f32 with columns side by side.
void quantize_tokens(View2 x, int64_t begin, int64_t end, const QuantizedTokens& out);

struct IntegerProduct {
  WeightMatrix weights;         // int8 or int4
  const float* bias = nullptr;  // [rows]; null: none
  size_t tokens = 0;
  QuantizedTokens x = {};
  float* y = nullptr;  // [tokens, rows]
  int64_t y_stride = 0;
};

// Calls over a multiple of this many rows need no smaller tiles.
constexpr int64_t kIntegerRows = 32;

// How far ahead weights are prefetched for one token: best of 8 to 32 KiB on Zen 5, matrices of 768 and 3,072 columns, one and
// two threads; 16 was confirmed with 280 to 460 MB of weights, the others were compared with 70 MB.
constexpr size_t kIntegerBytesAhead = 16384;
constexpr size_t kIntegerScratchFloats = 8192;  // for products of several tokens

// Rows [begin, end) of the weights, which are columns of y. For one token, scratch may be null.
void integer_product(const IntegerProduct& product, int64_t begin, int64_t end, float* scratch);

}  // namespace raffia::internal

#endif  // RAFFIA_KERNELS_INTEGER_PRODUCT_H_
