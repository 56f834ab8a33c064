// Forward pass of exact softmax attention for one block of queries.
//
//   for each block of keys:   S = (scale Q) K^T + bias         a product with panels of 16 keys
//                             m' = max(m, row max of S)        online softmax: what was summed before shrinks by exp(m - m')
//                             P = exp(S - m')
//                             O = diag(exp(m - m')) O + P V    a product with panels of 16 columns of V
//   out = O / sum of P
//
// A block of keys (32 KB at 64 dimensions) comes from L2 once for all the queries of the task; queries, scores and outputs of a
// task stay in L2. On the diagonal of a causal mask each tile of rows stops at the last key that one of its rows sees, and the
// keys that only some of its rows see are added row by row, so that a later token is never multiplied in, not even by 0.

#if defined(RAFFIA_KERNELS_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_SOFTMAX_INL_H_
#undef RAFFIA_KERNELS_SOFTMAX_INL_H_
#else
#define RAFFIA_KERNELS_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "hwy/highway.h"
#include "kernels/chunk-inl.h"
#include "kernels/math-inl.h"
#include "kernels/softmax.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Logits beyond the range of fp32 count as the largest number in it, so that a difference of two is never NaN.
constexpr float kLargest = std::numeric_limits<float>::max();

// out[i] = scale * row t, i < dim, then zeros up to `columns`.
HWY_INLINE void copy_scaled(const Rows& rows, size_t t, size_t dim, size_t columns, float scale, float* HWY_RESTRICT out) {
  const Tag d;
  size_t i = 0;
  if (rows.direct()) {
    const float* in = rows.direct_row(t);
    for (; i + kLanes <= dim; i += kLanes) hn::StoreU(hn::Mul(hn::Set(d, scale), hn::LoadU(d, in + i)), d, out + i);
    if (i < dim && i + kLanes <= columns) {
      hn::StoreU(hn::Mul(hn::Set(d, scale), load_some(in + i, dim - i)), d, out + i);
      i += kLanes;
    }
  } else if (rows.dtype == DType::bf16 && rows.col_stride == 1) {
    const hn::RebindToUnsigned<Tag> bits;
    const hn::Rebind<uint16_t, Tag> upper;
    const uint16_t* in = &(static_cast<const BFloat16*>(rows.data) + static_cast<int64_t>(t) * rows.row_stride)->bits;
    for (; i + kLanes <= dim; i += kLanes) {
      const Vec x = hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(bits, hn::LoadU(upper, in + i))));
      hn::StoreU(hn::Mul(hn::Set(d, scale), x), d, out + i);
    }
  }
  for (; i < dim; ++i) out[i] = scale * rows.at(t, i);
  for (; i < columns; ++i) out[i] = 0.0f;
}

HWY_INLINE void write_scaled(const float* HWY_RESTRICT in, float scale, size_t dim, const MutRows& rows, size_t t) {
  const Tag d;
  size_t i = 0;
  if (rows.direct()) {
    float* out = rows.direct_row(t);
    for (; i < dim; i += kLanes) store_some(hn::Mul(hn::Set(d, scale), load_some(in + i, dim - i)), out + i, dim - i);
  }
  for (; i < dim; ++i) rows.set(t, i, scale * in[i]);
}

// row t += scale * in
HWY_INLINE void add_scaled(const float* HWY_RESTRICT in, float scale, size_t dim, const MutRows& rows, size_t t) {
  const Tag d;
  size_t i = 0;
  if (rows.direct()) {
    float* out = rows.direct_row(t);
    for (; i < dim; i += kLanes) {
      const size_t left = dim - i;
      store_some(hn::MulAdd(hn::Set(d, scale), load_some(in + i, left), load_some(out + i, left)), out + i, left);
    }
  }
  for (; i < dim; ++i) rows.set(t, i, rows.readable().at(t, i) + scale * in[i]);
}

// Packs keys [begin, end), at most a block of them, into `k`, `v` and `bias` (may be null).
inline HWY_NOINLINE void pack_rows(const KeySource& source, size_t dim, size_t value_dim, size_t begin, size_t end, float* k_out,
                                   float* v_out, float* bias, float* scratch) {
  float* zeros = scratch;
  float* staging = zeros + std::max(dim, value_dim) + kPanel;
  for (size_t i = 0; i < std::max(dim, value_dim); ++i) zeros[i] = 0.0f;
  for (size_t j = begin; j < end; j += kPanel) {
    bool takes_part[kPanel];
    for (size_t t = 0; t < kPanel; ++t) takes_part[t] = j + t < end && source.mask.takes_part(j + t);
    transpose(gather(source.k, j, takes_part, dim, zeros, staging), dim, k_out + (j - begin) * dim);
    const Chunk v = gather(source.v, j, takes_part, value_dim, zeros, staging);
    for (size_t t = 0; t < kPanel && j + t < end; ++t) {
      float* out = v_out + (j - begin + t) * kPanel;
      for (size_t c = 0; c < value_dim; c += kPanel, out += kKeyBlock * kPanel) {
        if (c + kPanel <= value_dim) {
          Row row;
          row.load(v.row[t] + c);
          row.store(out);
        } else {
          for (size_t i = 0; i < kPanel; ++i) out[i] = c + i < value_dim ? v.row[t][c + i] : 0.0f;
        }
      }
    }
    if (bias == nullptr) continue;
    for (size_t t = 0; t < kPanel; ++t) {
      const bool biased = takes_part[t] && source.mask.bias.data != nullptr;
      bias[j - begin + t] = biased ? source.mask.bias.at(j + t, 0) : (takes_part[t] ? 0.0f : kMinusInfinity);
    }
  }
}

inline HWY_NOINLINE void pack_block(const PackTask& task, float* scratch) {
  const PackedKeys& keys = task.keys;
  const size_t begin = task.block * kKeyBlock;
  pack_rows(task.source, keys.dim, keys.value_dim, begin, std::min(begin + kKeyBlock, keys.count), keys.k_block(task.block),
            keys.v_block(task.block), keys.bias_block(task.block), scratch);
}

// Adds `bias` (may be null) to a row of scores, and returns the greatest. `width` is a multiple of 16.
HWY_INLINE float bias_and_max(float* HWY_RESTRICT scores, const float* HWY_RESTRICT bias, size_t width) {
  const Tag d;
  Vec greatest = hn::Set(d, kMinusInfinity);
  if (bias != nullptr) {
    for (size_t j = 0; j < width; j += kLanes) {
      const Vec s = hn::Add(hn::LoadU(d, scores + j), hn::LoadU(d, bias + j));
      hn::StoreU(s, d, scores + j);
      greatest = at_least(d, s, greatest);  // passes a NaN of s over: it is found in the sum
    }
  } else {
    for (size_t j = 0; j < width; j += kLanes) greatest = at_least(d, hn::LoadU(d, scores + j), greatest);
  }
  return hn::GetLane(hn::MaxOfLanes(d, greatest));
}

// scores -> exp(scores - shift), and their sum.
HWY_INLINE float exp_and_sum(float* HWY_RESTRICT scores, float shift, size_t width) {
  const Tag d;
  const Vec vshift = hn::Set(d, shift);
  Vec sum = hn::Zero(d);
  for (size_t j = 0; j < width; j += kLanes) {
    const Vec x = at_most(d, hn::Zero(d), hn::Sub(hn::LoadU(d, scores + j), vshift));
    const Vec p = exp_of_nonpositive(d, x);
    hn::StoreU(p, d, scores + j);
    sum = hn::Add(sum, p);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

HWY_INLINE float scalar_exp_of_nonpositive(float x) {
  const hn::CappedTag<float, 1> d;
  return hn::GetLane(exp_of_nonpositive(d, hn::Set(d, x)));
}

// What a row sees of a block of keys: [begin, end), counted from the first key of the block.
struct Seen {
  size_t begin, end;
};

// What a row does not see of [left, width).
HWY_INLINE void hide_unseen(float* HWY_RESTRICT row, size_t left, const Seen& seen, size_t width) {
  for (size_t j = left; j < seen.begin; ++j) row[j] = kMinusInfinity;
  for (size_t j = seen.end; j < width; ++j) row[j] = kMinusInfinity;
}

// body(first row, shape) over tiles of rows; one row at a time where each query has keys of its own.
template <class Body>
HWY_INLINE void for_query_tiles(const Visibility& visible, size_t rows, const Body& body) {
  if (visible.window == 1) {
    for (size_t m = 0; m < rows; ++m) body(m, TileShape<1>());
  } else {
    for_tiles(rows, body);
  }
}

// Of queries [first, first + count): seen[i] is that of query first + i.
HWY_INLINE void fill_seen(const Visibility& visible, size_t first, size_t count, size_t block_begin, size_t block_count,
                          Seen* HWY_RESTRICT seen) {
  visible.for_queries(first, first + count, [&](size_t i, size_t begin, size_t end) HWY_ATTR {
    const Seen of_block = {begin > block_begin ? HWY_MIN(begin - block_begin, block_count) : 0,
                           end > block_begin ? HWY_MIN(end - block_begin, block_count) : 0};
    seen[i - first] = of_block.begin < of_block.end ? of_block : Seen{of_block.end, of_block.end};
  });
}

// scores[i][left, width) = q_i . k_j for the rows of a tile; `k` is a packed block.
template <size_t kTileRows>
HWY_INLINE void score_tile(const float* HWY_RESTRICT q, size_t dim, const float* HWY_RESTRICT k, size_t left, size_t width,
                           float* HWY_RESTRICT scores) {
  for (size_t j = left; j < width; j += kPanel) {
    Tile<kTileRows> tile;
    tile.zero();
    tile.multiply(dim, q, dim, UnitStride(), k + j * dim, kPanel);
    tile.store(scores + j, kKeyBlock);
  }
}

// out [columns] += weights [depth] times rows of panels of kKeyBlock rows. Up to four panels at once: one alone would wait for
// each of its sums.
HWY_INLINE void add_row_product(const float* HWY_RESTRICT weights, size_t depth, const float* HWY_RESTRICT panels, size_t columns,
                                float* HWY_RESTRICT out) {
  for (size_t c = 0; c < columns; c += 4 * kPanel) {
    call_tile<4>(HWY_MIN(4, (columns - c) / kPanel), c, [&]<size_t R>(size_t begin, TileShape<R>) HWY_ATTR {
      Tile<R> sums;  // row p is panel p
      sums.load(out + begin, kPanel);
      const float* row = panels + begin * kKeyBlock;
      for (size_t k = 0; k < depth; ++k, row += kPanel) sums.add_rows(hn::Set(Tag(), weights[k]), row, kKeyBlock * kPanel);
      sums.store(out + begin, kPanel);
    });
  }
}

inline HWY_NOINLINE void forward_block(const ForwardTask& task, float* scratch) {
  const PackedKeys& keys = task.keys;
  const size_t dim = keys.dim, columns = keys.value_columns(), queries = task.count;
  float* q = scratch;                             // [queries][dim]
  float* scores = q + kQueryBlock * dim;          // [queries][kKeyBlock]
  float* out = scores + kQueryBlock * kKeyBlock;  // [queries][columns]
  float* greatest = out + kQueryBlock * columns;  // [queries]
  float* sum = greatest + kQueryBlock;            // [queries]
  float* shrink = sum + kQueryBlock;              // [queries]
  float* own_k = shrink + kQueryBlock;            // a block of keys, where the task packs its own
  float* own_v = own_k + kKeyBlock * dim;
  float* own_bias = own_v + kKeyBlock * columns;
  Seen seen[kQueryBlock];

  const auto query_bias = [&](size_t i)
                              HWY_ATTR { return task.query_bias.data == nullptr ? 0.0f : task.query_bias.at(task.first + i, 0); };
  for (size_t i = 0; i < queries; ++i) {
    copy_scaled(task.q, task.first + i, dim, dim, task.scale, q + i * dim);
    // Biases of queries shift the logits of this call relative to earlier ones: it is enough to shift those the other way.
    // With a bias of -inf this call adds nothing.
    const float before = task.resume ? task.logsumexp.readable().at(task.first + i, 0) : kMinusInfinity;
    if (before == kMinusInfinity || query_bias(i) == kMinusInfinity) {
      for (size_t c = 0; c < columns; ++c) out[i * columns + c] = 0.0f;
      greatest[i] = kMinusInfinity;
      sum[i] = 0.0f;
    } else {
      copy_scaled(task.out.readable(), task.first + i, keys.value_dim, columns, 1.0f, out + i * columns);
      greatest[i] = before - query_bias(i);
      sum[i] = 1.0f;
    }
  }

  const size_t end = task.visible.end(task.first + queries - 1);
  const size_t unit = task.unpacked == nullptr ? kKeyBlock : kPanel;  // packed blocks cannot be moved
  for (size_t begin = task.visible.begin(task.first) / unit * unit; begin < end; begin += kKeyBlock) {
    fill_seen(task.visible, task.first, queries, begin, kKeyBlock, seen);
    const float *k = own_k, *v = own_v, *bias = task.masked ? own_bias : nullptr;
    if (task.unpacked != nullptr) {
      pack_rows(*task.unpacked, dim, keys.value_dim, begin, std::min({begin + kKeyBlock, keys.count, end}), own_k, own_v,
                task.masked ? own_bias : nullptr, own_bias + kKeyBlock);
    } else {
      k = keys.k_block(begin / kKeyBlock);
      v = keys.v_block(begin / kKeyBlock);
      bias = keys.bias_block(begin / kKeyBlock);
    }
    for_query_tiles(task.visible, queries, [&]<size_t kTileRows>(size_t m, TileShape<kTileRows>) HWY_ATTR {
      const size_t left = seen[m].begin / kPanel * kPanel, width = round_up(seen[m + kTileRows - 1].end, kPanel);
      if (width <= left) return;
      score_tile<kTileRows>(q + m * dim, dim, k, left, width, scores + m * kKeyBlock);
      for (size_t i = m; i < m + kTileRows; ++i) {
        float* row = scores + i * kKeyBlock;
        hide_unseen(row, left, seen[i], width);
        const float before = greatest[i];
        const float* row_bias = bias == nullptr ? nullptr : bias + left;
        const float now = std::max(before, std::min(bias_and_max(row + left, row_bias, width - left), kLargest));
        if (bias != nullptr) hide_unseen(row, left, seen[i], width);  // a bias of NaN, too, is not seen
        const float shift = now == kMinusInfinity ? 0.0f : now;
        const float added = exp_and_sum(row + left, shift, width - left);
        shrink[i] = before == now ? 1.0f : scalar_exp_of_nonpositive(before - shift);
        sum[i] = sum[i] * shrink[i] + added;
        greatest[i] = now;
      }
    });
    for_query_tiles(task.visible, queries, [&]<size_t kTileRows>(size_t m, TileShape<kTileRows>) HWY_ATTR {
      const size_t left = seen[m].begin;
      if (seen[m + kTileRows - 1].end <= left) return;
      const size_t shared = HWY_MAX(left, seen[m].end);
      for (size_t c = 0; c < columns; c += kPanel) {
        float* o = out + m * columns + c;
        const float* panel = v + c * kKeyBlock;
        Tile<kTileRows> tile;
        tile.load(o, columns);
        tile.scale_rows(shrink + m);
        tile.multiply(shared - left, scores + m * kKeyBlock + left, kKeyBlock, UnitStride(), panel + left * kPanel, kPanel);
        tile.store(o, columns);
      }
      for (size_t i = 1; i < kTileRows; ++i) {
        const size_t from = HWY_MAX(shared, seen[m + i].begin);
        if (seen[m + i].end <= from) continue;
        add_row_product(scores + (m + i) * kKeyBlock + from, seen[m + i].end - from, v + from * kPanel, columns,
                        out + (m + i) * columns);
      }
    });
  }

  for (size_t i = 0; i < queries; ++i) {
    if (query_bias(i) == kMinusInfinity) {
      if (task.resume) continue;
      sum[i] = 0.0f;
    }
    write_scaled(out + i * columns, sum[i] == 0.0f ? 0.0f : 1.0f / sum[i], keys.value_dim, task.out, task.first + i);
    if (task.logsumexp.data != nullptr) {
      task.logsumexp.set(task.first + i, 0, sum[i] == 0.0f ? kMinusInfinity : greatest[i] + std::log(sum[i]) + query_bias(i));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
