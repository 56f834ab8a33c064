// What a causal attention remembers of the tokens that it has read: one type for all estimators.
//
//   Memory memory = empty_memory(estimator, {.query_heads = 8, .heads = 8, .dim = 64, .value_dim = 64, .map = &map});
//   attend(estimator, {.q = q, .k = k, .v = v, .gate_logits = gates, .map = &map}, memory, out, {.causal = true});
//   memory.save("chat.memory");
//
// It holds a State (linear attention), a WindowState (an exact window and what stands for the tokens before it) or a KeyCache
// (exact attention); the registry of estimators says which. A value: it can be copied, selected, saved and loaded.
#ifndef RAFFIA_MEMORY_H_
#define RAFFIA_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "raffia/api.h"
#include "raffia/state.h"
#include "raffia/views.h"
#include "raffia/window_state.h"

namespace raffia {

struct KeyCacheShape {
  int64_t batch = 1;
  int64_t heads = 1;      // G
  int64_t dim = 0;        // D
  int64_t value_dim = 0;  // V
  bool operator==(const KeyCacheShape&) const = default;
};

// Keys and values of exact attention: those of all tokens, or of the recent ones that later tokens can still see.
class RAFFIA_API KeyCache {
 public:
  explicit KeyCache(const KeyCacheShape& shape);

  const KeyCacheShape& shape() const { return shape_; }
  size_t size_bytes() const;

  int64_t tokens(int64_t b) const { return entries_[static_cast<size_t>(b)].tokens; }  // seen by entry b
  int64_t rows(int64_t b) const { return entries_[static_cast<size_t>(b)].rows; }      // kept of these: the last ones
  View4 keys(int64_t b) const;                                                         // [1, rows, G, D]
  View4 values(int64_t b) const;                                                       // [1, rows, G, V]

  void append(int64_t b, View3 keys, View3 values);  // [T, G, D], [T, G, V]
  void append_copies(int64_t b, int64_t count);      // appends `count` rows that are copies of existing rows
  void keep_last(int64_t b, int64_t rows);
  void count_as(int64_t b, int64_t tokens);  // as if the rows were the last ones of so many tokens
  void truncate(int64_t b, int64_t tokens);  // back to the first tokens, none of which may have been dropped

  // Replaces entry b by its last rows after `tokens` tokens, [rows, G, D] and [rows, G, V].
  void assign(int64_t b, int64_t tokens, std::span<const float> keys, std::span<const float> values);

  KeyCache select(std::span<const int64_t> indices) const;
  bool operator==(const KeyCache&) const = default;

 private:
  using Floats = std::vector<float, detail::CacheLineAllocator<float>>;
  struct Entry {
    int64_t tokens = 0, rows = 0;
    Floats keys = {}, values = {};  // [rows, G, D], [rows, G, V]
    bool operator==(const Entry&) const = default;
  };

  KeyCacheShape shape_;
  std::vector<Entry> entries_;  // [B]
};

class RAFFIA_API Memory {
 public:
  Memory(State state) : past_(std::move(state)) {}        // NOLINT(google-explicit-constructor)
  Memory(WindowState state) : past_(std::move(state)) {}  // NOLINT(google-explicit-constructor)
  Memory(KeyCache cache) : past_(std::move(cache)) {}     // NOLINT(google-explicit-constructor)

  int64_t batch() const;
  size_t size_bytes() const;
  std::optional<int64_t> tokens(int64_t b) const;  // seen by entry b; nullopt: a State does not count them
  bool has_shape_of(const Memory& other) const;    // the same kind and sizes; key caches may have any number of rows
  std::string_view kind() const;                   // "state", "window state" or "key cache"

  // Null if the memory is of another kind.
  State* state() { return std::get_if<State>(&past_); }
  const State* state() const { return std::get_if<State>(&past_); }
  WindowState* window_state() { return std::get_if<WindowState>(&past_); }
  const WindowState* window_state() const { return std::get_if<WindowState>(&past_); }
  KeyCache* key_cache() { return std::get_if<KeyCache>(&past_); }
  const KeyCache* key_cache() const { return std::get_if<KeyCache>(&past_); }

  // Entry i of the result is entry indices[i] of this memory: for beam search, forks (repeat an index) and shrinking batches.
  Memory select(std::span<const int64_t> indices) const;

  // The formats of State and WindowState, and a third one for key caches (docs/state-format.md). Little-endian on every machine.
  std::vector<std::byte> to_bytes() const;
  static Memory from_bytes(std::span<const std::byte> bytes);  // throws FormatError
  void save(const std::filesystem::path& path) const;          // atomic: a temporary file is written, synced and renamed
  static Memory load(const std::filesystem::path& path);       // throws IoError or FormatError

  bool operator==(const Memory&) const = default;

 private:
  std::variant<State, WindowState, KeyCache> past_;
};

}  // namespace raffia

#endif  // RAFFIA_MEMORY_H_
