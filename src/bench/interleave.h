// Timing on a machine with other load: contenders take turns, so that a slow period affects all of them, and the fastest
// repetition is used, because noise only adds time.
#ifndef RAFFIA_BENCH_INTERLEAVE_H_
#define RAFFIA_BENCH_INTERLEAVE_H_

#include <functional>
#include <limits>
#include <span>

#include "bench/observer.h"

namespace raffia::internal::bench {

struct Contender {
  std::function<void()> run;
  std::function<void()> begin_turn = {};                     // optional: called before every turn, not timed
  double work = 0;                                           // progress units of one turn
  double seconds = std::numeric_limits<double>::infinity();  // of one run, the fastest so far
};

// Runs each contender once to warm up, then `repeats` times in turn. Short ones run often enough per turn to last 2 ms; of those
// that take seconds, the first run counts as a turn.
void interleave(std::span<Contender> contenders, int repeats, Observer& observer);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_INTERLEAVE_H_
