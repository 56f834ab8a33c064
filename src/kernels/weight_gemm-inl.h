// Products with stored weights for many tokens, rows of weights on the lanes:
//
//   Y [T, rows] += X [T, kc] W^T [kc, rows]      a block of kc columns after the other
//
// A block of up to 256 rows and 256 columns of weights is widened and transposed into panels [kc][16] (256 KiB of L2; 128 KiB
// where threads share the rows, kGemmPieceRows). A tile of tokens is copied side by side (rows of X are often a multiple of 4 KiB
// apart, all in one set of L1), and stays in L1 while the panels stream past it. Partial sums of a block of columns wait in Y.
// Every output is one chain of multiply-adds over the columns in their order, then the bias: its bits depend on nothing but its
// token and its row.
//
// Gradients of linear layers are the same products of turned factors: dX = dY W reads the weights as [kc, rows], whose panels are
// copied without a transpose, and dW = dY^T X reads dY as [kc, T], whose tiles lie as [kc][16].
//
// Half of what a tile of the other order (weight_product-inl.h) costs is not there: no sums across lanes, a panel is 8 to 10
// loads for 12 to 16 FMA (panel-inl.h), and a broadcast is loaded once for two panels.

#if defined(RAFFIA_KERNELS_WEIGHT_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_WEIGHT_GEMM_INL_H_
#undef RAFFIA_KERNELS_WEIGHT_GEMM_INL_H_
#else
#define RAFFIA_KERNELS_WEIGHT_GEMM_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/chunk-inl.h"
#include "kernels/stored_weights-inl.h"
#include "kernels/weight_product.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A block of rows and columns of the weights, packed.
struct GemmBlock {
  int64_t first_row;
  size_t rows, first_column, columns;
  bool is_first, is_last;  // of the blocks of columns
  const float* panels;     // [ceil(rows / 16)][columns][16]
  const float* bias;       // [rows rounded up to 16]
};

// Panels of weights that are stored as [columns, rows].
inline HWY_NOINLINE void pack_turned_block(const WeightProduct& product, const GemmBlock& block, float* panels) {
  const int64_t stride = product.weights_stride;
  const float* first =
      static_cast<const float*>(product.weights.data) + static_cast<int64_t>(block.first_column) * stride + block.first_row;
  for (size_t p = 0; p < block.rows; p += kPanel) {
    const size_t there = HWY_MIN(kPanel, block.rows - p);
    for (size_t k = 0; k < block.columns; ++k, panels += kPanel) {
      const float* from = first + static_cast<int64_t>(k) * stride + p;
      if (there == kPanel) {
        std::memcpy(panels, from, kPanel * sizeof(float));
      } else {
        std::fill(std::copy_n(from, there, panels), panels + kPanel, 0.0f);
      }
    }
  }
}

// The inputs of a tile of `count` tokens: [count, columns], or turned [columns][16].
inline HWY_NOINLINE void copy_tile(const WeightProduct& product, const GemmBlock& block, size_t token, size_t count, float* x) {
  const auto stride = product.x_stride;
  if (!product.x_turned) {
    const float* from = product.x + static_cast<int64_t>(token) * stride + block.first_column;
    for (size_t t = 0; t < count; ++t) std::copy_n(from + static_cast<int64_t>(t) * stride, block.columns, x + t * block.columns);
    return;
  }
  const float* from = product.x + static_cast<int64_t>(block.first_column) * stride + token;
  for (size_t k = 0; k < block.columns; ++k, from += stride, x += kPanel) {
    if (count == kPairRows) {
      std::memcpy(x, from, kPairRows * sizeof(float));
    } else {
      std::copy_n(from, count, x);
    }
  }
}

// Elements of inputs that no L2 holds, 4 MiB: smaller ones come from there, and asking for them makes prompts of 512 tokens 2 to
// 4% slower (raffia bench prefill).
constexpr size_t kFarInputs = size_t{1} << 20;

// Asks for the inputs that the tile of up to `count` tokens from `token` on will copy: the part of them from panel `panel` to
// `panel` + `width` of `panels`. All at once they would wait for each other and delay the tile at hand; not at all, copies wait
// for memory (raffia bench train --what model).
HWY_INLINE void prefetch_tile(const WeightProduct& product, const GemmBlock& block, size_t token, size_t count, size_t panel,
                              size_t width, size_t panels) {
  if (token >= product.tokens || product.tokens * static_cast<size_t>(product.weights.columns) < kFarInputs) return;
  constexpr size_t kLine = 64 / sizeof(float);
  const size_t units = product.x_turned ? block.columns : HWY_MIN(count, product.tokens - token);
  const float* first =
      product.x + (product.x_turned ? static_cast<int64_t>(block.first_column) * product.x_stride + static_cast<int64_t>(token)
                                    : static_cast<int64_t>(token) * product.x_stride + static_cast<int64_t>(block.first_column));
  for (size_t i = panel * units / panels; i < (panel + width) * units / panels; ++i) {
    const float* row = first + static_cast<int64_t>(i) * product.x_stride;
    hwy::Prefetch(row);
    if (product.x_turned) continue;
    for (size_t c = kLine; c < block.columns; c += kLine) hwy::Prefetch(row + c);
  }
}

// Panels of weights in their stored type; rows past the end are 0. `widened` [16, columns] is scratch.
template <class W>
HWY_NOINLINE void pack_block(const WeightMatrix& weights, const GemmBlock& block, float* widened, const float* zeros,
                             float* panels) {
  for (size_t p = 0; p < block.rows; p += kPanel, panels += block.columns * kPanel) {
    Chunk chunk;
    for (size_t r = 0; r < kPanel; ++r) {
      if (p + r >= block.rows) {
        chunk.row[r] = zeros;
        continue;
      }
      const W* row = static_cast<const W*>(weights.row(block.first_row + static_cast<int64_t>(p + r))) + block.first_column;
      if constexpr (std::is_same_v<W, float>) {
        chunk.row[r] = row;
      } else {
        float* out = widened + r * block.columns;
        widen_weights(row, block.columns, out);
        chunk.row[r] = out;
      }
    }
    transpose(chunk, block.columns, panels);
  }
}

// R tokens from `token`, x as copy_tile left it, times P panels.
template <size_t R, size_t P, bool kTurned>
HWY_NOINLINE void gemm_tile(const WeightProduct& product, const GemmBlock& block, size_t token, const float* x, size_t panel) {
  constexpr size_t kWide = P * kPanel;
  const size_t row = panel * kPanel, there = HWY_MIN(kWide, block.rows - row);
  float* y = product.y + static_cast<int64_t>(token) * product.y_stride + block.first_row + static_cast<int64_t>(row);
  size_t ld = static_cast<size_t>(product.y_stride);
  HWY_ALIGN float staging[R * kWide];
  const bool direct = there == kWide;
  if (!direct && !block.is_first) {
    std::fill_n(staging, R * kWide, 0.0f);
    for (size_t t = 0; t < R; ++t) std::copy_n(y + t * ld, there, staging + t * kWide);
  }
  WideTile<R, P> tile;
  if (block.is_first) {
    tile.zero();
  } else {
    tile.load(direct ? y : staging, kPanel, direct ? ld : kWide);
  }
  const float* panels = block.panels + row * block.columns;
  if constexpr (kTurned) {
    tile.multiply(block.columns, x, UnitStride(), PanelStride(), panels, block.columns * kPanel, kPanel);
  } else {
    tile.multiply(block.columns, x, block.columns, UnitStride(), panels, block.columns * kPanel, kPanel);
  }
  if (block.is_last) tile.add_columns(block.bias + row);
  tile.store(direct ? y : staging, kPanel, direct ? ld : kWide);
  if (!direct) {
    for (size_t t = 0; t < R; ++t) std::copy_n(staging + t * kWide, there, y + t * ld);
  }
}

template <class W>
void gemm_product(const WeightProduct& product, int64_t begin, int64_t end, float* scratch) {
  float* panels = scratch;
  float* x = panels + kGemmRows * kGemmColumns;    // [kPanel, columns of a block]
  float* widened = x + kPanel * kGemmColumns;      // the same
  float* zeros = widened + kPanel * kGemmColumns;  // [columns of a block]
  float* bias = zeros + kGemmColumns;              // [rows of a block]
  std::fill_n(zeros, kGemmColumns, 0.0f);
  const size_t columns = static_cast<size_t>(product.weights.columns);
  for (int64_t row = begin; row < end; row += static_cast<int64_t>(kGemmRows)) {
    const size_t rows = static_cast<size_t>(HWY_MIN(static_cast<int64_t>(kGemmRows), end - row));
    const size_t wide = (rows + kPanel - 1) / kPanel;
    for (size_t r = 0; r < round_up(rows, kPanel); ++r) {
      const int64_t at = row + static_cast<int64_t>(r);
      bias[r] = r < rows && product.bias != nullptr ? product.bias[at] : 0.0f;
    }
    for (size_t k = 0; k < columns; k += kGemmColumns) {
      const size_t count = HWY_MIN(kGemmColumns, columns - k);
      const GemmBlock block{row, rows, k, count, k == 0 && !product.accumulates, k + count == columns, panels, bias};
      if (product.weights_turned) {
        pack_turned_block(product, block, panels);
      } else {
        pack_block<W>(product.weights, block, widened, zeros, panels);
      }
      for_tiles<kHasPairs ? 2 : 1>(product.tokens, [&](size_t token, auto shape) HWY_ATTR {
        constexpr size_t kHeight = decltype(shape)::kHeight;
        copy_tile(product, block, token, kHeight, x);
        for_panels(wide, [&](size_t p, auto width) HWY_ATTR {
          constexpr size_t kWidth = decltype(width)::value;
          prefetch_tile(product, block, token + kHeight, kHeight, p, kWidth, wide);
          if (product.x_turned) {
            gemm_tile<kHeight, kWidth, true>(product, block, token, x, p);
          } else {
            gemm_tile<kHeight, kWidth, false>(product, block, token, x, p);
          }
        });
      });
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
