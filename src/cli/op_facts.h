// What is known of an op before it runs: the fields of its record, its state size, and its FLOP.
//
// FLOP are counted by formula, so that peak_fraction is comparable between ops, independent of what they execute. A token and
// query head sees this many keys (samples and summaries count as keys), each of which costs 2 (d + dv) forward and 6 d + 4 dv
// backward:
//   softmax        L; causal L / 2
//   lara           2 S: its key meets the samples, then its query does
//   causal lara    W / 2 + 2 S', S' the samples that there are (fewer at first)
//   ra             L per draw, causal L / 2; drawing a key costs 2 d more for each of them in either pass
//   eva            W' + C: the window as rounded up to whole chunks, and all chunks
//   causal eva     W / 2 + C' + R', C' the summaries that there are, R' features once summaries have been folded
//   hybrid         1.5 W, and what rfa_gate counts
// rfa and rfa_gate: 4 F (dv + 1), plus 4 d D for projections where the map is inside; backward 10 F (dv + 1), projections left
// out. Grouped key/value heads fold less often than query heads read.
// Not counted: means and proposals, S x S weights, summaries and their folding, everything linear in d only.
#ifndef RAFFIA_CLI_OP_FACTS_H_
#define RAFFIA_CLI_OP_FACTS_H_

#include <cstdint>
#include <optional>

#include "cli/bench.h"
#include "cli/records.h"

namespace raffia::cli {

// FLOP of a pass over whole sequences of `length` tokens, and of one token for each sequence after `depth` others.
double attention_flops(const BenchShape& shape, const OpForm& form, Pass pass, int64_t length);
double step_flops(const BenchShape& shape, const OpForm& form, int64_t depth);

// Bytes of state needed to continue after `length` tokens; nullopt for bidirectional lara and eva, which cannot.
std::optional<int64_t> state_bytes(const BenchShape& shape, const OpForm& form, int64_t length);

// The fields of a record that follow from the flags.
Record describe(const BenchShape& shape, const OpForm& form, int64_t length, int64_t threads);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_OP_FACTS_H_
