// Gradients of exact softmax attention: probabilities are computed again from the logits and their log sum exp.
//
//   P = exp(S - logsumexp),  dP = dOut V^T,  dS = P o (dP - delta),  delta_t = dout_t . out_t
//   dV = P^T dOut,  dK = dS^T (scale Q),  dQ = scale dS K,  dbias = column sums of dS
//
// One task owns the keys of a head and goes through them block by block; dK and dV of a block stay in L2 while all queries of
// all heads of the group pass by, and dQ is summed in memory in the order of the blocks. All five products run on tiles.

#if defined(RAFFIA_KERNELS_SOFTMAX_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_SOFTMAX_BACKWARD_INL_H_
#undef RAFFIA_KERNELS_SOFTMAX_BACKWARD_INL_H_
#else
#define RAFFIA_KERNELS_SOFTMAX_BACKWARD_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void pack_query_rows(const PackQueriesTask& task) {
  const PackedQueries& queries = task.queries;
  const size_t columns = queries.columns(), value_columns = queries.value_columns();
  for (size_t i = task.first; i < task.end; ++i) {
    if (task.valid != nullptr && task.valid[static_cast<int64_t>(i) * task.valid_stride] == 0) {  // may hold NaN
      std::fill_n(queries.q + i * columns, columns, 0.0f);
      std::fill_n(queries.dq + i * columns, columns, 0.0f);
      std::fill_n(queries.dout + i * value_columns, value_columns, 0.0f);
      queries.logsumexp[i] = -kMinusInfinity;
      queries.delta[i] = 0.0f;
      continue;
    }
    copy_scaled(task.q, i, queries.dim, columns, task.scale, queries.q + i * columns);
    float* dq = queries.dq + i * columns;
    for (size_t c = 0; c < columns; ++c) dq[c] = 0.0f;
    float* dout = queries.dout + i * value_columns;
    copy_scaled(task.dout, i, queries.value_dim, value_columns, 1.0f, dout);
    const float bias = task.query_bias.data == nullptr ? 0.0f : task.query_bias.at(i, 0);
    const float logsumexp = task.logsumexp.at(i, 0) - bias;
    queries.logsumexp[i] = logsumexp == kMinusInfinity ? -kMinusInfinity : logsumexp;
    float delta = 0.0f;
    size_t c = 0;
    if (task.out.direct()) {
      const Tag d;
      const float* out = task.out.direct_row(i);
      Vec sum = hn::Zero(d);
      for (; c + kLanes <= queries.value_dim; c += kLanes) sum = hn::MulAdd(hn::LoadU(d, dout + c), hn::LoadU(d, out + c), sum);
      delta = hn::GetLane(hn::SumOfLanes(d, sum));
    }
    for (; c < queries.value_dim; ++c) delta += dout[c] * task.out.at(i, c);
    // d logsumexp / d logit is the probability: a gradient of logsumexp joins in here.
    queries.delta[i] = task.dlogsumexp.data == nullptr ? delta : delta - task.dlogsumexp.at(i, 0);
  }
}

// A block of keys in the forms that the products want, and its gradients.
struct KeyBlock {
  size_t count = 0;
  float* k_transposed;  // [kBackwardKeys / 16][dim][16]
  float* v_transposed;  // [kBackwardKeys / 16][value_dim][16]
  float* k;             // [kBackwardKeys][columns]
  float* bias;          // [kBackwardKeys]
  float* dk;            // [kBackwardKeys][columns]
  float* dv;            // [kBackwardKeys][value columns]
  float* dbias;         // [kBackwardKeys]
};

HWY_INLINE void pack_key_block(const BackwardTask& task, size_t begin, KeyBlock& block, float* scratch) {
  const size_t columns = round_up(task.dim, kPanel), value_columns = round_up(task.value_dim, kPanel);
  block.count = std::min(kBackwardKeys, task.visible.keys - begin);
  float* zeros = scratch;
  float* staging = zeros + std::max(task.dim, task.value_dim) + kPanel;
  for (size_t i = 0; i < std::max(task.dim, task.value_dim); ++i) zeros[i] = 0.0f;
  for (size_t j = 0; j < block.count; j += kPanel) {
    bool takes_part[kPanel];
    for (size_t t = 0; t < kPanel; ++t) takes_part[t] = j + t < block.count && task.mask.takes_part(begin + j + t);
    transpose(gather(task.v, begin + j, takes_part, task.value_dim, zeros, staging), task.value_dim,
              block.v_transposed + j * task.value_dim);
    const Chunk k = gather(task.k, begin + j, takes_part, task.dim, zeros, staging);
    transpose(k, task.dim, block.k_transposed + j * task.dim);
    for (size_t t = 0; t < kPanel; ++t) {
      float* row = block.k + (j + t) * columns;
      for (size_t c = 0; c < columns; ++c) row[c] = c < task.dim ? k.row[t][c] : 0.0f;
      const bool biased = takes_part[t] && task.mask.bias.data != nullptr;
      block.bias[j + t] = biased ? task.mask.bias.at(begin + j + t, 0) : (takes_part[t] ? 0.0f : kMinusInfinity);
    }
  }
  std::fill_n(block.dk, kBackwardKeys * columns, 0.0f);
  std::fill_n(block.dv, kBackwardKeys * value_columns, 0.0f);
  std::fill_n(block.dbias, kBackwardKeys, 0.0f);
}

// c [rows, columns] += A b [depth, columns], A(m, k) = a[m * row_stride + k * col_stride]. `columns` is a multiple of 16.
template <class RowStride, class ColStride>
HWY_INLINE void add_product(size_t rows, size_t columns, size_t depth, const float* a, RowStride row_stride, ColStride col_stride,
                            const float* b, float* c) {
  for (size_t panel = 0; panel < columns; panel += kPanel) {
    for_tiles(rows, [&]<size_t kTileRows>(size_t m, TileShape<kTileRows>) HWY_ATTR {
      Tile<kTileRows> tile;
      tile.load(c + m * columns + panel, columns);
      tile.multiply(depth, a + m * row_stride, row_stride, col_stride, b + panel, columns);
      tile.store(c + m * columns + panel, columns);
    });
  }
}

// Queries [first, first + count) of one head against one block of keys.
HWY_INLINE void backward_tiles(const BackwardTask& task, const PackedQueries& queries, bool wants_dq, size_t first, size_t count,
                               size_t begin, const KeyBlock& block, float* probabilities, float* dscores) {
  const Tag d;
  const size_t columns = queries.columns(), value_columns = queries.value_columns();
  const float* q = queries.q + first * columns;
  const float* dout = queries.dout + first * value_columns;
  const size_t padded = round_up(block.count, kPanel);
  Seen seen[kBackwardQueries];
  fill_seen(task.visible, first, count, begin, block.count, seen);
  for_tiles(count, [&]<size_t kTileRows>(size_t m, TileShape<kTileRows>) HWY_ATTR {
    const size_t left = seen[m].begin / kPanel * kPanel, width = round_up(seen[m + kTileRows - 1].end, kPanel);
    for (size_t j = left; j < width; j += kPanel) {
      Tile<kTileRows> tile;
      tile.zero();
      tile.multiply(task.dim, q + m * columns, columns, UnitStride(), block.k_transposed + j * task.dim, kPanel);
      tile.store(probabilities + m * kBackwardKeys + j, kBackwardKeys);
      tile.zero();
      tile.multiply(task.value_dim, dout + m * value_columns, value_columns, UnitStride(),
                    block.v_transposed + j * task.value_dim, kPanel);
      tile.store(dscores + m * kBackwardKeys + j, kBackwardKeys);
    }
    for (size_t i = m; i < m + kTileRows; ++i) {
      float* p = probabilities + i * kBackwardKeys;
      float* ds = dscores + i * kBackwardKeys;
      const Vec logsumexp = hn::Set(d, queries.logsumexp[first + i]);
      const Vec delta = hn::Set(d, queries.delta[first + i]);
      for (size_t j = left; j < width; j += kLanes) {
        const Vec s = hn::Add(hn::LoadU(d, p + j), hn::LoadU(d, block.bias + j));
        const Vec probability = exp_of_nonpositive(d, at_most(d, hn::Zero(d), hn::Sub(s, logsumexp)));
        hn::StoreU(probability, d, p + j);
        hn::StoreU(hn::Mul(probability, hn::Sub(hn::LoadU(d, ds + j), delta)), d, ds + j);
      }
      for (size_t j = 0; j < seen[i].begin; ++j) p[j] = ds[j] = 0.0f;
      for (size_t j = seen[i].end; j < padded; ++j) p[j] = ds[j] = 0.0f;
      for (size_t j = 0; j < padded; j += kLanes) {
        hn::StoreU(hn::Add(hn::LoadU(d, block.dbias + j), hn::LoadU(d, ds + j)), d, block.dbias + j);
      }
    }
  });
  if (task.dv.data != nullptr) {
    add_product(block.count, value_columns, count, probabilities, UnitStride(), kBackwardKeys, dout, block.dv);
  }
  if (task.dk.data != nullptr) add_product(block.count, columns, count, dscores, UnitStride(), kBackwardKeys, q, block.dk);
  if (wants_dq) {
    add_product(count, columns, block.count, dscores, kBackwardKeys, UnitStride(), block.k, queries.dq + first * columns);
  }
}

HWY_INLINE void put_scaled(bool add, const float* HWY_RESTRICT in, float scale, size_t dim, const MutRows& rows, size_t t) {
  add ? add_scaled(in, scale, dim, rows, t) : write_scaled(in, scale, dim, rows, t);
}

// The first of `count` queries for which `holds` is true; it then stays true.
template <class Predicate>
HWY_INLINE size_t first_query(size_t count, const Predicate& holds) {
  size_t low = 0, high = count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    holds(middle) ? high = middle : low = middle + 1;
  }
  return low;
}

void backward_head(const BackwardTask& task, float* scratch) {
  const size_t columns = round_up(task.dim, kPanel), value_columns = round_up(task.value_dim, kPanel);
  float* free = scratch;
  const auto take = [&](size_t floats) {
    float* taken = free;
    free += floats;
    return taken;
  };
  KeyBlock block = {.k_transposed = take(kBackwardKeys * columns),
                    .v_transposed = take(kBackwardKeys * value_columns),
                    .k = take(kBackwardKeys * columns),
                    .bias = take(kBackwardKeys),
                    .dk = take(kBackwardKeys * columns),
                    .dv = take(kBackwardKeys * value_columns),
                    .dbias = take(kBackwardKeys)};
  float* probabilities = take(kBackwardKeys * kBackwardQueries);
  float* dscores = take(kBackwardKeys * kBackwardQueries);

  const size_t keys = task.visible.keys, queries = task.visible.queries;
  for (size_t begin = 0; begin < keys; begin += kBackwardKeys) {
    pack_key_block(task, begin, block, free);
    // The queries that see keys of this block: those before see none yet, those after none any more.
    const size_t block_end = begin + block.count;
    const size_t first = first_query(queries, [&](size_t i) HWY_ATTR { return task.visible.end(i) > begin; });
    const size_t end = first_query(queries, [&](size_t i) HWY_ATTR { return task.visible.begin(i) >= block_end; });
    for (size_t h = 0; h < task.head_count; ++h) {
      const BackwardHead& head = task.heads[h];
      for (size_t i = first; i < end; i += kBackwardQueries) {
        backward_tiles(task, head.queries, head.dq.data != nullptr, i, std::min(kBackwardQueries, end - i), begin, block,
                       probabilities, dscores);
      }
    }
    for (size_t j = 0; j < block.count; ++j) {
      if (task.dk.data != nullptr) put_scaled(task.add_dk, block.dk + j * columns, 1.0f, task.dim, task.dk, begin + j);
      if (task.dv.data != nullptr)
        put_scaled(task.add_dk, block.dv + j * value_columns, 1.0f, task.value_dim, task.dv, begin + j);
      if (task.dbias.data != nullptr) put_scaled(task.add_dk, block.dbias + j, 1.0f, 1, task.dbias, begin + j);
    }
  }
  for (size_t h = 0; h < task.head_count; ++h) {
    const BackwardHead& head = task.heads[h];
    for (size_t i = 0; head.dq.data != nullptr && i < queries; ++i) {
      put_scaled(head.add_dq, head.queries.dq + i * columns, task.scale, task.dim, head.dq, i);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
