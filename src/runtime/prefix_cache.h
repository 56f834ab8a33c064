// Snapshots of sessions, found by the tokens that led to them.
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

namespace raffia {

// After a whole number of chunks that were all read from the begin of a text.
struct PrefixSnapshot {
  int64_t position = 0;
  runtime::Memory memory;
  std::vector<float> logits;
};

struct PrefixCache::Impl {
  Impl(std::shared_ptr<const Model> of, const Options& with) : model(std::move(of)), options(with) {}

  // The longest known prefix of `ids`; null: none.
  std::shared_ptr<const PrefixSnapshot> find(std::span<const int32_t> ids);
  bool knows(std::span<const int32_t> prefix);  // a whole number of chunks
  // Whether a snapshot of these could be kept at all: it is asked for before they are copied.
  bool has_room_for(std::span<const int32_t> prefix, const runtime::Memory& memory, std::span<const float> logits) const;
  void insert(std::span<const int32_t> prefix, PrefixSnapshot snapshot);  // for which there is room
  void clear();
  Counts counts();

  const std::shared_ptr<const Model> model;
  const Options options;

 private:
  // A chunk of tokens below the chunks before it.
  struct Node {
    Node* parent = nullptr;
    std::map<std::vector<int32_t>, std::unique_ptr<Node>> children;
    std::shared_ptr<const PrefixSnapshot> snapshot;
    size_t bytes = 0;                 // of the snapshot
    std::list<Node*>::iterator turn;  // in used_, where there is a snapshot
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
