#include "runtime/memory.h"

#include <algorithm>

namespace raffia::runtime {
namespace {

template <class Floats>
void append_rows(Floats& all, int64_t used, View3 rows) {
  const auto width = static_cast<size_t>(rows.extent(1) * rows.extent(2)), begin = static_cast<size_t>(used) * width;
  all.resize(begin + static_cast<size_t>(rows.extent(0)) * width);
  const auto* from = static_cast<const float*>(rows.data());
  for (int64_t t = 0; t < rows.extent(0); ++t) {
    std::copy_n(from + t * rows.stride(0), width, all.data() + begin + static_cast<size_t>(t) * width);
  }
}

}  // namespace

void KeyCache::assign(const KeyRows& rows) {
  rows_ = rows.rows;
  keys_.assign(rows.keys.begin(), rows.keys.end());
  values_.assign(rows.values.begin(), rows.values.end());
}

KeyRows KeyCache::copy() const {
  return {.rows = rows_,
          .heads = heads_,
          .dim = dim_,
          .keys = {keys_.begin(), keys_.end()},
          .values = {values_.begin(), values_.end()}};
}

void KeyCache::append(View3 keys, View3 values) {
  append_rows(keys_, rows_, keys);
  append_rows(values_, rows_, values);
  rows_ += keys.extent(0);
}

void KeyCache::append_copies(int64_t count) {
  const int64_t source = rows_;
  for (auto* all : {&keys_, &values_}) all->reserve(static_cast<size_t>((rows_ + count) * width()));
  while (count > 0 && source > 0) {
    const int64_t now = std::min(count, source);
    append(View3(keys_.data(), {now, heads_, dim_}), View3(values_.data(), {now, heads_, dim_}));
    count -= now;
  }
}

void KeyCache::keep_last(int64_t rows) {
  if (rows >= rows_) return;
  const auto from = static_cast<ptrdiff_t>((rows_ - rows) * width());
  for (auto* all : {&keys_, &values_}) all->erase(all->begin(), all->begin() + from);
  rows_ = rows;
}

void KeyCache::truncate(int64_t rows) {
  rows_ = std::min(rows, rows_);
  for (auto* all : {&keys_, &values_}) all->resize(static_cast<size_t>(rows_ * width()));
}

size_t AttentionMemory::size_bytes() const {
  return std::visit([](const auto& past_kind) { return past_kind.size_bytes(); }, past) + tail.size() * sizeof(float);
}

size_t size_bytes(const Memory& memory) {
  size_t total = 0;
  for (const AttentionMemory& one : memory) total += one.size_bytes();
  return total;
}

}  // namespace raffia::runtime
