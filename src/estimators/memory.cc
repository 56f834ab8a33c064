#include "raffia/memory.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/check.h"

namespace raffia {

using namespace internal;
namespace {

// Appends [T, G, width] to `all`, which has `used` rows.
template <class Floats>
void append_rows(Floats& all, int64_t used, View3 rows) {
  const int64_t heads = rows.extent(1), dim = rows.extent(2);
  const auto width = static_cast<size_t>(heads * dim), begin = static_cast<size_t>(used) * width;
  all.resize(begin + static_cast<size_t>(rows.extent(0)) * width);
  float* to = all.data() + begin;
  const bool is_plain = rows.dtype() == DType::f32 && rows.stride(2) == 1 && rows.stride(1) == dim;
  for (int64_t t = 0; t < rows.extent(0); ++t) {
    if (is_plain) {
      to = std::copy_n(static_cast<const float*>(rows.data()) + t * rows.stride(0), width, to);
      continue;
    }
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t c = 0; c < dim; ++c) *to++ = static_cast<float>(rows(t, h, c));
    }
  }
}

}  // namespace

KeyCache::KeyCache(const KeyCacheShape& shape) : shape_(shape) {
  require(shape.batch >= 0 && shape.heads >= 1 && shape.dim >= 1 && shape.value_dim >= 1,
          "KeyCache: batch {}, heads {}, dim {}, value_dim {}, expected a batch of 0 or more and positive sizes", shape.batch,
          shape.heads, shape.dim, shape.value_dim);
  entries_.resize(static_cast<size_t>(shape.batch));
}

size_t KeyCache::size_bytes() const {
  size_t floats = 0;
  for (const Entry& entry : entries_) floats += entry.keys.size() + entry.values.size();
  return floats * sizeof(float);
}

View4 KeyCache::keys(int64_t b) const {
  const Entry& entry = entries_[static_cast<size_t>(b)];
  return {entry.keys.data(), {1, entry.rows, shape_.heads, shape_.dim}};
}

View4 KeyCache::values(int64_t b) const {
  const Entry& entry = entries_[static_cast<size_t>(b)];
  return {entry.values.data(), {1, entry.rows, shape_.heads, shape_.value_dim}};
}

void KeyCache::append(int64_t b, View3 keys, View3 values) {
  Entry& entry = entries_[static_cast<size_t>(b)];
  append_rows(entry.keys, entry.rows, keys);
  append_rows(entry.values, entry.rows, values);
  entry.rows += keys.extent(0);
  entry.tokens += keys.extent(0);
}

void KeyCache::append_copies(int64_t b, int64_t count) {
  Entry& entry = entries_[static_cast<size_t>(b)];
  const int64_t source = entry.rows;
  entry.keys.reserve(static_cast<size_t>((entry.rows + count) * shape_.heads * shape_.dim));
  entry.values.reserve(static_cast<size_t>((entry.rows + count) * shape_.heads * shape_.value_dim));
  while (count > 0 && source > 0) {
    const int64_t now = std::min(count, source);
    append(b, View3(entry.keys.data(), {now, shape_.heads, shape_.dim}),
           View3(entry.values.data(), {now, shape_.heads, shape_.value_dim}));
    count -= now;
  }
}

void KeyCache::keep_last(int64_t b, int64_t rows) {
  Entry& entry = entries_[static_cast<size_t>(b)];
  if (rows >= entry.rows) return;
  const int64_t dropped = entry.rows - rows;
  entry.keys.erase(entry.keys.begin(), entry.keys.begin() + dropped * shape_.heads * shape_.dim);
  entry.values.erase(entry.values.begin(), entry.values.begin() + dropped * shape_.heads * shape_.value_dim);
  entry.rows = rows;
}

void KeyCache::count_as(int64_t b, int64_t tokens) {
  require(tokens >= rows(b), "KeyCache::count_as: {} tokens, expected at least the {} rows", tokens, rows(b));
  entries_[static_cast<size_t>(b)].tokens = tokens;
}

void KeyCache::truncate(int64_t b, int64_t tokens) {
  Entry& entry = entries_[static_cast<size_t>(b)];
  require(entry.rows == entry.tokens, "KeyCache::truncate: {} of {} tokens were dropped, expected a cache that keeps all",
          entry.tokens - entry.rows, entry.tokens);
  entry.tokens = entry.rows = std::min(tokens, entry.rows);
  entry.keys.resize(static_cast<size_t>(entry.rows * shape_.heads * shape_.dim));
  entry.values.resize(static_cast<size_t>(entry.rows * shape_.heads * shape_.value_dim));
}

void KeyCache::assign(int64_t b, int64_t tokens, std::span<const float> keys, std::span<const float> values) {
  const auto rows = static_cast<int64_t>(keys.size()) / (shape_.heads * shape_.dim);
  require(std::ssize(keys) == rows * shape_.heads * shape_.dim && std::ssize(values) == rows * shape_.heads * shape_.value_dim &&
              tokens >= rows,
          "KeyCache::assign: {} floats of keys and {} of values after {} tokens, expected whole rows of {} x {} and {} x {}, and "
          "as many tokens as rows or more",
          keys.size(), values.size(), tokens, shape_.heads, shape_.dim, shape_.heads, shape_.value_dim);
  Entry& entry = entries_[static_cast<size_t>(b)];
  entry.tokens = tokens;
  entry.rows = rows;
  entry.keys.assign(keys.begin(), keys.end());
  entry.values.assign(values.begin(), values.end());
}

KeyCache KeyCache::select(std::span<const int64_t> indices) const {
  KeyCache chosen({.batch = std::ssize(indices), .heads = shape_.heads, .dim = shape_.dim, .value_dim = shape_.value_dim});
  for (size_t i = 0; i < indices.size(); ++i) {
    require(indices[i] >= 0 && indices[i] < shape_.batch, "KeyCache::select: index {} at {}, expected 0 to {}", indices[i], i,
            shape_.batch - 1);
    chosen.entries_[i] = entries_[static_cast<size_t>(indices[i])];
  }
  return chosen;
}

int64_t Memory::batch() const {
  return std::visit([](const auto& past) { return past.shape().batch; }, past_);
}

size_t Memory::size_bytes() const {
  return std::visit([](const auto& past) { return past.size_bytes(); }, past_);
}

std::optional<int64_t> Memory::tokens(int64_t b) const {
  if (const WindowState* window = window_state()) return window->tokens(b);
  if (const KeyCache* cache = key_cache()) return cache->tokens(b);
  return {};
}

bool Memory::has_shape_of(const Memory& other) const {
  return std::visit(
      [](const auto& a, const auto& b) {
        if constexpr (std::is_same_v<decltype(a), decltype(b)>) {
          return a.shape() == b.shape();
        } else {
          return false;
        }
      },
      past_, other.past_);
}

std::string_view Memory::kind() const {
  constexpr std::string_view kKinds[] = {"state", "window state", "key cache"};
  return kKinds[past_.index()];
}

Memory Memory::select(std::span<const int64_t> indices) const {
  return std::visit([indices](const auto& past) { return Memory(past.select(indices)); }, past_);
}

}  // namespace raffia
