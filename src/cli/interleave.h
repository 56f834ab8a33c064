// Timing on a machine that is never quiet: contenders take turns, so that a slow spell meets all of them, and the best of the
// repeats counts, because noise only ever adds time.
#ifndef RAFFIA_CLI_INTERLEAVE_H_
#define RAFFIA_CLI_INTERLEAVE_H_

#include <functional>
#include <limits>
#include <span>

#include "cli/progress.h"

namespace raffia::cli {

struct Contender {
  std::function<void()> run;
  double work = 0;                                           // what one turn adds to the progress
  double seconds = std::numeric_limits<double>::infinity();  // of one run, the best so far
};

// Runs each contender once to warm up, then `repeats` times in turn. Short ones run often enough per turn to last 2 ms; of those
// that take seconds, the first run counts as a turn.
void interleave(std::span<Contender> contenders, int repeats, Progress& progress);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_INTERLEAVE_H_
