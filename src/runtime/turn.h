// The tokens that go through a model together, and the working memory for them.
#ifndef RAFFIA_RUNTIME_TURN_H_
#define RAFFIA_RUNTIME_TURN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "raffia/model.h"
#include "runtime/memory.h"

namespace raffia::internal::runtime {

// A buffer that grows and never shrinks; its contents are undefined.
class Floats {
 public:
  float* of(int64_t count) {
    if (static_cast<size_t>(count) > data_.size()) data_ = Vector(static_cast<size_t>(count));
    return data_.data();
  }

 private:
  using Vector = std::vector<float, detail::CacheLineAllocator<float>>;
  Vector data_;
};

// Working memory of one caller. [rows, ..]; C = (H + 2 G) d.
struct Workspace {
  Floats x;            // [rows, E], the residual stream
  Floats normed;       // [rows, E]
  Floats qkv, mixed;   // [rows, C]: projections, and the same after the short convolution or before positions
  Floats gates;        // [rows, G]
  Floats read;         // [rows, E], outputs of the heads
  Floats branch;       // [rows, E], what is added to the residual stream
  Floats inner, gate;  // [rows of a block, F]
  Floats turns;        // [rows, d], of rotary positions
};

// The source of a translation, as one cross attention reads it.
struct SourceMemory {
  std::optional<State> state;       // rfa: keys and values, folded
  std::vector<float> keys, values;  // softmax, lara: [S, G, d]
  int64_t rows = 0;                 // S
};
using Source = std::vector<SourceMemory>;

// Rows that go through a stack together, and how they belong together.
struct Turn {
  enum class Form : uint8_t {
    whole,     // a text for bidirectional attention, without memory
    sequence,  // consecutive tokens of one session
    step,      // one token for each of several sessions
  };
  Form form = Form::whole;
  int64_t rows = 0;
  std::span<Memories* const> sessions = {};     // sequence: one; step: one per row
  std::span<const int64_t> positions = {};      // [rows]
  std::span<const Source* const> sources = {};  // of cross attention, one per session
  RunOptions run = {};

  Executor& executor() const { return run.executor != nullptr ? *run.executor : default_executor(); }
  int threads() const { return run.threads > 0 ? run.threads : executor().concurrency(); }
};

// Calls body(begin, end) for blocks of rows, on the threads of the turn.
template <class Body>
void for_rows(const Turn& turn, int64_t rows, const Body& body) {
  constexpr int64_t kBlock = 16;  // enough work to be worth a thread at any width that needs one
  if (rows <= kBlock || turn.threads() == 1) return body(int64_t{0}, rows);
  turn.executor().run((rows + kBlock - 1) / kBlock, turn.threads(),
                      [&](int64_t index, int) { body(index * kBlock, std::min(rows, (index + 1) * kBlock)); });
}

}  // namespace raffia::internal::runtime

#endif  // RAFFIA_RUNTIME_TURN_H_
