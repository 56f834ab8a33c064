// The flags of a benchmark as options of the ops. Without --samples, each op has its own default: see lara.h and eva.h.
#ifndef RAFFIA_CLI_OP_OPTIONS_H_
#define RAFFIA_CLI_OP_OPTIONS_H_

#include <cstdint>
#include <optional>

#include "cli/bench.h"
#include "raffia/eva.h"
#include "raffia/hybrid.h"
#include "raffia/lara.h"
#include "raffia/window_state.h"

namespace raffia::cli {

inline constexpr float kHybridLogScale = -2;  // where training starts

HybridOptions hybrid_options(const BenchShape& shape);
LaraOptions lara_options(const BenchShape& shape);
CausalLaraOptions causal_lara_options(const BenchShape& shape);
RaOptions ra_options(const BenchShape& shape, bool causal);
EvaOptions eva_options(const BenchShape& shape);
CausalEvaOptions causal_eva_options(const BenchShape& shape);

// Where an op runs.
template <typename Options>
Options placed(Options options, int threads, Executor& executor) {
  options.threads = threads;
  options.executor = &executor;
  return options;
}

// Samples of lara, draws of ra, chunks or kept summaries of eva; none for the others.
std::optional<int64_t> samples_of(const BenchShape& shape, const OpForm& form);

// Tokens of a window where the op has windows.
std::optional<int64_t> window_of(const BenchShape& shape, const OpForm& form);

// Of the causal forms of hybrid, lara and eva; none for the others.
std::optional<WindowStateShape> window_state_shape(const BenchShape& shape, const OpForm& form);

// Throws UsageError if the flags are not valid for this form.
void check_form(const BenchShape& shape, const OpForm& form);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_OP_OPTIONS_H_
