// The tokens of a chunk: gathering, prefetching and transposing their rows into panels of 16 (panel-inl.h).

#if defined(RAFFIA_KERNELS_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_CHUNK_INL_H_
#undef RAFFIA_KERNELS_CHUNK_INL_H_
#else
#define RAFFIA_KERNELS_CHUNK_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/panel-inl.h"
#include "kernels/rows.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The tokens of one chunk: a pointer to each of 16 rows. Rows that do not take part (padding, the end of the sequence) are zeros,
// so that later code needs no special case.
struct Chunk {
  const float* row[kPanel];
};

// `valid[t]` != 0 where a row takes part; `staging` [16, dim] receives rows that need conversion.
inline HWY_NOINLINE Chunk gather(const Rows& rows, size_t first, const bool* valid, size_t dim, const float* zeros,
                                 float* staging) {
  Chunk chunk;
  for (size_t t = 0; t < kPanel; ++t) {
    if (!valid[t]) {
      chunk.row[t] = zeros;
    } else if (rows.direct()) {
      chunk.row[t] = rows.direct_row(first + t);
    } else {
      float* copy = staging + t * dim;
      for (size_t i = 0; i < dim; ++i) copy[i] = rows.at(first + t, i);
      chunk.row[t] = copy;
    }
  }
  return chunk;
}

// Prefetches rows that will be needed soon, a few lines at a time between tiles so that requests never queue up. Hardware
// prefetchers miss them: heads are interleaved in memory, so the rows of one head are pages apart. They go to L2, since L1 is
// full of the current chunk. Where the rows are is worked out beforehand: branches that are hard to predict would keep one tile
// from overlapping with the next.
class Ahead {
 public:
  template <class AnyRows>
  HWY_INLINE void add(const AnyRows& rows, size_t first, size_t count, size_t dim) {
    if (rows.col_stride != 1 || rows.data == nullptr) return;
    const int64_t step = rows.row_stride * static_cast<int64_t>(size_of(rows.dtype));
    const size_t bytes = dim * size_of(rows.dtype);
    auto row = reinterpret_cast<uintptr_t>(rows.data) + static_cast<uintptr_t>(static_cast<int64_t>(first) * step);
    for (size_t t = 0; t < count; ++t, row += static_cast<uintptr_t>(step)) add_bytes(row, bytes);
  }

  // Memory in one piece.
  HWY_INLINE void add_floats(const float* floats, size_t count) {
    if (floats != nullptr) add_bytes(reinterpret_cast<uintptr_t>(floats), count * sizeof(float));
  }

  // Divides what was added evenly among as many asks: wide tiles are few, so each has to ask for more.
  HWY_INLINE void spread(size_t asks) { at_once_ = HWY_MAX(size_t{1}, (count_ + asks - 1) / asks); }

  // Prefetches a few lines: more at once would fill the queue of misses and stall the tiles.
  HWY_INLINE void ask() {
    for (const size_t end = HWY_MIN(next_ + at_once_, count_); next_ < end; ++next_) {
      for (size_t line = 0; line < kLines; ++line) {
        __builtin_prefetch(reinterpret_cast<const void*>(pieces_[next_] + line * 64), 0, 2);
      }
    }
  }

  HWY_INLINE void ask_for_all() {
    while (next_ < count_) ask();
  }

 private:
  static constexpr size_t kLines = 4;        // cache lines of a piece; the last piece of a row may reach past its end
  static constexpr size_t kMaxPieces = 512;  // 128 KiB; what is beyond is not prefetched

  HWY_INLINE void add_bytes(uintptr_t begin, size_t bytes) {
    for (size_t at = 0; at < bytes && count_ < kMaxPieces; at += kLines * 64) pieces_[count_++] = begin + at;
  }

  uintptr_t pieces_[kMaxPieces];
  size_t count_ = 0, next_ = 0, at_once_ = 1;
};

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
// [16, 16] -> its transpose; load(r) is row r. Whole lines are read, so that it does not matter how many rows fall into one set
// of L1.
template <class Load>
HWY_INLINE void transpose_square(const Load& load, float* HWY_RESTRICT out) {
  const Tag d;
  const hn::RepartitionToWide<Tag> dw;
  // Of rows 4 g .. 4 g + 3, column 4 b + j in block b of quad[j][g].
  Vec quad[4][4];
  for (size_t g = 0; g < 4; ++g) {
    const auto r0 = load(4 * g), r1 = load(4 * g + 1), r2 = load(4 * g + 2), r3 = load(4 * g + 3);
    const auto t0 = hn::BitCast(dw, hn::InterleaveLower(d, r0, r1)), t1 = hn::BitCast(dw, hn::InterleaveUpper(d, r0, r1));
    const auto t2 = hn::BitCast(dw, hn::InterleaveLower(d, r2, r3)), t3 = hn::BitCast(dw, hn::InterleaveUpper(d, r2, r3));
    quad[0][g] = hn::BitCast(d, hn::InterleaveLower(dw, t0, t2));
    quad[1][g] = hn::BitCast(d, hn::InterleaveUpper(dw, t0, t2));
    quad[2][g] = hn::BitCast(d, hn::InterleaveLower(dw, t1, t3));
    quad[3][g] = hn::BitCast(d, hn::InterleaveUpper(dw, t1, t3));
  }
  for (size_t j = 0; j < 4; ++j, out += kPanel) {  // 4 x 4 blocks
    const auto even = [](Vec a, Vec b) HWY_ATTR { return Vec{_mm512_shuffle_f32x4(a.raw, b.raw, 0x88)}; };
    const auto odd = [](Vec a, Vec b) HWY_ATTR { return Vec{_mm512_shuffle_f32x4(a.raw, b.raw, 0xDD)}; };
    const Vec a = even(quad[j][0], quad[j][1]), b = even(quad[j][2], quad[j][3]);
    const Vec e = odd(quad[j][0], quad[j][1]), f = odd(quad[j][2], quad[j][3]);
    hn::StoreU(even(a, b), d, out);
    hn::StoreU(even(e, f), d, out + 4 * kPanel);
    hn::StoreU(odd(a, b), d, out + 8 * kPanel);
    hn::StoreU(odd(e, f), d, out + 12 * kPanel);
  }
}
#endif

// [16, columns] -> [columns, 16], from and to anywhere: transposes 16 x 16, 8 x 8 or 4 x 4 blocks in registers.
template <class D = hn::CappedTag<float, 8>>  // a template so that the branch of another width is not compiled
inline HWY_NOINLINE void transpose(const Chunk& chunk, size_t columns, float* HWY_RESTRICT out) {
  size_t c = 0;
#if HWY_TARGET != HWY_SCALAR
  const D d;
  constexpr size_t kSide = hn::MaxLanes(D());
  const hn::RepartitionToWide<D> dw;
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  size_t whole = 0;
  for (; whole + kPanel <= columns; whole += kPanel) {
    transpose_square([&](size_t r) HWY_ATTR { return hn::LoadU(Tag(), chunk.row[r] + whole); }, out + whole * kPanel);
  }
#else
  const size_t whole = 0;
#endif
  if constexpr (kSide == 8) {
    const auto widen = [&](auto v) HWY_ATTR { return hn::BitCast(dw, v); };
    // Eight rows at a time: rows of interleaved heads are often a multiple of 4 KiB apart, all in one 8-way set of L1.
    for (size_t half = 0; half < 2; ++half) {
      const float* const* r = chunk.row + 8 * half;
      for (c = whole; c + 8 <= columns; c += 8) {
        const auto quad = [&](size_t first, auto& q0, auto& q1, auto& q2, auto& q3) HWY_ATTR {
          const auto r0 = hn::LoadU(d, r[first] + c), r1 = hn::LoadU(d, r[first + 1] + c);
          const auto r2 = hn::LoadU(d, r[first + 2] + c), r3 = hn::LoadU(d, r[first + 3] + c);
          const auto t0 = widen(hn::InterleaveLower(d, r0, r1)), t1 = widen(hn::InterleaveUpper(d, r0, r1));
          const auto t2 = widen(hn::InterleaveLower(d, r2, r3)), t3 = widen(hn::InterleaveUpper(d, r2, r3));
          q0 = hn::BitCast(d, hn::InterleaveLower(dw, t0, t2));
          q1 = hn::BitCast(d, hn::InterleaveUpper(dw, t0, t2));
          q2 = hn::BitCast(d, hn::InterleaveLower(dw, t1, t3));
          q3 = hn::BitCast(d, hn::InterleaveUpper(dw, t1, t3));
        };
        hn::Vec<D> a0, a1, a2, a3, b0, b1, b2, b3;
        quad(0, a0, a1, a2, a3);
        quad(4, b0, b1, b2, b3);
        float* p = out + c * kPanel + 8 * half;
        hn::StoreU(hn::ConcatLowerLower(d, b0, a0), d, p);
        hn::StoreU(hn::ConcatLowerLower(d, b1, a1), d, p + kPanel);
        hn::StoreU(hn::ConcatLowerLower(d, b2, a2), d, p + 2 * kPanel);
        hn::StoreU(hn::ConcatLowerLower(d, b3, a3), d, p + 3 * kPanel);
        hn::StoreU(hn::ConcatUpperUpper(d, b0, a0), d, p + 4 * kPanel);
        hn::StoreU(hn::ConcatUpperUpper(d, b1, a1), d, p + 5 * kPanel);
        hn::StoreU(hn::ConcatUpperUpper(d, b2, a2), d, p + 6 * kPanel);
        hn::StoreU(hn::ConcatUpperUpper(d, b3, a3), d, p + 7 * kPanel);
      }
    }
  } else {
    static_assert(kSide == 4);
    for (; c < columns / 4 * 4; c += 4) {  // c + 4 could wrap around, GCC warns on Arm
      for (size_t quarter = 0; quarter < 4; ++quarter) {
        const float* const* r = chunk.row + 4 * quarter;
        const auto r0 = hn::LoadU(d, r[0] + c), r1 = hn::LoadU(d, r[1] + c);
        const auto r2 = hn::LoadU(d, r[2] + c), r3 = hn::LoadU(d, r[3] + c);
        const auto t0 = hn::BitCast(dw, hn::InterleaveLower(d, r0, r1)), t1 = hn::BitCast(dw, hn::InterleaveUpper(d, r0, r1));
        const auto t2 = hn::BitCast(dw, hn::InterleaveLower(d, r2, r3)), t3 = hn::BitCast(dw, hn::InterleaveUpper(d, r2, r3));
        float* p = out + c * kPanel + 4 * quarter;
        hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dw, t0, t2)), d, p);
        hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dw, t0, t2)), d, p + kPanel);
        hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dw, t1, t3)), d, p + 2 * kPanel);
        hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dw, t1, t3)), d, p + 3 * kPanel);
      }
    }
  }
#endif
  for (; c < columns; ++c) {
    for (size_t t = 0; t < kPanel; ++t) out[c * kPanel + t] = chunk.row[t][c];
  }
}

// A [rows, 16] block seen as a chunk of rows, for transposing scratch.
HWY_INLINE Chunk block_rows(const float* block, size_t ld) {
  Chunk chunk;
  for (size_t t = 0; t < kPanel; ++t) chunk.row[t] = block + t * ld;
  return chunk;
}

// [16, columns] -> panels [ceil(columns / 16)][16][16]; columns past the end are 0.
inline HWY_NOINLINE void pack(const Chunk& chunk, size_t columns, float* HWY_RESTRICT out) {
  for (size_t c = 0; c < columns; c += kPanel, out += kPanel * kPanel) {
    if (c + kPanel <= columns) {
      for (size_t t = 0; t < kPanel; ++t) {
        Row row;
        row.load(chunk.row[t] + c);
        row.store(out + t * kPanel);
      }
    } else {
      for (size_t t = 0; t < kPanel; ++t) {
        for (size_t i = 0; i < kPanel; ++i) out[t * kPanel + i] = c + i < columns ? chunk.row[t][c + i] : 0.0f;
      }
    }
  }
}

// out[t] = scale[t] * in[t] for each of the 16 rows of every panel; `in` may be `out`.
inline HWY_NOINLINE void scale_panel_rows(const float* in, const float* scale, size_t panels, float* out) {
  for (size_t p = 0; p < panels; ++p) {
    for (size_t t = 0; t < kPanel; ++t) {
      Row row;
      row.load(in + (p * kPanel + t) * kPanel);
      row.scale(hn::Set(Tag(), scale[t]));
      row.store(out + (p * kPanel + t) * kPanel);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
