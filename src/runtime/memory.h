// The memory of a session, one part per attention.
#ifndef RAFFIA_RUNTIME_MEMORY_H_
#define RAFFIA_RUNTIME_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "io/formats/session_file.h"
#include "raffia/state.h"
#include "raffia/views.h"
#include "raffia/window_state.h"

namespace raffia::runtime {

// A KV cache: all keys and values (softmax, ra), or those of the visible windows (window).
class KeyCache {
 public:
  // keeps_all: old rows are never dropped; only truncate() drops the newest.
  KeyCache(int64_t heads, int64_t dim, bool keeps_all) : heads_(heads), dim_(dim), keeps_all_(keeps_all) {}

  bool keeps_all() const { return keeps_all_; }
  KeyRows copy() const;              // in the form of a session file
  void assign(const KeyRows& rows);  // the inverse; heads and dim must match

  int64_t rows() const { return rows_; }
  int64_t heads() const { return heads_; }
  int64_t dim() const { return dim_; }
  size_t size_bytes() const { return 2 * static_cast<size_t>(rows_ * width()) * sizeof(float); }

  void append(View3 keys, View3 values);  // [T, G, d], fp32 rows of contiguous heads
  void append_copies(int64_t count);      // appends `count` rows that are copies of existing rows
  void keep_last(int64_t rows);
  void truncate(int64_t rows);  // keeps the first rows

  View4 keys() const { return {keys_.data(), {1, rows_, heads_, dim_}}; }
  View4 values() const { return {values_.data(), {1, rows_, heads_, dim_}}; }

 private:
  int64_t width() const { return heads_ * dim_; }

  int64_t heads_, dim_, rows_ = 0;
  bool keeps_all_;
  std::vector<float, detail::CacheLineAllocator<float>> keys_, values_;  // [capacity, G, d]
};

// The memory of one causal attention: a State or WindowState of an estimator, or a KeyCache of exact attention.
struct AttentionMemory {
  std::variant<State, WindowState, KeyCache> past;
  std::vector<float> tail = {};  // [conv - 1, (H + 2 G) d]: rows of q, k, v that the short convolution still needs

  size_t size_bytes() const;
};

using Memory = std::vector<AttentionMemory>;  // of a session: one per causal attention, in order

size_t size_bytes(const Memory& memory);

}  // namespace raffia::runtime

#endif  // RAFFIA_RUNTIME_MEMORY_H_
