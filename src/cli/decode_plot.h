// Speed and memory of decoding against depth, as a picture.
#ifndef RAFFIA_CLI_DECODE_PLOT_H_
#define RAFFIA_CLI_DECODE_PLOT_H_

#include <span>
#include <string>

#include "cli/model_bench.h"

namespace raffia::cli {

// Writes PREFIX.svg and PREFIX.png: tokens per second at the left, bytes of a session at the right, a curve per contender. Axes
// are logarithmic, so depth 0 is left out.
void plot_decode(std::span<const ModelRecord> records, const std::string& prefix);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_DECODE_PLOT_H_
