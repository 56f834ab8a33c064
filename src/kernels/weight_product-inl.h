// Tiles of T tokens by R rows of weights, lanes along the columns, all partial sums in registers.
//
// A step loads R vectors of weights (and widens them), then one vector of x for each token and does T R multiply-adds: 4 x 3
// fill AVX2's 16 registers with 12 sums, 3 vectors of weights and one of x, 7 loads for 12 FMA.
//
// With few tokens, the weights are read in place, once, at the speed of memory: tiles of many rows hide the latency of FMA. The
// rows of a tile are some pages apart, so that the hardware prefetcher sees as many long streams. With many tokens, arithmetic is
// the limit: blocks of weights are widened once into panels [columns / lanes][3][lanes] that stay in L1 while all tokens are
// processed.

#if defined(RAFFIA_KERNELS_WEIGHT_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_WEIGHT_PRODUCT_INL_H_
#undef RAFFIA_KERNELS_WEIGHT_PRODUCT_INL_H_
#else
#define RAFFIA_KERNELS_WEIGHT_PRODUCT_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/linear-inl.h"
#include "kernels/softmax.h"
#include "kernels/stored_weights-inl.h"
#include "kernels/weight_gemm-inl.h"
#include "kernels/weight_product.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kTileTokens = 4;
constexpr size_t kTileRows = 3;

// A vector for each of R rows or tokens: of weights, of x, or of sums.
template <size_t R>
struct Vectors {
  Vec head;
  Vectors<R - 1> tail;

  HWY_INLINE void zero() {
    head = hn::Zero(Tag());
    tail.zero();
  }
  template <class W, class Stride>
  HWY_INLINE void load(const W* w, Stride stride) {
    head = in_register(load_weights(w));
    tail.load(w + stride, stride);
  }
  HWY_INLINE void store(float* p) const {
    hn::StoreU(head, Tag(), p);
    tail.store(p + kLanes);
  }
  HWY_INLINE void add_product(Vec x, const Vectors& weights) {
    head = hn::MulAdd(x, weights.head, head);
    tail.add_product(x, weights.tail);
  }
  template <size_t I>
  HWY_INLINE Vec at() const {
    if constexpr (I == 0) {
      return head;
    } else {
      return tail.template at<I - 1>();
    }
  }
};
template <>
struct Vectors<0> {
  HWY_INLINE void zero() {}
  template <class W, class Stride>
  HWY_INLINE void load(const W*, Stride) {}
  HWY_INLINE void store(float*) const {}
  HWY_INLINE void add_product(Vec, const Vectors&) {}
};

// The rows of a tile: first, first + apart, ..
struct TileRows {
  int64_t first;
  int64_t apart = 1;

  HWY_INLINE int64_t at(size_t index) const { return first + static_cast<int64_t>(index) * apart; }
};

// What is added to the sums of rows; padded for vectors of four.
struct RowBias {
  float bias[8];

  HWY_INLINE RowBias(const WeightProduct& product, TileRows rows, size_t count) {
    std::fill_n(bias, 8, 0.0f);
    if (product.bias == nullptr) return;
    for (size_t r = 0; r < count; ++r) bias[r] = product.bias[rows.at(r)];
  }
};

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void finish_rows(const Vectors<0>&, const float*, float*) {}
template <size_t R>
HWY_INLINE void finish_rows(const Vectors<R>& sums, const float* bias, float* y) {
  *y = hn::GetLane(sums.head) + *bias;
  finish_rows(sums.tail, bias + 1, y + 1);
}
#else
// A vector of 16 lanes is folded to 8 first.
template <class V>
HWY_INLINE auto narrow_sum(V sums) {
  if constexpr (kLanes == 16) {
    const hn::Half<Tag> half;
    return hn::Add(hn::LowerHalf(half, sums), hn::UpperHalf(half, sums));
  } else {
    return sums;
  }
}

// y[r] = bias + the sum across lanes. Always four rows at once, so that every row is summed alike.
template <size_t R>
HWY_INLINE void finish_rows(const Vectors<R>& sums, const float* bias, float* y) {
  const hn::CappedTag<float, 8> d;
  const hn::CappedTag<float, 4> d4;
  const auto a = narrow_sum(sums.head);
  auto b = a, c = a, e = a;
  if constexpr (R > 1) b = narrow_sum(sums.tail.head);
  if constexpr (R > 2) c = narrow_sum(sums.tail.tail.head);
  if constexpr (R > 3) e = narrow_sum(sums.tail.tail.tail.head);
  const auto finished = hn::Add(sums_of_four(d, a, b, c, e), hn::LoadU(d4, bias));
  if constexpr (R >= 4) {
    hn::StoreU(finished, d4, y);
  } else {
    HWY_ALIGN float four[4];
    hn::Store(finished, d4, four);
    std::copy_n(four, R, y);
  }
  if constexpr (R > 4) finish_rows(sums.tail.tail.tail.tail, bias + 4, y + 4);
}
#endif

// The sums of O x I pairs of a row and a token. A step holds a vector for each of the I inner ones in registers, the outer ones
// pass by one after the other: sums, inner ones and one outer one must fit the register file.
template <size_t O, size_t I>
struct ProductTile {
  Vectors<I> head;
  ProductTile<O - 1, I> tail;

  HWY_INLINE void zero() {
    head.zero();
    tail.zero();
  }
  // Sums laid aside: [O][I][lanes].
  HWY_INLINE void load(const float* p) {
    head.load(p, kLanes);
    tail.load(p + I * kLanes);
  }
  HWY_INLINE void store(float* p) const {
    head.store(p);
    tail.store(p + I * kLanes);
  }
  template <class T>
  HWY_INLINE void add_products(const T* outer, int64_t stride, const Vectors<I>& inner) {
    const Vec factor = load_weights(outer);
    // With 16 registers all others are taken: there a load for each product costs less than a spill. For a single product the
    // load is part of the multiply-add, which leaves the CPU room to wait for more lines of memory at once.
    head.add_product(kManyRegisters && I > 1 ? in_register(factor) : factor, inner);
    tail.add_products(outer + stride, stride, inner);
  }
  // The sums of inner one K with each outer one.
  template <size_t K>
  HWY_INLINE Vectors<O> with_inner() const {
    return {head.template at<K>(), tail.template with_inner<K>()};
  }
};
template <size_t I>
struct ProductTile<0, I> {
  HWY_INLINE void zero() {}
  HWY_INLINE void load(const float*) {}
  HWY_INLINE void store(float*) const {}
  template <class T>
  HWY_INLINE void add_products(const T*, int64_t, const Vectors<I>&) {}
  template <size_t K>
  HWY_INLINE Vectors<0> with_inner() const {
    return {};
  }
};

// Tokens outside, rows inside: y[t] for each token.
template <size_t T, size_t R>
HWY_INLINE void finish_tokens(const ProductTile<T, R>& tile, const RowBias& bias, float* y, int64_t y_stride) {
  if constexpr (T > 0) {
    finish_rows(tile.head, bias.bias, y);
    finish_tokens(tile.tail, bias, y + y_stride, y_stride);
  }
}
// The other way round.
template <size_t T = 0, size_t R, size_t Tokens>
HWY_INLINE void finish_inner_tokens(const ProductTile<R, Tokens>& tile, const RowBias& bias, float* y, int64_t y_stride) {
  if constexpr (T < Tokens) {
    finish_rows(tile.template with_inner<T>(), bias.bias, y);
    finish_inner_tokens<T + 1>(tile, bias, y + y_stride, y_stride);
  }
}

// The last columns of `count` rows, filled up with zeros to a vector each.
template <class T>
HWY_INLINE void copy_tails(const T* rows, int64_t stride, size_t count, size_t columns, T* out) {
  std::fill_n(out, count * kLanes, T{});
  for (size_t r = 0; r < count; ++r) std::memcpy(out + r * kLanes, rows + static_cast<int64_t>(r) * stride, columns * sizeof(T));
}

// Prefetches the weights of later tiles while one is computed: as many lines per step as it reads, but in the order of memory.
// The rows of a tile are read in parallel, which the hardware prefetcher sees as many short streams.
template <size_t R, class W>
class LinesAhead {
 public:
  explicit LinesAhead(const WeightMatrix& weights) {
    const size_t tile = R * static_cast<size_t>(weights.columns);
    distance_ = tile * HWY_MAX(size_t{1}, kBytesAhead / sizeof(W) / HWY_MAX(size_t{1}, tile));
  }

  // In the step from column k of the tile whose first row is w. A prefetch past the end costs nothing.
  HWY_INLINE void ask(const W* w, size_t k) const {
    const W* ahead = w + distance_ + R * k;
    for (size_t r = 0; r < R; ++r) hwy::Prefetch(ahead + r * (64 / sizeof(W)));
  }

 private:
  size_t distance_;  // elements: whole tiles
};

// T tokens by R rows of weights, read in place. Of tokens and rows, the fewer are held in registers. on_line(w, k) is called for
// each cache line that a row is about to read, from column k on.
template <size_t T, size_t R, class W, class OnLine>
HWY_INLINE void direct_tile(const WeightProduct& product, size_t token, TileRows rows, OnLine on_line) {
  constexpr size_t kLine = 64 / sizeof(W);
  constexpr bool kHoldTokens = T < R;
  const size_t columns = static_cast<size_t>(product.weights.columns);
  const int64_t w_stride = rows.apart * product.weights.columns;
  const W* w = static_cast<const W*>(product.weights.data) + rows.first * product.weights.columns;
  const float* x = product.x + static_cast<int64_t>(token) * product.x_stride;
  ProductTile<HWY_MAX(T, R), HWY_MIN(T, R)> tile;
  tile.zero();
  const auto step = [&](const float* x_at, int64_t x_stride, const W* w_at, int64_t w_apart) HWY_ATTR {
    Vectors<HWY_MIN(T, R)> held;
    if constexpr (kHoldTokens) {
      held.load(x_at, x_stride);
      tile.add_products(w_at, w_apart, held);
    } else {
      held.load(w_at, w_apart);
      tile.add_products(x_at, x_stride, held);
    }
  };
  size_t k = 0;
  for (; k + kLine <= columns; k += kLine) {
    on_line(w, k);
    for (size_t i = k; i < k + kLine; i += kLanes) step(x + i, product.x_stride, w + i, w_stride);
  }
  for (; k + kLanes <= columns; k += kLanes) step(x + k, product.x_stride, w + k, w_stride);
  if (k < columns) {
    HWY_ALIGN W w_tails[R * kLanes];
    HWY_ALIGN float x_tails[T * kLanes];
    copy_tails(w + k, w_stride, R, columns - k, w_tails);
    copy_tails(x + k, product.x_stride, T, columns - k, x_tails);
    step(x_tails, kLanes, w_tails, kLanes);
  }
  const RowBias bias(product, rows, R);
  HWY_ALIGN float finished[T * R];
  if constexpr (kHoldTokens) {
    finish_inner_tokens(tile, bias, finished, static_cast<int64_t>(R));
  } else {
    finish_tokens(tile, bias, finished, static_cast<int64_t>(R));
  }
  for (size_t t = 0; t < T; ++t) {
    float* y = product.y + static_cast<int64_t>(token + t) * product.y_stride;
    for (size_t r = 0; r < R; ++r) y[rows.at(r)] = finished[t * R + r];
  }
}

// All rows [begin, end) for T tokens.
template <size_t T, size_t R, class W>
HWY_NOINLINE void direct_rows(const WeightProduct& product, int64_t begin, int64_t end) {
  constexpr int64_t kTall = static_cast<int64_t>(R);
  const auto nothing = [](const W*, size_t) HWY_ATTR {};
  int64_t row = begin;
  for (int64_t apart; (apart = HWY_MIN(kRowsApart, (end - row) / kTall)) > 0; row += kTall * apart) {
    for (int64_t r = row; r < row + apart; ++r) direct_tile<T, R, W>(product, 0, {.first = r, .apart = apart}, nothing);
  }
  for (; row < end; ++row) direct_tile<T, 1, W>(product, 0, {.first = row}, nothing);
}

// R rows for all tokens, in groups of 3 and 4 (or 2 + 3): the weights come from L1 for all but the first.
template <size_t R, class W>
HWY_NOINLINE void direct_groups(const WeightProduct& product, int64_t row) {
  const LinesAhead<R, W> ahead(product.weights);
  const TileRows rows{.first = row};
  const size_t groups = (product.tokens + kTileTokens - 1) / kTileTokens;
  size_t token = 0;
  for (size_t group = 0; group < groups; ++group) {
    const size_t left = groups - group, take = (product.tokens - token + left - 1) / left;
    // Each group asks for its share of the lines ahead.
    size_t turn = group;
    const auto ask = [&](const W* w, size_t k) HWY_ATTR {
      if (turn-- > 0) return;
      ahead.ask(w, k);
      turn = groups - 1;
    };
    switch (take) {
      case 4:
        direct_tile<4, R, W>(product, token, rows, ask);
        break;
      case 3:
        direct_tile<3, R, W>(product, token, rows, ask);
        break;
      default:
        direct_tile<2, R, W>(product, token, rows, ask);
    }
    token += take;
  }
}

template <class W>
void direct_product(const WeightProduct& product, int64_t begin, int64_t end) {
  switch (product.tokens) {
    case 1:
      return direct_rows<1, 8, W>(product, begin, end);
    case 2:
      return direct_rows<2, 4, W>(product, begin, end);
    case 3:
      return direct_rows<3, 4, W>(product, begin, end);
    default: {
      int64_t row = begin;
      for (; row + static_cast<int64_t>(kTileRows) <= end; row += kTileRows) direct_groups<kTileRows, W>(product, row);
      for (; row < end; ++row) direct_groups<1, W>(product, row);
    }
  }
}

// Columns [k, k + count) of rows [first, first + rows) as one panel; rows and columns that are not there are 0.
template <class W>
HWY_INLINE void pack_weights(const WeightMatrix& weights, int64_t first, size_t rows, size_t k, size_t count,
                             float* HWY_RESTRICT panel) {
  for (size_t r = 0; r < kTileRows; ++r, panel += kLanes) {
    const W* w = static_cast<const W*>(weights.data) + (first + static_cast<int64_t>(r)) * weights.columns + k;
    float* out = panel;
    size_t i = 0;
    for (; r < rows && i + kLanes <= count; i += kLanes, out += kTileRows * kLanes) {
      hn::StoreU(load_weights(w + i), Tag(), out);
    }
    for (; i < count; i += kLanes, out += kTileRows * kLanes) {
      HWY_ALIGN W tail[kLanes] = {};
      if (r < rows) std::memcpy(tail, w + i, (count - i) * sizeof(W));
      hn::StoreU(load_weights(tail), Tag(), out);
    }
  }
}

// Sums of T tokens and one panel, over `columns` columns.
template <size_t T>
HWY_INLINE void multiply_panel(ProductTile<T, kTileRows>& tile, const float* HWY_RESTRICT x, int64_t x_stride, size_t columns,
                               const float* HWY_RESTRICT panel) {
  Vectors<kTileRows> weights;
  const size_t whole = columns / kLanes * kLanes;
  for (size_t k = 0; k < whole; k += kLanes, panel += kTileRows * kLanes) {
    weights.load(panel, std::integral_constant<size_t, kLanes>());
    tile.add_products(x + k, x_stride, weights);
  }
  if (whole < columns) {
    HWY_ALIGN float x_tails[T * kLanes];
    copy_tails(x + whole, x_stride, T, columns - whole, x_tails);
    weights.load(panel, kLanes);
    tile.add_products(x_tails, kLanes, weights);
  }
}

constexpr size_t kBlockPanels = kBlockRows / kTileRows;

// Columns [k, k + count) of a packed block of rows, for T tokens.
template <size_t T>
HWY_NOINLINE void multiply_block(const WeightProduct& product, int64_t row, size_t rows, size_t k, size_t count, size_t token,
                                 const float* panels, float* sums, Ahead& ahead, size_t asks) {
  const size_t panel_floats = round_up(count, kLanes) * kTileRows;
  const float* x = product.x + static_cast<int64_t>(token) * product.x_stride + k;
  for (size_t r = 0; r < rows; r += kTileRows, panels += panel_floats, sums += T * kTileRows * kLanes) {
    ProductTile<T, kTileRows> tile;
    if (k == 0) {
      tile.zero();
    } else {
      tile.load(sums);
    }
    multiply_panel(tile, x, product.x_stride, count, panels);
    for (size_t i = 0; i < asks; ++i) ahead.ask();
    if (k + count < static_cast<size_t>(product.weights.columns)) {
      tile.store(sums);
      continue;
    }
    const int64_t first = row + static_cast<int64_t>(r);
    const size_t there = HWY_MIN(kTileRows, rows - r);
    const RowBias bias(product, {.first = first}, there);
    float* y = product.y + static_cast<int64_t>(token) * product.y_stride + first;
    if (there == kTileRows) {
      finish_tokens(tile, bias, y, product.y_stride);
    } else {
      HWY_ALIGN float finished[T * kTileRows];
      finish_tokens(tile, bias, finished, static_cast<int64_t>(kTileRows));
      for (size_t t = 0; t < T; ++t) std::copy_n(finished + t * kTileRows, there, y + static_cast<int64_t>(t) * product.y_stride);
    }
  }
}

template <class W>
void packed_product(const WeightProduct& product, int64_t begin, int64_t end, float* scratch) {
  const size_t columns = static_cast<size_t>(product.weights.columns);
  float* panels = scratch;                            // [block panels][columns of a block / lanes][3][lanes]
  float* sums = panels + kBlockColumns * kBlockRows;  // [groups of tokens][block panels][4][3][lanes]
  for (size_t first_token = 0; first_token < product.tokens; first_token += kBlockTokens) {
    const size_t tokens = HWY_MIN(kBlockTokens, product.tokens - first_token);
    for (int64_t row = begin; row < end; row += static_cast<int64_t>(kBlockRows)) {
      const size_t rows = static_cast<size_t>(HWY_MIN(static_cast<int64_t>(kBlockRows), end - row));
      for (size_t k = 0; k < columns; k += kBlockColumns) {
        const size_t count = HWY_MIN(kBlockColumns, columns - k);
        for (size_t r = 0; r < rows; r += kTileRows) {
          pack_weights<W>(product.weights, row + static_cast<int64_t>(r), HWY_MIN(kTileRows, rows - r), k, count,
                          panels + r * round_up(count, kLanes));
        }
        // The next block of weights comes from memory while this one is used: the rest of these rows, or the next ones.
        Ahead ahead;
        const bool last = k + count == columns;
        const size_t next = last ? 0 : k + count;
        const W* next_row = static_cast<const W*>(product.weights.row(last ? row + static_cast<int64_t>(rows) : row));
        ahead.add(
            Rows{.data = next_row + next, .dtype = DType::u8, .row_stride = static_cast<int64_t>(product.weights.row_bytes())}, 0,
            kBlockRows, HWY_MIN(kBlockColumns, columns - next) * sizeof(W));
        const size_t asks = (kBlockRows * kBlockColumns * sizeof(W) / 256 + tokens - 1) / tokens;
        for (size_t t = 0; t < tokens; t += kTileTokens) {
          const auto multiply = [&](auto shape) HWY_ATTR {
            multiply_block<decltype(shape)::kHeight>(product, row, rows, k, count, first_token + t, panels,
                                                     sums + t * kBlockRows * kLanes, ahead, asks);
          };
          switch (tokens - t) {
            case 1:
              multiply(TileShape<1>());
              break;
            case 2:
              multiply(TileShape<2>());
              break;
            case 3:
              multiply(TileShape<3>());
              break;
            default:
              multiply(TileShape<kTileTokens>());
          }
        }
      }
    }
  }
}

template <class W>
void any_product(const WeightProduct& product, int64_t begin, int64_t end, float* scratch) {
  if (product.always_packed) {
    gemm_product<W>(product, begin, end, scratch);
  } else if (product.tokens < kPackedFrom || product.weights.columns == 0) {
    direct_product<W>(product, begin, end);
  } else if (!product.any_company) {
    gemm_product<W>(product, begin, end, scratch);
  } else {
    packed_product<W>(product, begin, end, scratch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
