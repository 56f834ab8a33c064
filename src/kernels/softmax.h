// Exact softmax attention, cut into the tasks that its kernels run. Nothing here knows about views, batches or threads.
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

namespace raffia {

constexpr size_t kKeyBlock = 128;   // keys per block: one block of k or v is 32 KB at 64 dimensions
constexpr size_t kQueryBlock = 96;  // queries per task: a multiple of the rows of a tile on every ISA (12, 6, 3)

constexpr size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

// Which keys of a sequence take part, and their bias. Both may be absent.
struct KeyMask {
  const uint8_t* valid = nullptr;  // 1 takes part
  int64_t valid_stride = 0;
  Rows bias;  // [keys, 1]

  bool takes_part(size_t j) const { return valid == nullptr || valid[static_cast<int64_t>(j) * valid_stride] != 0; }
  bool empty() const { return valid == nullptr && bias.data == nullptr; }
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

// Packs one block of keys.
struct PackTask {
  PackedKeys keys;
  size_t block = 0;
  Rows k, v;  // of the whole sequence
  KeyMask mask;
};

// Keys that query i of a sequence sees: all of them, or those up to its own position counted from the end.
struct Visibility {
  size_t queries = 0, keys = 0;
  bool causal = false;

  size_t operator()(size_t i) const {
    return !causal ? keys : (i + keys + 1 > queries ? std::min(i + keys + 1 - queries, keys) : 0);
  }
};

// A block of at most kQueryBlock queries of one head against all the keys that it sees.
struct ForwardTask {
  PackedKeys keys;
  Visibility visible;
  size_t first = 0, count = 0;  // queries of the sequence
  float scale = 1;
  Rows q;             // of the whole sequence
  MutRows out;        // likewise
  MutRows logsumexp;  // [queries, 1]; no data: not wanted
};

// Floats of scratch for one worker of either kind of task.
inline size_t pack_scratch(size_t dim, size_t value_dim) { return 17 * (std::max(dim, value_dim) + 16); }
inline size_t forward_scratch(size_t dim, size_t value_dim) {
  return kQueryBlock * (dim + kKeyBlock + round_up(value_dim, 16) + 3);
}

void pack_keys(const PackTask& task, float* scratch);
void softmax_forward(const ForwardTask& task, float* scratch);

}  // namespace raffia

#endif  // RAFFIA_KERNELS_SOFTMAX_H_
