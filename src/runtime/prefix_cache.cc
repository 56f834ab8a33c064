#include "runtime/prefix_cache.h"

#include "core/check.h"

namespace raffia {

using namespace internal;
namespace {

constexpr auto kChunk = static_cast<size_t>(Session::kChunk);

std::vector<int32_t> chunk_of(std::span<const int32_t> ids, size_t number) {
  const std::span<const int32_t> chunk = ids.subspan(number * kChunk, kChunk);
  return {chunk.begin(), chunk.end()};
}

size_t bytes_of(const runtime::Memories& memory, std::span<const float> logits) {
  return runtime::size_bytes(memory) + logits.size_bytes();
}

}  // namespace

PrefixCache::PrefixCache(std::shared_ptr<const Model> model, const Options& options)
    : impl_(std::make_unique<Impl>(std::move(model), options)) {
  require(impl_->model != nullptr, "PrefixCache: model is null");
  require(options.every >= Session::kChunk && options.every % Session::kChunk == 0,
          "PrefixCache: every is {}, expected a multiple of {} (tokens of a chunk)", options.every, Session::kChunk);
}
// One snapshot at a time: a long text is a long chain of nodes, and a recursive destructor could overflow the stack.
PrefixCache::~PrefixCache() { impl_->clear(); }
PrefixCache::Counts PrefixCache::counts() const { return impl_->counts(); }
void PrefixCache::clear() { impl_->clear(); }

std::shared_ptr<const PrefixSnapshot> PrefixCache::Impl::find(std::span<const int32_t> ids) {
  const std::lock_guard lock(mutex_);
  ++counts_.lookups;
  counts_.tokens += static_cast<int64_t>(ids.size());
  Node *node = &root_, *best = nullptr;
  for (size_t number = 0; (number + 1) * kChunk <= ids.size(); ++number) {
    const auto found = node->children.find(chunk_of(ids, number));
    if (found == node->children.end()) break;
    node = found->second.get();
    if (node->snapshot) best = node;
  }
  if (best == nullptr) return nullptr;
  used_.splice(used_.begin(), used_, best->turn);
  ++counts_.hits;
  counts_.tokens_known += best->snapshot->position;
  return best->snapshot;
}

bool PrefixCache::Impl::knows(std::span<const int32_t> prefix) {
  const std::lock_guard lock(mutex_);
  const Node* node = &root_;
  for (size_t number = 0; number < prefix.size() / kChunk; ++number) {
    const auto found = node->children.find(chunk_of(prefix, number));
    if (found == node->children.end()) return false;
    node = found->second.get();
  }
  return node->snapshot != nullptr;
}

bool PrefixCache::Impl::has_room_for(std::span<const int32_t> prefix, const runtime::Memories& memory,
                                     std::span<const float> logits) const {
  return bytes_of(memory, logits) + prefix.size() / kChunk * kNodeBytes <= options.max_bytes;
}

void PrefixCache::Impl::insert(std::span<const int32_t> prefix, PrefixSnapshot snapshot) {
  const size_t bytes = bytes_of(snapshot.memory, snapshot.logits);
  const size_t chunks = prefix.size() / kChunk;
  const std::lock_guard lock(mutex_);
  Node* node = &root_;
  for (size_t number = 0; number < chunks; ++number) {
    std::unique_ptr<Node>& child = node->children[chunk_of(prefix, number)];
    if (!child) {
      child = std::make_unique<Node>();
      child->parent = node;
      counts_.bytes += kNodeBytes;
    }
    node = child.get();
  }
  if (node->snapshot) return;
  node->snapshot = std::make_shared<const PrefixSnapshot>(std::move(snapshot));
  node->bytes = bytes;
  node->turn = used_.insert(used_.begin(), node);
  counts_.bytes += bytes;
  ++counts_.snapshots;
  while (counts_.bytes > options.max_bytes) forget_oldest();
}

void PrefixCache::Impl::forget_oldest() {
  Node* node = used_.back();
  used_.pop_back();
  node->snapshot.reset();
  counts_.bytes -= node->bytes;
  --counts_.snapshots;
  // Remove nodes that no longer lead to a snapshot.
  while (node->parent != nullptr && node->children.empty() && !node->snapshot) {
    Node* parent = node->parent;
    std::erase_if(parent->children, [node](const auto& entry) { return entry.second.get() == node; });
    counts_.bytes -= kNodeBytes;
    node = parent;
  }
}

void PrefixCache::Impl::clear() {
  const std::lock_guard lock(mutex_);
  while (!used_.empty()) forget_oldest();
}

PrefixCache::Counts PrefixCache::Impl::counts() {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace raffia
