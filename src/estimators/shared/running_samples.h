// Samples over the past of one query head, read and extended window by window in the memory of one worker: nothing is kept for
// each window, and what is read most stays in cache.
#ifndef RAFFIA_ESTIMATORS_SHARED_RUNNING_SAMPLES_H_
#define RAFFIA_ESTIMATORS_SHARED_RUNNING_SAMPLES_H_

#include <cstddef>
#include <functional>

#include "estimators/shared/windows.h"
#include "kernels/samples.h"

namespace raffia::internal {

class RunningSamples {
 public:
  struct Shape {
    size_t samples = 0, dim = 0, value_dim = 0;
  };
  // Floats that last as long as the samples, and of scratch, which all heads of a worker share.
  static size_t floats(const Shape& shape);
  static size_t scratch_floats(const Shape& shape);

  // Samples w, rows [samples, dim], which have no weights yet.
  RunningSamples(const Shape& shape, const Rows& w, float* memory, float* scratch);

  const PackedSamples& packed() const { return packed_; }
  float* log_weights() const { return packed_.log_weights; }  // [samples]
  void set_value(size_t s, const float* value) const;
  void copy_value(size_t s, float* value) const;

  // `queries`, whose outputs hold a softmax over other keys, read the first `present` samples too. Its keys and what it sees are
  // set here.
  void read(ForwardTask queries, size_t count, size_t present, float* scratch) const;

  // The first `present` samples read `count` keys of a window: their softmax is merged into what they hold. `mixture` [samples]
  // is subtracted from its logsumexp; null: nothing.
  void add(const KeySource& keys, size_t count, size_t present, float scale, float log_decay, const float* mixture,
           float* scratch) const;

 private:
  PackedSamples packed_;
};

// The exact part of the queries [begin, end) of a stretch, for one query head.
void own_window_turn(const WindowedCall& call, const Stretch& stretch, int64_t head, size_t begin, size_t end, float* scratch);

// Asks for the rows of a head in tokens [begin, end) of a stretch, which are pages apart, before they are needed.
void prefetch_window(const WindowedCall& call, const Stretch& stretch, int64_t head, int64_t begin, int64_t end);

// -|k'|^2 / 2 and -|q'|^2 / 2 + offset of some tokens of a stretch, for one query head.
struct TurnNorms {
  TurnNorms(const WindowedCall& call, int64_t tokens, float* memory) : keys(memory), queries(memory + floats(call, tokens) / 2) {}
  // For turns through stretches of at most `tokens`.
  static size_t floats(const WindowedCall& call, int64_t tokens);

  // Of tokens [begin, end) of the stretch.
  void fill_keys(const WindowedCall& call, const Stretch& s, int64_t g, int64_t begin, int64_t end) const;
  void fill_queries(const WindowedCall& call, const Stretch& s, int64_t h, int64_t begin, int64_t end, float offset) const;

  float* keys;
  float* queries;
};

// body(first head, end of heads, memory): the query heads of a call in as many ranges as there are workers. `memory` has
// floats_per_head for each head of the range, and `floats` more.
void for_head_ranges(const WindowedCall& call, size_t floats_per_head, size_t floats,
                     const std::function<void(int64_t begin, int64_t end, float* memory)>& body);

// Windows that take turns with other heads: about 128 tokens, whose rows stay in cache.
inline int64_t windows_per_turn(const WindowedCall& call) { return std::max<int64_t>(1, 128 / call.window); }

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_SHARED_RUNNING_SAMPLES_H_
