// Exact softmax attention, divided into the tasks that its kernels run. Views, batches and threads are the caller's concern.
//
// Keys and values of one head are packed once and read by every block of queries, of every query head of the group:
//   k    [blocks][kKeyBlock / 16][dim][16]              16 keys on the lanes, so that q k^T is a product with panels
//   v    [blocks][value panels][kKeyBlock][16]          rows, 16 columns a panel, padded with zeros
//   bias [blocks][kKeyBlock]                            added to the logits; -inf where a key takes no part
#ifndef RAFFIA_KERNELS_SOFTMAX_H_
#define RAFFIA_KERNELS_SOFTMAX_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/rows.h"

namespace raffia::internal {

constexpr size_t kKeyBlock = 128;    // keys per block: one block of k or v is 32 KB at 64 dimensions
constexpr size_t kQueryBlock = 192;  // queries per task: a multiple of the rows of a tile on every ISA (16, 6, 3)

// Which keys of a sequence take part, and their bias. Both may be absent.
struct KeyMask {
  const uint8_t* valid = nullptr;  // 1 takes part
  int64_t valid_stride = 0;
  Rows bias;  // [keys, 1]

  bool takes_part(size_t j) const { return valid == nullptr || valid[static_cast<int64_t>(j) * valid_stride] != 0; }
};

struct PackedKeys {
  size_t count = 0;  // keys of the sequence
  size_t dim = 0, value_dim = 0;
  float* k = nullptr;
  float* v = nullptr;
  float* bias = nullptr;  // null: all keys take part and none has a bias

  size_t blocks() const { return (count + kKeyBlock - 1) / kKeyBlock; }
  size_t value_columns() const { return round_up(value_dim, 16); }
  float* k_block(size_t block) const { return k + block * kKeyBlock * dim; }
  float* v_block(size_t block) const { return v + block * kKeyBlock * value_columns(); }
  float* bias_block(size_t block) const { return bias == nullptr ? nullptr : bias + block * kKeyBlock; }
};

// Keys that are not packed yet.
struct KeySource {
  Rows k, v;  // of the whole sequence
  KeyMask mask;
};

// Packs one block of keys.
struct PackTask {
  PackedKeys keys;
  size_t block = 0;
  KeySource source;
};

// The keys [begin(i), end(i)) that query i of a sequence sees. Both ends are non-decreasing in i.
//
// Queries come in windows: query i is in window (i + phase) / window (0 without windows). An edge moves by `per_window` keys from
// one window to the next and by `per_query` keys from one query to the next.
struct Visibility {
  struct Edge {
    int64_t offset = 0, per_window = 0, per_query = 0;
  };

  size_t queries = 0, keys = 0;
  int64_t window = 0, phase = 0;
  Edge first, last;

  size_t begin(size_t i) const { return at(first, i, window_of(i)); }
  size_t end(size_t i) const { return at(last, i, window_of(i)); }

  // body(i, begin(i), end(i)) for queries [from, to), without a division for each.
  template <class Body>
  void for_queries(size_t from, size_t to, const Body& body) const {
    int64_t w = window_of(from),
            next = window > 0 ? (w + 1) * window - phase : INT64_MAX;  // the first query of the window after w
    for (size_t i = from; i < to; ++i) {
      if (static_cast<int64_t>(i) == next) {
        ++w;
        next += window;
      }
      body(i, at(first, i, w), at(last, i, w));
    }
  }

  // Every key.
  static Visibility all(size_t queries, size_t keys) {
    return {.queries = queries, .keys = keys, .last = {.offset = static_cast<int64_t>(keys)}};
  }
  // Keys up to the query's own position, counted from the end.
  static Visibility causal(size_t queries, size_t keys) {
    return {.queries = queries,
            .keys = keys,
            .last = {.offset = static_cast<int64_t>(keys) - static_cast<int64_t>(queries) + 1, .per_query = 1}};
  }
  // Of these, only the keys of the query's own window and of the `before` windows before it. Key 0 has index `key_phase` in its
  // window.
  static Visibility recent(size_t queries, size_t keys, int64_t window, int64_t before, int64_t key_phase) {
    Visibility visible = causal(queries, keys);
    visible.window = window;
    visible.phase = key_phase + static_cast<int64_t>(keys) - static_cast<int64_t>(queries);
    visible.first = {.offset = -key_phase - before * window, .per_window = window};
    return visible;
  }
  // Window w of queries sees keys [w stride, (w + 1) stride): its own, ...
  static Visibility own(size_t queries, size_t keys, int64_t window, int64_t stride) {
    return {.queries = queries,
            .keys = keys,
            .window = window,
            .first = {.per_window = stride},
            .last = {.offset = stride, .per_window = stride}};
  }
  // ... or all keys after these, ...
  static Visibility later(size_t queries, size_t keys, int64_t window, int64_t stride) {
    return {.queries = queries,
            .keys = keys,
            .window = window,
            .first = {.offset = stride, .per_window = stride},
            .last = {.offset = static_cast<int64_t>(keys)}};
  }
  // ... or the last `max` keys before w stride + lead. Query 0 is number `phase` of its window.
  static Visibility earlier(size_t queries, size_t keys, int64_t window, int64_t stride, int64_t lead = 0, int64_t phase = 0,
                            int64_t max = INT64_MAX / 2) {
    return {.queries = queries,
            .keys = keys,
            .window = window,
            .phase = phase,
            .first = {.offset = lead - max, .per_window = stride},
            .last = {.offset = lead, .per_window = stride}};
  }

 private:
  int64_t window_of(size_t i) const { return window > 0 ? (static_cast<int64_t>(i) + phase) / window : 0; }
  size_t at(const Edge& edge, size_t i, int64_t w) const {
    const int64_t key = edge.offset + edge.per_query * static_cast<int64_t>(i) + edge.per_window * w;
    return static_cast<size_t>(std::clamp(key, int64_t{0}, static_cast<int64_t>(keys)));
  }
};

// A block of at most kQueryBlock queries of one head against all the keys that it sees.
struct ForwardTask {
  PackedKeys keys;
  const KeySource* unpacked = nullptr;  // keys that no other task shares: packed here, block by block, while they are in cache
  bool masked = false;                  // some of these have a bias or take no part
  Visibility visible;
  size_t first = 0, count = 0;  // queries of the sequence
  float scale = 1;
  Rows q;               // of the whole sequence
  Rows query_bias;      // [queries, 1], added to all logits of a query; no data: none
  MutRows out;          // of the whole sequence
  MutRows logsumexp;    // [queries, 1]; no data: not needed
  bool resume = false;  // out and logsumexp hold a softmax over other keys, which is continued
};

// Floats of scratch for one worker of either kind of task.
inline size_t pack_scratch(size_t dim, size_t value_dim) { return 17 * (std::max(dim, value_dim) + 16); }
inline size_t forward_scratch(size_t dim, size_t value_dim) {
  return kQueryBlock * (dim + kKeyBlock + round_up(value_dim, 16) + 3) + kKeyBlock * (dim + round_up(value_dim, 16) + 1) +
         pack_scratch(dim, value_dim);
}

void pack_keys(const PackTask& task, float* scratch);
void softmax_forward(const ForwardTask& task, float* scratch);

// Draws keys from the rows of a softmax whose logsumexp is known: of draw t of query i, the first key at which the sum of
// probabilities exceeds uniforms[t]; the last key that takes part if rounding leaves none; -1 if there are no keys.
struct DrawTask {
  KeySource source;  // v is not read
  bool masked = false;
  Visibility visible;
  size_t first = 0, count = 0;  // queries of the sequence, at most kQueryBlock
  size_t dim = 0;
  float scale = 1;
  Rows q, logsumexp;  // of the whole sequence
  size_t draws = 0;
  const double* uniforms = nullptr;  // [count, draws]
  int32_t* drawn = nullptr;          // [count, draws]: keys of the sequence
};

inline size_t draw_scratch(size_t dim) { return kQueryBlock * (dim + kKeyBlock) + kKeyBlock * (dim + 1) + pack_scratch(dim, 0); }

void softmax_draw(const DrawTask& task, float* scratch);

// Gradients. Queries are packed once, in rows padded with zeros to a multiple of 16 columns; the gradient of the queries is
// summed there too.
struct PackedQueries {
  size_t count = 0;
  size_t dim = 0, value_dim = 0;
  float* q = nullptr;          // [count, columns], times the scale
  float* dq = nullptr;         // [count, columns], of the scaled queries
  float* dout = nullptr;       // [count, value columns]
  float* logsumexp = nullptr;  // [count]; +inf where a query sees no key, so that its probabilities are 0
  float* delta = nullptr;      // [count]: dout . out

  static size_t floats_per_query(size_t dim, size_t value_dim) { return 2 * round_up(dim, 16) + round_up(value_dim, 16) + 2; }
  PackedQueries(size_t queries, size_t d, size_t dv, float* memory)
      : count(queries),
        dim(d),
        value_dim(dv),
        q(memory),
        dq(q + queries * columns()),
        dout(dq + queries * columns()),
        logsumexp(dout + queries * value_columns()),
        delta(logsumexp + queries) {}

  size_t columns() const { return round_up(dim, 16); }
  size_t value_columns() const { return round_up(value_dim, 16); }
};

struct PackQueriesTask {
  PackedQueries queries;
  size_t first = 0, end = 0;
  float scale = 1;
  Rows q, out, logsumexp, dout;
  Rows query_bias;                 // as in the forward pass
  const uint8_t* valid = nullptr;  // 1 where a query has a gradient; null: all
  int64_t valid_stride = 0;
  Rows dlogsumexp;  // [queries, 1]; no data: none
};

// All queries of one head in a group of heads that share keys.
struct BackwardHead {
  PackedQueries queries;
  MutRows dq;           // no data: not needed; the same below
  bool add_dq = false;  // to what dq holds
};

// The keys of one head against all the queries of its group.
struct BackwardTask {
  const BackwardHead* heads = nullptr;
  size_t head_count = 0;
  size_t dim = 0, value_dim = 0;
  Visibility visible;
  float scale = 1;
  Rows k, v;
  KeyMask mask;
  MutRows dk, dv, dbias;
  bool add_dk = false;  // to what dk, dv and dbias hold
};

constexpr size_t kBackwardKeys = 64;     // per block: both of its gradients and all its packed forms take 100 KB of L2
constexpr size_t kBackwardQueries = 96;  // per block

inline size_t backward_scratch(size_t dim, size_t value_dim) {
  const size_t per_key = 3 * round_up(dim, 16) + 2 * round_up(value_dim, 16) + 2 * kBackwardQueries + 2;
  return kBackwardKeys * per_key + pack_scratch(dim, value_dim);
}

void pack_queries(const PackQueriesTask& task, float* scratch);
void softmax_backward(const BackwardTask& task, float* scratch);

// A step of decoding: one query per head against a stretch of the cache. Stretches are combined in the order of tokens.
constexpr size_t kStepKeys = 256;  // per stretch

// The result of a stretch for each head.
struct StepPartial {
  float* values;    // [heads, value columns]: values times weights; whole cache lines per head
  float* greatest;  // [heads]: greatest logit
  float* weight;    // [heads]: sum of exp(logit - greatest)

  StepPartial(float* memory, size_t heads, size_t value_dim)
      : values(memory), greatest(values + heads * round_up(value_dim, 16)), weight(greatest + heads) {}
  static size_t size(size_t heads, size_t value_dim) { return heads * round_up(value_dim, 16) + round_up(2 * heads, 16); }
};

struct StepTask {
  size_t heads = 0, groups = 0;
  size_t dim = 0, value_dim = 0;
  size_t begin = 0, end = 0;  // tokens of the cache
  float scale = 1;
  Rows q;                                         // [heads, dim]
  Rows k, v;                                      // of the first key head
  KeyMask mask;                                   // likewise
  int64_t k_head = 0, v_head = 0, bias_head = 0;  // elements from one key head to the next
  bool sampled = false;                           // -|scale q|^2 / 2 + offset is added to all logits of a query
  float offset = 0;
  float* partial = nullptr;  // StepPartial
};

struct CombineTask {
  float* partials = nullptr;  // StepPartial of each stretch; greatest logits are used up
  size_t stretches = 0;
  size_t heads = 0, value_dim = 0;
  MutRows out;        // [heads, value_dim]
  MutRows logsumexp;  // [heads, 1]; no data: not needed
};

inline size_t step_scratch(size_t heads, size_t dim, size_t value_dim) {
  return heads * (round_up(dim, 16) + 2 * kStepKeys) + 5 * round_up(std::max(dim, value_dim), 16);
}

void softmax_step_stretch(const StepTask& task, float* scratch);
void softmax_step_combine(const CombineTask& task, float* scratch);

}  // namespace raffia::internal

#endif  // RAFFIA_KERNELS_SOFTMAX_H_
