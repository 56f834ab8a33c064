// The inner loop of all matrix products: a tile of a few rows by one panel of 16 columns, or by two (WideTile), kept in
// registers.
//
//   acc[m][0:16] += sum_k A(m, k) * B[k][0:16]      A(m, k) = a[m * row_stride + k * col_stride], one broadcast each
//
// Panels are 16 wide on every ISA (four SSE vectors, two AVX2, one AVX-512), so that packed data have the same layout everywhere.
// Rows per tile are chosen so that accumulators, one row of B and one broadcast fill the register file: 6 x 2 of AVX2's 16
// registers need 8 loads for 12 FMA, within what two load ports deliver.

#if defined(RAFFIA_KERNELS_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_PANEL_INL_H_
#undef RAFFIA_KERNELS_PANEL_INL_H_
#else
#define RAFFIA_KERNELS_PANEL_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/rows.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kPanel = 16;
using Tag = hn::CappedTag<float, kPanel>;
using Vec = hn::Vec<Tag>;
constexpr size_t kLanes = hn::MaxLanes(Tag());
constexpr size_t kVecs = kPanel / kLanes;  // vectors in one row of a panel

// Rows of the largest tile.
constexpr size_t kRows = kVecs == 1 ? 16 : (kVecs == 2 ? 6 : (kVecs == 4 ? 3 : 1));

// Where a row of a panel is one register there are 32 of them, enough for tiles of two panels side by side. Eight rows: twelve
// need fewer loads, but GCC spills some of them.
constexpr bool kManyRegisters = kVecs == 1;
constexpr bool kHasPairs = kManyRegisters;
constexpr size_t kPairRows = 8;

// A stride that is known to be 1 costs no register.
using UnitStride = std::integral_constant<size_t, 1>;
using PanelStride = std::integral_constant<size_t, kPanel>;

// Whether masked loads and stores of floats may touch what is masked. Highway says so for AVX2 because of smaller types.
#if HWY_MEM_OPS_MIGHT_FAULT && (HWY_TARGET != HWY_AVX2 || HWY_IS_ASAN || HWY_IS_MSAN)
#define RAFFIA_MASKS_MIGHT_FAULT 1
#else
#define RAFFIA_MASKS_MIGHT_FAULT 0
#endif

// Up to one vector of the `left` floats from p on; lanes beyond them are 0. Where masks keep the CPU from touching the memory
// behind them, a part of a vector costs about as much as a whole one.
template <class D = Tag>
HWY_INLINE hn::Vec<D> load_some(const float* p, size_t left, D d = D()) {
  constexpr size_t kCount = hn::MaxLanes(D());
  if (left >= kCount) return hn::LoadU(d, p);
#if RAFFIA_MASKS_MIGHT_FAULT
  HWY_ALIGN float lanes[kCount] = {};
  std::copy_n(p, left, lanes);
  return hn::Load(d, lanes);
#else
  return hn::MaskedLoad(hn::FirstN(d, left), d, p);
#endif
}
template <class D = Tag>
HWY_INLINE void store_some(hn::Vec<D> v, float* p, size_t left, D d = D()) {
  constexpr size_t kCount = hn::MaxLanes(D());
  if (left >= kCount) return hn::StoreU(v, d, p);
#if RAFFIA_MASKS_MIGHT_FAULT
  HWY_ALIGN float lanes[kCount];
  hn::Store(v, d, lanes);
  std::copy_n(lanes, left, p);
#else
  hn::BlendedStore(v, hn::FirstN(d, left), d, p);
#endif
}
#undef RAFFIA_MASKS_MIGHT_FAULT

// GCC would load a vector again for each multiply-add that uses it, which is more loads than the load ports can do.
HWY_INLINE Vec in_register(Vec v) {
#if HWY_ARCH_X86 && HWY_COMPILER_GCC && HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR
  asm("" : "+v"(v.raw));
#endif
  return v;
}

// One row of a panel, and a tile of R rows. Both are chains of members rather than arrays, so that they stay in registers without
// the compiler having to unroll a loop first. The scalar target has 16 "vectors" to a row and no use for registers: there it is a
// loop.
#if HWY_TARGET == HWY_SCALAR
template <size_t N, class D = Tag>
struct PanelRow {
  float lanes[N];

  HWY_INLINE void zero() { std::fill_n(lanes, N, 0.0f); }
  HWY_INLINE void load(const float* p) { std::copy_n(p, N, lanes); }
  HWY_INLINE void store(float* p) const { std::copy_n(lanes, N, p); }
  HWY_INLINE void scale(Vec factor) {
    for (float& x : lanes) x *= hn::GetLane(factor);
  }
  HWY_INLINE void multiply_elements(const PanelRow& other) {
    for (size_t i = 0; i < N; ++i) lanes[i] *= other.lanes[i];
  }
  HWY_INLINE void add_product(Vec factor, const PanelRow& other) {
    for (size_t i = 0; i < N; ++i) lanes[i] += hn::GetLane(factor) * other.lanes[i];
  }
  HWY_INLINE void add(const PanelRow& terms) {
    for (size_t i = 0; i < N; ++i) lanes[i] += terms.lanes[i];
  }
  HWY_INLINE void update_and_add(float* HWY_RESTRICT s, const float* HWY_RESTRICT v, Vec g, Vec c, Vec q) {
    for (size_t i = 0; i < N; ++i) {
      s[i] = hn::GetLane(g) * s[i] + hn::GetLane(c) * v[i];
      lanes[i] += hn::GetLane(q) * s[i];
    }
  }
};
#else
template <size_t N, class D = Tag>
struct PanelRow {
  using Vec = hn::Vec<D>;

  Vec head;
  PanelRow<N - 1, D> tail;

  HWY_INLINE void zero() {
    head = hn::Zero(D());
    tail.zero();
  }
  HWY_INLINE void load(const float* p) {
    head = hn::LoadU(D(), p);
    tail.load(p + hn::MaxLanes(D()));
  }
  HWY_INLINE void store(float* p) const {
    hn::StoreU(head, D(), p);
    tail.store(p + hn::MaxLanes(D()));
  }
  HWY_INLINE void scale(Vec factor) {
    head = hn::Mul(factor, head);
    tail.scale(factor);
  }
  HWY_INLINE void multiply_elements(const PanelRow& other) {
    head = hn::Mul(head, other.head);
    tail.multiply_elements(other.tail);
  }
  HWY_INLINE void add_product(Vec factor, const PanelRow& other) {
    head = hn::MulAdd(factor, other.head, head);
    tail.add_product(factor, other.tail);
  }
  HWY_INLINE void add(const PanelRow& terms) {
    head = hn::Add(head, terms.head);
    tail.add(terms.tail);
  }
  // s <- g s + c v, then this += q s.
  HWY_INLINE void update_and_add(float* HWY_RESTRICT s, const float* HWY_RESTRICT v, Vec g, Vec c, Vec q) {
    const Vec updated = hn::MulAdd(c, hn::LoadU(D(), v), hn::Mul(g, hn::LoadU(D(), s)));
    hn::StoreU(updated, D(), s);
    head = hn::MulAdd(q, updated, head);
    tail.update_and_add(s + hn::MaxLanes(D()), v + hn::MaxLanes(D()), g, c, q);
  }
};
template <class D>
struct PanelRow<0, D> {
  using Vec = hn::Vec<D>;

  HWY_INLINE void zero() {}
  HWY_INLINE void load(const float*) {}
  HWY_INLINE void store(float*) const {}
  HWY_INLINE void scale(Vec) {}
  HWY_INLINE void multiply_elements(const PanelRow&) {}
  HWY_INLINE void add_product(Vec, const PanelRow&) {}
  HWY_INLINE void add(const PanelRow&) {}
  HWY_INLINE void update_and_add(float*, const float*, Vec, Vec, Vec) {}
};
#endif
using Row = PanelRow<kVecs>;

#if HWY_TARGET != HWY_SCALAR
// The sums across the lanes of four vectors, as one vector of four.
template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Vec<hn::CappedTag<float, 4>> sums_of_four(D d, V a, V b, V c, V e) {
  const hn::RepartitionToWide<D> dw;
  const auto ab = hn::BitCast(dw, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(dw, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  const auto sums = hn::Add(hn::BitCast(d, hn::InterleaveLower(dw, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(dw, ab, ce)));
  const hn::CappedTag<float, 4> d4;
  if constexpr (hn::MaxLanes(D()) == 16) {
    const hn::CappedTag<float, 8> d8;
    const auto halves = hn::Add(hn::LowerHalf(d8, sums), hn::UpperHalf(d8, sums));
    return hn::Add(hn::LowerHalf(d4, halves), hn::UpperHalf(d4, halves));
  } else if constexpr (hn::MaxLanes(D()) == 8) {
    return hn::Add(hn::LowerHalf(d4, sums), hn::UpperHalf(d4, sums));
  } else {
    return sums;
  }
}
#endif

// Calls body(c, N, D) for N vectors of columns from c on: eight at a time, then four, two and one, so that what belongs to them
// stays in registers, and for the rest one of eight and of four lanes. Returns the first column that is in no vector.
template <class Body>
HWY_INLINE size_t for_columns(size_t columns, const Body& body) {
  size_t c = 0;
  const auto take = [&](auto vectors, auto d) HWY_ATTR {
    constexpr size_t kStep = decltype(vectors)::value * hn::MaxLanes(d);
    for (; c + kStep <= columns; c += kStep) body(c, vectors, d);
  };
  take(std::integral_constant<size_t, 8>(), Tag());
  take(std::integral_constant<size_t, 4>(), Tag());
  take(std::integral_constant<size_t, 2>(), Tag());
  take(std::integral_constant<size_t, 1>(), Tag());
  if constexpr (kLanes > 8) take(std::integral_constant<size_t, 1>(), hn::CappedTag<float, 8>());
  if constexpr (kLanes > 4) take(std::integral_constant<size_t, 1>(), hn::CappedTag<float, 4>());
  return c;
}

template <size_t R>
struct Tile {
  Row head;
  Tile<R - 1> tail;

  HWY_INLINE void zero() {
    head.zero();
    tail.zero();
  }
  HWY_INLINE void load(const float* HWY_RESTRICT c, size_t ldc) {
    head.load(c);
    tail.load(c + ldc, ldc);
  }
  HWY_INLINE void store(float* HWY_RESTRICT c, size_t ldc) const {
    head.store(c);
    tail.store(c + ldc, ldc);
  }
  HWY_INLINE void scale(Vec factor) {
    head.scale(factor);
    tail.scale(factor);
  }
  // Row m times factors[m].
  HWY_INLINE void scale_rows(const float* HWY_RESTRICT factors) {
    head.scale(hn::Set(Tag(), *factors));
    tail.scale_rows(factors + 1);
  }
  // Column j of every row times factors[j].
  HWY_INLINE void scale_columns(const Row& factors) {
    head.multiply_elements(factors);
    tail.scale_columns(factors);
  }
  // Column j of every row plus terms[j].
  HWY_INLINE void add_columns(const Row& terms) {
    head.add(terms);
    tail.add_columns(terms);
  }
  HWY_INLINE void multiply_elements(const float* HWY_RESTRICT c, size_t ldc) {
    Row row;
    row.load(c);
    head.multiply_elements(row);
    tail.multiply_elements(c + ldc, ldc);
  }
  template <class RowStride>
  HWY_INLINE void add_outer(const float* HWY_RESTRICT a, RowStride row_stride, const Row& row) {
    head.add_product(hn::Set(Tag(), *a), row);
    tail.add_outer(a + row_stride, row_stride, row);
  }
  // Row m += factor times the row at rows + m * stride.
  HWY_INLINE void add_rows(Vec factor, const float* HWY_RESTRICT rows, size_t stride) {
    Row row;
    row.load(rows);
    head.add_product(factor, row);
    tail.add_rows(factor, rows + stride, stride);
  }

  // += A B over `depth` columns of A.
  template <class RowStride, class ColStride>
  HWY_INLINE void multiply(size_t depth, const float* HWY_RESTRICT a, RowStride row_stride, ColStride col_stride,
                           const float* HWY_RESTRICT b, size_t ldb) {
    for (size_t k = 0; k < depth; ++k) {
      Row row;
      row.load(b);
      add_outer(a, row_stride, row);
      a += col_stride;
      b += ldb;
    }
  }
};
template <>
struct Tile<0> {
  HWY_INLINE void zero() {}
  HWY_INLINE void load(const float*, size_t) {}
  HWY_INLINE void store(float*, size_t) const {}
  HWY_INLINE void scale(Vec) {}
  HWY_INLINE void scale_rows(const float*) {}
  HWY_INLINE void scale_columns(const Row&) {}
  HWY_INLINE void add_columns(const Row&) {}
  HWY_INLINE void multiply_elements(const float*, size_t) {}
  HWY_INLINE void add_rows(Vec, const float*, size_t) {}
  template <class RowStride>
  HWY_INLINE void add_outer(const float*, RowStride, const Row&) {}
};

// R rows by P panels side by side, 1 or 2; `apart` floats from a row of the first panel to that of the second one. In a pair each
// broadcast is loaded once for both panels: with vectors as wide as a panel, a tile of one panel needs 17 loads for 16 FMA, 8 x 2
// need 10, and 12 x 2 need 14 for 24.
template <size_t R, size_t P>
struct WideTile;
template <size_t R>
struct WideTile<R, 1> {
  Tile<R> tile;

  HWY_INLINE void zero() { tile.zero(); }
  HWY_INLINE void load(const float* HWY_RESTRICT c, size_t, size_t ldc) { tile.load(c, ldc); }
  HWY_INLINE void store(float* HWY_RESTRICT c, size_t, size_t ldc) const { tile.store(c, ldc); }
  HWY_INLINE void scale(Vec factor) { tile.scale(factor); }
  HWY_INLINE void scale_rows(const float* HWY_RESTRICT factors) { tile.scale_rows(factors); }
  // Column j plus terms[j], for 16 P columns.
  HWY_INLINE void add_columns(const float* HWY_RESTRICT terms) {
    Row row;
    row.load(terms);
    tile.add_columns(row);
  }
  template <class RowStride, class ColStride>
  HWY_INLINE void multiply(size_t depth, const float* HWY_RESTRICT a, RowStride row_stride, ColStride col_stride,
                           const float* HWY_RESTRICT b, size_t, size_t ldb) {
    tile.multiply(depth, a, row_stride, col_stride, b, ldb);
  }
};
template <size_t R>
struct WideTile<R, 2> {
  Tile<R> left, right;

  HWY_INLINE void zero() {
    left.zero();
    right.zero();
  }
  HWY_INLINE void load(const float* HWY_RESTRICT c, size_t apart, size_t ldc) {
    left.load(c, ldc);
    right.load(c + apart, ldc);
  }
  HWY_INLINE void store(float* HWY_RESTRICT c, size_t apart, size_t ldc) const {
    left.store(c, ldc);
    right.store(c + apart, ldc);
  }
  HWY_INLINE void scale(Vec factor) {
    left.scale(factor);
    right.scale(factor);
  }
  HWY_INLINE void scale_rows(const float* HWY_RESTRICT factors) {
    left.scale_rows(factors);
    right.scale_rows(factors);
  }
  HWY_INLINE void add_columns(const float* HWY_RESTRICT terms) {
    Row row;
    row.load(terms);
    left.add_columns(row);
    row.load(terms + kPanel);
    right.add_columns(row);
  }
  template <class RowStride, class ColStride>
  HWY_INLINE void multiply(size_t depth, const float* HWY_RESTRICT a, RowStride row_stride, ColStride col_stride,
                           const float* HWY_RESTRICT b, size_t apart, size_t ldb) {
    for (size_t k = 0; k < depth; ++k) {
      Row first, second;
      first.load(b);
      second.load(b + apart);
      add_outer(left, right, a, row_stride, first, second);
      a += col_stride;
      b += ldb;
    }
  }

 private:
  template <size_t N, class RowStride>
  static HWY_INLINE void add_outer(Tile<N>& left, Tile<N>& right, const float* HWY_RESTRICT a, RowStride row_stride,
                                   const Row& first, const Row& second) {
    if constexpr (N > 0) {
      const Vec factor = in_register(hn::Set(Tag(), *a));
      left.head.add_product(factor, first);
      right.head.add_product(factor, second);
      add_outer(left.tail, right.tail, a + row_stride, row_stride, first, second);
    }
  }
};

// The size of a tile as a value, so that a lambda can make its own: a tile that comes in by reference would live in memory.
template <size_t R, size_t P = 1>
struct TileShape {
  static constexpr size_t kHeight = R;
  static HWY_INLINE Tile<R> zero() {
    Tile<R> tile;
    tile.zero();
    return tile;
  }
  static HWY_INLINE Tile<R> load(const float* c, size_t ldc) {
    Tile<R> tile;
    tile.load(c, ldc);
    return tile;
  }
  static HWY_INLINE WideTile<R, P> wide_zero() {
    WideTile<R, P> tile;
    tile.zero();
    return tile;
  }
  static HWY_INLINE WideTile<R, P> wide_load(const float* c, size_t apart, size_t ldc) {
    WideTile<R, P> tile;
    tile.load(c, apart, ldc);
    return tile;
  }
};

// Calls body(m, TileShape<rows, P>()) for a number of rows known at run time only.
template <size_t R, size_t P = 1, class Body>
HWY_INLINE void call_tile(size_t rows, size_t m, const Body& body) {
  if constexpr (R > 0) {
    if (rows == R) {
      body(m, TileShape<R, P>());
    } else {
      call_tile<R - 1, P>(rows, m, body);
    }
  }
}

// Calls body(m, TileShape<R, P>()) for tiles that cover `rows` rows of P panels, each as large as fits. Remainders are spread: 16
// rows are 6 + 5 + 5.
template <size_t P = 1, class Body>
HWY_INLINE void for_tiles(size_t rows, const Body& body) {
  constexpr size_t kMax = P == 1 ? kRows : kPairRows;
  size_t m = 0;
  for (size_t tiles = (rows + kMax - 1) / kMax; tiles > 0; --tiles) {
    const size_t take = (rows - m + tiles - 1) / tiles;
    call_tile<kMax, P>(take, m, body);
    m += take;
  }
}

// How often for_tiles calls its body.
template <size_t P = 1>
constexpr size_t tiles_of(size_t rows) {
  constexpr size_t kMax = P == 1 ? kRows : kPairRows;
  return (rows + kMax - 1) / kMax;
}

// How often for_tiles calls its body in for_panels.
constexpr size_t tiles_of_panels(size_t rows, size_t panels) {
  return kHasPairs ? panels / 2 * tiles_of<2>(rows) + panels % 2 * tiles_of(rows) : panels * tiles_of(rows);
}

// Calls body(p, P) for panels p .. p + P - 1, as std::integral_constant: in pairs where they pay.
template <class Body>
HWY_INLINE void for_panels(size_t panels, const Body& body) {
  size_t p = 0;
  if constexpr (kHasPairs) {
    for (; p + 2 <= panels; p += 2) body(p, std::integral_constant<size_t, 2>());
  }
  for (; p < panels; ++p) body(p, std::integral_constant<size_t, 1>());
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
