// RAFFIA_VERBOSE=1 prints a line to stderr at the end of every op:
//   raffia: gated_attention q[1, 8192, 8, 64] isa avx2 chunk 16 35.2 ms
#ifndef RAFFIA_CORE_TRACE_H_
#define RAFFIA_CORE_TRACE_H_

#include <array>
#include <chrono>
#include <cstdint>

#include "raffia/views.h"

namespace raffia::internal {

// Created after an op has checked its arguments. Costs a load and a branch when off.
class Trace {
 public:
  template <size_t Rank, bool kMutable>
  Trace(const char* op, const char* argument, const detail::BasicView<Rank, kMutable>& view, int64_t chunk = 0) {
    static_assert(Rank <= kMaxRank);
    if (!enabled()) [[likely]] {
      return;
    }
    for (size_t axis = 0; axis < Rank; ++axis) shape_[axis] = view.extent(axis);
    rank_ = Rank;
    argument_ = argument;
    chunk_ = chunk;
    op_ = op;
    begin_ = std::chrono::steady_clock::now();
  }
  ~Trace() {
    if (op_ != nullptr) [[unlikely]] {
      print();
    }
  }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

 private:
  static constexpr size_t kMaxRank = 4;

  static bool enabled();
  void print() const noexcept;

  const char* op_ = nullptr;  // null when off
  const char* argument_ = nullptr;
  size_t rank_ = 0;
  std::array<int64_t, kMaxRank> shape_{};
  int64_t chunk_ = 0;  // 0: the op has no chunks
  std::chrono::steady_clock::time_point begin_{};
};

}  // namespace raffia::internal

#endif  // RAFFIA_CORE_TRACE_H_
