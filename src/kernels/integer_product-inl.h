// Integer products with rows of weights on the lanes.
//
// Several tokens: 16 rows are unpacked and transposed into a panel, in which a 32-bit lane holds a few columns of one row: four
// bytes where the CPU multiplies bytes (vpdpbusd, vpmaddubsw), two 16-bit integers elsewhere. A tile of tokens by one or two
// panels holds its integer sums in registers for a block of 32 columns; then they become floats and are added to those of the
// blocks before. Panels of up to 512 columns stay in L1 while all tokens pass.
//
// Very few tokens: there is nothing to gain from a panel. Each row is multiplied in place, lanes along the columns, and the sums
// of 16 rows are transposed and added up together.

#if defined(RAFFIA_KERNELS_INTEGER_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_INTEGER_PRODUCT_INL_H_
#undef RAFFIA_KERNELS_INTEGER_PRODUCT_INL_H_
#else
#define RAFFIA_KERNELS_INTEGER_PRODUCT_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "core/dispatch.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/chunk-inl.h"
#include "kernels/integer_dots-inl.h"
#include "kernels/integer_product.h"
#include "kernels/stored_weights-inl.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

// The formula, in loops.
template <class W>
void integer_rows(const IntegerProduct& product, int64_t begin, int64_t end, float*) {
  const WeightMatrix& weights = product.weights;
  const size_t columns = static_cast<size_t>(weights.columns);
  for (int64_t r = begin; r < end; ++r) {
    const auto* row = static_cast<const uint8_t*>(weights.row(r));
    const auto weight = [row](size_t c) -> int {
      if constexpr (!W::kGroupScales) return static_cast<int8_t>(row[c]);
      const size_t block = c / kIntegerBlock, within = c % kIntegerBlock, half = kIntegerBlock / 2;
      const int pair = row[block * half + within % half];
      return (within < half ? pair & 15 : pair >> 4) - kNibbleZero;
    };
    for (size_t t = 0; t < product.tokens; ++t) {
      const int8_t* x = product.x.values(t);
      float sum = 0.0f;
      for (size_t first = 0; first < columns; first += kIntegerBlock) {
        int dot = 0;
        for (size_t c = first; c < std::min(columns, first + kIntegerBlock); ++c) dot += x[c] * weight(c);
        float scale = product.x.scales(t)[first / kIntegerBlock];
        if constexpr (W::kGroupScales) scale = scale * weights.group_scales(r)[first / kIntegerBlock].to_float();
        sum = sum + static_cast<float>(dot) * scale;
      }
      if constexpr (!W::kGroupScales) sum = sum * weights.row_scales()[r];
      product.y[static_cast<int64_t>(t) * product.y_stride + r] = sum + (product.bias == nullptr ? 0.0f : product.bias[r]);
    }
  }
}

#else

constexpr size_t kIntegerTile = kVecs == 1 ? 8 : (kVecs == 2 ? 4 : 2);  // tokens
constexpr size_t kIntegerPanels = kManyRegisters ? 2 : 1;               // of a tile, side by side
constexpr size_t kDirectColumns = 1024;                                 // whose scales are transposed at a time, one token

template <class D>
constexpr size_t kPerLane = 4 / sizeof(typename D::Element);
template <class D>
constexpr size_t kPanelColumns = 512 / sizeof(typename D::Element);  // of a panel in L1: two of them are 16 KiB

// [a, b, c, d] in each block of 128 bits: the sums of its four lanes.
template <class V>
HWY_INLINE V sums_across(V a, V b, V c, V e) {
  const hn::DFromV<V> d;
  const hn::RepartitionToWide<hn::DFromV<V> > wide;
  const auto pair = [&](V v, V w) HWY_ATTR {
    return hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, v, w), hn::InterleaveUpper(d, v, w)));
  };
  const auto ab = pair(a, b), ce = pair(c, e);
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(wide, ab, ce)));
}

// sums[b][16]: of block b for each row, from q[i] with rows 4 i .. 4 i + 3.
template <size_t kBlocks, class V>
HWY_INLINE void sums_of_blocks(const V* q, int32_t* sums) {
  const hn::DFromV<V> d;
  constexpr size_t kLongLanes = hn::MaxLanes(hn::DFromV<V>());
  if constexpr (kLongLanes == 4) {
    static_assert(kBlocks == 1);
    for (size_t i = 0; i < 4; ++i) hn::StoreU(q[i], d, sums + 4 * i);
  } else {
    // Two of q with the halves of each block of columns added: rows of the first in even blocks of 128 bits.
    const auto folded = [&](V even, V odd) HWY_ATTR {
      return hn::Add(hn::OddEvenBlocks(odd, even), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(even, odd)));
    };
    if constexpr (kLongLanes == 8 && kBlocks == 1) {
      hn::StoreU(folded(q[0], q[1]), d, sums);
      hn::StoreU(folded(q[2], q[3]), d, sums + 8);
    } else if constexpr (kLongLanes == 8) {
      static_assert(kBlocks == 2);
      for (size_t i = 0; i < 2; ++i) {
        hn::StoreU(hn::ConcatLowerLower(d, q[2 * i + 1], q[2 * i]), d, sums + 8 * i);
        hn::StoreU(hn::ConcatUpperUpper(d, q[2 * i + 1], q[2 * i]), d, sums + kPanel + 8 * i);
      }
    } else if constexpr (kBlocks == 2) {
      const V low = folded(q[0], q[1]), high = folded(q[2], q[3]);
      hn::StoreU(hn::ConcatLowerLower(d, high, low), d, sums);
      hn::StoreU(hn::ConcatUpperUpper(d, high, low), d, sums + kPanel);
    } else {
      static_assert(kBlocks == 4);
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
      const auto even = [](V a, V b) HWY_ATTR { return V{_mm512_shuffle_i32x4(a.raw, b.raw, 0x88)}; };
      const auto odd = [](V a, V b) HWY_ATTR { return V{_mm512_shuffle_i32x4(a.raw, b.raw, 0xDD)}; };
      const V a = even(q[0], q[1]), b = even(q[2], q[3]), c = odd(q[0], q[1]), e = odd(q[2], q[3]);
      hn::StoreU(even(a, b), d, sums);
      hn::StoreU(even(c, e), d, sums + kPanel);
      hn::StoreU(odd(a, b), d, sums + 2 * kPanel);
      hn::StoreU(odd(c, e), d, sums + 3 * kPanel);
#endif
    }
  }
}

// acc[16] += float(sums[16] - offset) scale, where `scales` are those of the rows (or null) and x_scale that of the token.
template <class W>
HWY_INLINE void add_block(const int32_t* sums, int32_t offset, float x_scale, const float* scales, float* acc) {
  const auto correction = hn::Set(Ints(), offset);
  const Vec x = hn::Set(Tag(), x_scale);
  for (size_t i = 0; i < kPanel; i += kLanes) {
    const Vec dot = hn::ConvertTo(Tag(), hn::Sub(hn::LoadU(Ints(), sums + i), correction));
    const Vec scale = W::kGroupScales ? hn::Mul(x, hn::LoadU(Tag(), scales + i)) : x;
    hn::StoreU(hn::Add(hn::LoadU(Tag(), acc + i), hn::Mul(dot, scale)), Tag(), acc + i);
  }
}

// The scales of 16 rows from block `first` on, [count rounded up to 16][16]; zeros past the end. `scratch` [16, the same].
HWY_INLINE void transpose_scales(const WeightMatrix& weights, const int64_t* rows, size_t first, size_t count, float* scratch,
                                 float* scales) {
  const size_t there = static_cast<size_t>(weights.format().groups(weights.columns)), padded = round_up(count, kPanel);
  const size_t valid = HWY_MIN(count, there - HWY_MIN(there, first));
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  // Two at a time, as the halves of 32 bits.
  const hn::Repartition<uint16_t, Tag> halves;
  const hn::Repartition<uint32_t, Tag> words;
  constexpr size_t kStep = 2 * kPanel;
  for (size_t b = 0; b < count; b += kStep) {
    const auto mask = hn::FirstN(halves, valid - HWY_MIN(valid, b));
    transpose_square(
        [&](size_t r) HWY_ATTR {
          const auto* from = reinterpret_cast<const uint16_t*>(weights.group_scales(rows[r]) + first + b);
          return hn::BitCast(Tag(), hn::MaskedLoad(mask, halves, from));
        },
        scratch);
    for (size_t i = 0; b + 2 * i < padded && i < kPanel; ++i) {
      const auto pair = hn::BitCast(words, hn::LoadU(Tag(), scratch + i * kPanel));
      float* out = scales + (b + 2 * i) * kPanel;
      hn::StoreU(hn::BitCast(Tag(), hn::ShiftLeft<16>(pair)), Tag(), out);
      hn::StoreU(hn::BitCast(Tag(), hn::And(pair, hn::Set(words, 0xFFFF0000U))), Tag(), out + kPanel);
    }
  }
#else
  Chunk chunk;
  for (size_t r = 0; r < kPanel; ++r) {
    float* out = scratch + r * padded;
    widen_weights(weights.group_scales(rows[r]) + first, valid, out);
    std::fill_n(out + valid, padded - valid, 0.0f);
    chunk.row[r] = out;
  }
  transpose(chunk, padded, scales);
#endif
}

// y[t, first ..]: the sums of 16 rows times their scale, plus their bias.
struct RowFinish {
  HWY_ALIGN float scale[kPanel];
  HWY_ALIGN float bias[kPanel];
  size_t count;
  float* y;

  template <class W>
  HWY_INLINE void finish(float* acc, size_t token, int64_t y_stride) const {
    for (size_t i = 0; i < kPanel; i += kLanes) {
      Vec sum = hn::LoadU(Tag(), acc + i);
      if constexpr (!W::kGroupScales) sum = hn::Mul(sum, hn::LoadU(Tag(), scale + i));
      hn::StoreU(hn::Add(sum, hn::LoadU(Tag(), bias + i)), Tag(), acc + i);
    }
    std::copy_n(acc, count, y + static_cast<int64_t>(token) * y_stride);
  }
};

// Rows first .. first + 15, or fewer; those past the end are the last one again, and are not written.
struct IntegerTileRows {
  int64_t index[kPanel];
  RowFinish ends;

  HWY_INLINE IntegerTileRows(const IntegerProduct& product, int64_t first, int64_t end) {
    const WeightMatrix& weights = product.weights;
    ends.count = static_cast<size_t>(HWY_MIN(end - first, static_cast<int64_t>(kPanel)));
    ends.y = product.y + first;
    const bool has_scales = weights.format().scales == WeightFormat::Scales::row;
    for (size_t r = 0; r < kPanel; ++r) {
      index[r] = HWY_MIN(first + static_cast<int64_t>(r), end - 1);
      ends.scale[r] = has_scales ? weights.row_scales()[index[r]] : 1.0f;
      ends.bias[r] = product.bias != nullptr ? product.bias[index[r]] : 0.0f;
    }
  }
};

// Prefetches what is read after the current tile of 16 rows, 16 lines for each line of a row. Where a row has many bytes (int8) a
// line of each row in turn, in the order in which they are read: the hardware sees as many streams as there are rows. In the
// order of memory two threads read somewhat faster but one thread 10% slower; with the shorter rows of int4 both are faster that
// way.
template <class W>
class TileAhead {
 public:
  static constexpr size_t kLine = 64;

  HWY_INLINE TileAhead(const uint8_t* tile, size_t row_bytes) : tile_(tile), row_bytes_(row_bytes) {
    const size_t tile_bytes = kPanel * row_bytes;
    tiles_ = (kIntegerBytesAhead + tile_bytes - 1) / tile_bytes;
    at_ = W::kGroupScales ? tiles_ * tile_bytes : kIntegerBytesAhead / kPanel / row_bytes * tile_bytes;
    column_ = W::kGroupScales ? 0 : kIntegerBytesAhead / kPanel % row_bytes;
  }

  // Whole tiles up to what is prefetched.
  HWY_INLINE size_t tiles() const { return tiles_; }

  // Before bytes of each row are read, from `byte` on.
  HWY_INLINE void before(size_t byte) {
    if (W::kGroupScales || byte % kLine != 0) return;
    for (size_t r = 0; r < kPanel; ++r) hwy::Prefetch(tile_ + at_ + column_ + r * row_bytes_);
    column_ += kLine;
    if (column_ >= row_bytes_) {
      column_ -= row_bytes_;
      at_ += kPanel * row_bytes_;
    }
  }
  // Before those of the rows 4 quad .. 4 quad + 3.
  template <size_t kBytes>
  HWY_INLINE void before_quad(size_t byte, size_t quad) const {
    if (!W::kGroupScales) return;
    const uint8_t* from = tile_ + at_ + kPanel * byte + 4 * kBytes * quad;
    for (size_t line = 0; line < 4 * kBytes; line += kLine) hwy::Prefetch(from + line);
  }

 private:
  const uint8_t* tile_;
  size_t row_bytes_, tiles_, at_, column_;
};

// All columns of 16 rows for one token.
template <class D, class W>
HWY_NOINLINE void one_token_tile(const IntegerProduct& product, size_t token, int64_t first, int64_t end) {
  constexpr size_t kBlocks = D::template kLongBlocks<W>, kColumns = kBlocks * kIntegerBlock, kBytes = kBlocks * W::kBlockBytes;
  constexpr size_t kScaleBlocks = kDirectColumns / kIntegerBlock;
  const WeightMatrix& weights = product.weights;
  const size_t columns = static_cast<size_t>(weights.columns), row_bytes = weights.row_bytes();
  const IntegerTileRows rows(product, first, end);
  const uint8_t* w[kPanel];
  for (size_t r = 0; r < kPanel; ++r)
    w[r] = static_cast<const uint8_t*>(weights.data) + static_cast<size_t>(rows.index[r]) * row_bytes;
  HWY_ALIGN float acc[kPanel] = {};
  HWY_ALIGN float widened[W::kGroupScales ? kPanel * kScaleBlocks : 1], scales[W::kGroupScales ? kPanel * kScaleBlocks : 1];
  HWY_ALIGN uint8_t tails[kPanel * kBytes];
  TileAhead<W> ahead(w[0], row_bytes);
  for (size_t k = 0, byte = 0; k < columns; k += kColumns, byte += kBytes) {
    if constexpr (W::kGroupScales) {
      if (k % kDirectColumns == 0) {
        const size_t left = round_up(columns - k, kColumns) / kIntegerBlock;
        transpose_scales(weights, rows.index, k / kIntegerBlock, HWY_MIN(left, kScaleBlocks), widened, scales);
        if (k == 0) {  // those of a tile at least as far ahead as the elements
          const auto* from = reinterpret_cast<const uint8_t*>(weights.group_scales(rows.index[0]));
          const size_t bytes = kPanel * weights.format().row_scale_bytes(weights.columns);
          for (size_t line = 0; line < bytes; line += 64) hwy::Prefetch(from + ahead.tiles() * bytes + line);
        }
      }
    }
    size_t at = byte;
    if (byte + kBytes > row_bytes) {  // what comes after a row may not be there
      std::fill_n(tails, kPanel * kBytes, uint8_t{0});
      for (size_t r = 0; r < kPanel; ++r) {
        std::memcpy(tails + r * kBytes, w[r] + byte, row_bytes - byte);
        w[r] = tails + r * kBytes;
      }
      at = 0;
    } else {
      ahead.before(byte);
    }
    const typename D::template LongX<W> x(product.x.values(token) + k);
    typename D::LongVec quads[4];
    for (size_t i = 0; i < 4; ++i) {
      const uint8_t* const* row = w + 4 * i;
      ahead.template before_quad<kBytes>(byte, i);
      quads[i] = sums_across(x.dots(row[0] + at), x.dots(row[1] + at), x.dots(row[2] + at), x.dots(row[3] + at));
    }
    HWY_ALIGN int32_t sums[kBlocks * kPanel];
    sums_of_blocks<kBlocks>(quads, sums);
    for (size_t b = 0; b < kBlocks; ++b) {
      const size_t block = k / kIntegerBlock + b;
      add_block<W>(sums + b * kPanel, D::template kOffset<W> * product.x.sums(token)[block], product.x.scales(token)[block],
                   W::kGroupScales ? scales + block % kScaleBlocks * kPanel : nullptr, acc);
    }
  }
  rows.ends.finish<W>(acc, token, product.y_stride);
}

// --- Panels: several tokens ---

// Blocks [first, first + count) of 16 rows as a panel [count 32 / kPerLane<D>][16] of lanes. `unpacked` [16, count 32] is
// scratch.
template <class D, class W>
HWY_NOINLINE void pack_panel(const WeightMatrix& weights, const int64_t* rows, size_t first, size_t count, float* unpacked,
                             float* panel) {
  const size_t row_bytes = weights.row_bytes(), row_lanes = count * kIntegerBlock / kPerLane<D>;
  const size_t begin = first * W::kBlockBytes, ahead = 2 * kPanel * row_bytes;
  const size_t whole = HWY_MIN(count, (row_bytes - begin) / W::kBlockBytes);
  Chunk chunk;
  for (size_t r = 0; r < kPanel; ++r) {
    const uint8_t* w = static_cast<const uint8_t*>(weights.row(rows[r])) + begin;
    if (D::template kInPlace<W> && whole == count && reinterpret_cast<uintptr_t>(w) % alignof(float) == 0) {
      for (size_t b = 0; b < count; b += 64 / W::kBlockBytes) hwy::Prefetch(w + ahead + b * W::kBlockBytes);
      chunk.row[r] = reinterpret_cast<const float*>(w);
      continue;
    }
    float* lanes = unpacked + r * row_lanes;
    auto* out = reinterpret_cast<typename D::Element*>(lanes);
    for (size_t b = 0; b < whole; ++b) {
      if (b * W::kBlockBytes % 64 == 0) hwy::Prefetch(w + ahead + b * W::kBlockBytes);
      D::unpack_block(W(), w + b * W::kBlockBytes, out + b * kIntegerBlock);
    }
    if (whole < count) {  // the last columns of int8; rows of int4 are whole blocks
      uint8_t tail[W::kBlockBytes] = {};
      std::memcpy(tail, w + whole * W::kBlockBytes, row_bytes - begin - whole * W::kBlockBytes);
      D::unpack_block(W(), tail, out + whole * kIntegerBlock);
    }
    chunk.row[r] = lanes;
  }
  transpose(chunk, row_lanes, panel);
}

// Part of the columns of one or two panels, and what their rows end with.
struct PanelPart {
  size_t first_block, blocks;
  bool is_first, is_last;
  const float* panels;  // [P][lanes of the columns][16]
  const float* scales;  // [P][blocks rounded up to 16][16] of int4
};

// The elements of a lane of the panel for one token, in all lanes.
HWY_INLINE IntVec broadcast_lane(const void* x) {
  int32_t lane;
  std::memcpy(&lane, x, sizeof(lane));
  return hn::Set(Ints(), lane);
}

// The columns of a part for T tokens by P panels. x [T, columns of the part], as wide as elements of weights.
template <class D, class W, size_t T, size_t P>
HWY_NOINLINE void integer_tile(const IntegerProduct& product, const PanelPart& part, const IntegerTileRows* rows, size_t token,
                               const typename D::Element* x, size_t x_stride) {
  using Element = typename D::Element;
  constexpr size_t kLanesPerBlock = kIntegerBlock / kPerLane<D>, kVectors = P * kVecs;
  using WeightTag = hn::Repartition<Element, Ints>;
  using XTag = hn::Repartition<std::make_signed_t<Element>, Ints>;
  HWY_ALIGN float acc[T * P * kPanel];
  for (size_t t = 0; t < T; ++t) {
    for (size_t p = 0; p < P; ++p) {
      float* to = acc + (t * P + p) * kPanel;
      std::fill_n(to, kPanel, 0.0f);
      if (!part.is_first)
        std::copy_n(rows[p].ends.y + static_cast<int64_t>(token + t) * product.y_stride, rows[p].ends.count, to);
    }
  }
  const size_t panel_lanes = part.blocks * kLanesPerBlock * kPanel, panel_scales = round_up(part.blocks, kPanel) * kPanel;
  for (size_t b = 0; b < part.blocks; ++b) {
    const size_t block = part.first_block + b;
    IntVec sum[T][kVectors];
    HWY_UNROLL(8)
    for (size_t t = 0; t < T; ++t) {
      const IntVec start = D::template start<W>(product.x.sums(token + t)[block]);
      HWY_UNROLL(4)
      for (size_t v = 0; v < kVectors; ++v) sum[t][v] = start;
    }
    const float* lanes = part.panels + b * kLanesPerBlock * kPanel;
    const Element* x_at = x + b * kIntegerBlock;
    for (size_t k = 0; k < kLanesPerBlock; ++k, lanes += kPanel, x_at += kPerLane<D>) {
      hn::Vec<WeightTag> weights[kVectors];
      HWY_UNROLL(4)
      for (size_t v = 0; v < kVectors; ++v) {
        weights[v] = hn::BitCast(WeightTag(), hn::LoadU(Tag(), lanes + v / kVecs * panel_lanes + v % kVecs * kLanes));
      }
      HWY_UNROLL(8)
      for (size_t t = 0; t < T; ++t) {
        const auto own = hn::BitCast(XTag(), broadcast_lane(x_at + t * x_stride));
        HWY_UNROLL(4)
        for (size_t v = 0; v < kVectors; ++v) sum[t][v] = D::template add<W>(sum[t][v], weights[v], own);
      }
    }
    HWY_UNROLL(8)
    for (size_t t = 0; t < T; ++t) {
      const Vec x_scale = hn::Set(Tag(), product.x.scales(token + t)[block]);
      const int32_t x_sum = product.x.sums(token + t)[block];
      HWY_UNROLL(4)
      for (size_t v = 0; v < kVectors; ++v) {
        const size_t i = v % kVecs * kLanes;
        float* to = acc + (t * P + v / kVecs) * kPanel + i;
        const Vec scale = W::kGroupScales
                              ? hn::Mul(x_scale, hn::LoadU(Tag(), part.scales + v / kVecs * panel_scales + b * kPanel + i))
                              : x_scale;
        hn::StoreU(hn::Add(hn::LoadU(Tag(), to), hn::Mul(hn::ConvertTo(Tag(), D::template total<W>(sum[t][v], x_sum)), scale)),
                   Tag(), to);
      }
    }
  }
  for (size_t t = 0; t < T; ++t) {
    for (size_t p = 0; p < P; ++p) {
      float* from = acc + (t * P + p) * kPanel;
      if (part.is_last) {
        rows[p].ends.template finish<W>(from, token + t, product.y_stride);
      } else {
        std::copy_n(from, rows[p].ends.count, rows[p].ends.y + static_cast<int64_t>(token + t) * product.y_stride);
      }
    }
  }
}

// All tokens by P panels. `x_copy` [kIntegerTile, kPanelColumns] is scratch.
template <class D, class W, size_t P, size_t T>
HWY_INLINE void integer_tiles(const IntegerProduct& product, const PanelPart& part, const IntegerTileRows* rows, size_t token,
                              typename D::Element* x_copy) {
  for (; token + T <= product.tokens; token += T) {
    const int8_t* x = product.x.values(token) + part.first_block * kIntegerBlock;
    if constexpr (sizeof(*x_copy) == 1) {
      integer_tile<D, W, T, P>(product, part, rows, token, reinterpret_cast<const uint8_t*>(x), product.x.padded());
    } else {
      const size_t columns = part.blocks * kIntegerBlock;
      for (size_t t = 0; t < T; ++t) {
        for (size_t c = 0; c < columns; c += kIntegerBlock) {
          D::unpack_block(Int8Rows(), reinterpret_cast<const uint8_t*>(x + t * product.x.padded() + c), x_copy + t * columns + c);
        }
      }
      integer_tile<D, W, T, P>(product, part, rows, token, x_copy, columns);
    }
  }
  if constexpr (T > 1) integer_tiles<D, W, P, T / 2>(product, part, rows, token, x_copy);
}

// Floats of scratch: a panel, or what is unpacked for it; scales of one. Besides there is a tile of tokens.
constexpr size_t kPanelFloats = kPanel * 512 / sizeof(float);
constexpr size_t kScaleFloats = kPanel * 512 / kIntegerBlock;
static_assert((kIntegerPanels + 1) * (kPanelFloats + kScaleFloats) + kIntegerTile * 512 / sizeof(float) <= kIntegerScratchFloats);

template <class D, class W, size_t P>
void panel_rows(const IntegerProduct& product, int64_t first, int64_t end, float* scratch) {
  float* panels = scratch;
  float* unpacked = panels + P * kPanelFloats;
  float* scales = unpacked + kPanelFloats;
  float* widened = scales + P * kScaleFloats;
  constexpr size_t kPanelBlocks = kPanelColumns<D> / kIntegerBlock;
  auto* x_copy = reinterpret_cast<typename D::Element*>(widened + kScaleFloats);
  const size_t blocks = (static_cast<size_t>(product.weights.columns) + kIntegerBlock - 1) / kIntegerBlock;
  const auto rows_from = [&](size_t p) { return IntegerTileRows(product, first + static_cast<int64_t>(p * kPanel), end); };
  const IntegerTileRows rows[2] = {rows_from(0), rows_from(P - 1)};
  for (size_t b = 0; b < blocks; b += kPanelBlocks) {
    const size_t count = HWY_MIN(kPanelBlocks, blocks - b);
    for (size_t p = 0; p < P; ++p) {
      pack_panel<D, W>(product.weights, rows[p].index, b, count, unpacked,
                       panels + p * count * kIntegerBlock / kPerLane<D> * kPanel);
      if constexpr (W::kGroupScales) {
        transpose_scales(product.weights, rows[p].index, b, count, widened, scales + p * round_up(count, kPanel) * kPanel);
      }
    }
    const PanelPart part{b, count, b == 0, b + count == blocks, panels, scales};
    integer_tiles<D, W, P, kIntegerTile>(product, part, rows, 0, x_copy);
  }
}

template <class D, class W>
void rows_by(const IntegerProduct& product, int64_t begin, int64_t end, float* scratch) {
  constexpr int64_t kTall = kIntegerPanels * kPanel;
  if (product.tokens <= D::template kDirectTokens<W>) {
    for (int64_t row = begin; row < end; row += kPanel) {
      for (size_t token = 0; token < product.tokens; ++token) one_token_tile<D, W>(product, token, row, end);
    }
    return;
  }
  int64_t row = begin;
  for (; row + static_cast<int64_t>(kPanel) < end; row += kTall) panel_rows<D, W, kIntegerPanels>(product, row, end, scratch);
  for (; row < end; row += kPanel) panel_rows<D, W, 1>(product, row, end, scratch);
}

template <class W>
void integer_rows(const IntegerProduct& product, int64_t begin, int64_t end, float* scratch) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  if (vnni_is_active()) return rows_by<ByteDots, W>(product, begin, end, scratch);
#endif
  rows_by<OtherDots, W>(product, begin, end, scratch);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
