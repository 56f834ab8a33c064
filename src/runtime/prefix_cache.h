// Snapshots of sessions, found by their tokens.
#ifndef RAFFIA_RUNTIME_PREFIX_CACHE_H_
#define RAFFIA_RUNTIME_PREFIX_CACHE_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "raffia/session.h"
#include "runtime/memory.h"

namespace raffia::internal {

// The state after a whole number of chunks, read from the start of a text.
struct PrefixSnapshot {
  int64_t position = 0;
  runtime::Memories memory;
  std::vector<float> logits;
};

}  // namespace raffia::internal

namespace raffia {

struct PrefixCache::Impl {
  Impl(std::shared_ptr<const Model> of, const Options& with) : model(std::move(of)), options(with) {}

  // The snapshot of the longest known prefix of `ids`; null if there is none.
  std::shared_ptr<const internal::PrefixSnapshot> find(std::span<const int32_t> ids);
  bool knows(std::span<const int32_t> prefix);  // a whole number of chunks
  // Whether a snapshot of this size fits the cache at all. Checked before anything is copied.
  bool has_room_for(std::span<const int32_t> prefix, const internal::runtime::Memories& memory,
                    std::span<const float> logits) const;
  void insert(std::span<const int32_t> prefix, internal::PrefixSnapshot snapshot);  // only if has_room_for() it
  void clear();
  Counts counts();

  const std::shared_ptr<const Model> model;
  const Options options;

 private:
  // A node of the trie: one chunk of tokens.
  struct Node {
    Node* parent = nullptr;
    std::map<std::vector<int32_t>, std::unique_ptr<Node>> children;
    std::shared_ptr<const internal::PrefixSnapshot> snapshot;
    size_t bytes = 0;                 // of the snapshot
    std::list<Node*>::iterator turn;  // position in used_, if there is a snapshot
  };
  static constexpr size_t kNodeBytes = sizeof(Node) + static_cast<size_t>(Session::kChunk) * sizeof(int32_t);

  void forget_oldest();

  std::mutex mutex_;
  Node root_;
  std::list<Node*> used_;  // nodes with a snapshot, most recently used first
  Counts counts_;
};

}  // namespace raffia

#endif  // RAFFIA_RUNTIME_PREFIX_CACHE_H_
