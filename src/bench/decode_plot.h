// Speed and memory of decoding against depth, as a picture.
#ifndef RAFFIA_BENCH_DECODE_PLOT_H_
#define RAFFIA_BENCH_DECODE_PLOT_H_

#include <span>
#include <string>

#include "bench/model_bench.h"

namespace raffia::internal::bench {

// Writes PREFIX.svg and PREFIX.png: tokens per second at the left, bytes of a session at the right, a curve per contender. Axes
// are logarithmic, so depth 0 is left out.
void plot_decode(std::span<const ModelRecord> records, const std::string& prefix);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_DECODE_PLOT_H_
