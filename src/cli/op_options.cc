#include "cli/op_options.h"

#include <fmt/format.h>

#include "cli/shared/command.h"

namespace raffia::cli {

HybridOptions hybrid_options(const BenchShape& shape) { return {.window = shape.window}; }

LaraOptions lara_options(const BenchShape& shape) {
  LaraOptions options{.seed = shape.seed};
  options.samples = shape.samples.value_or(options.samples);
  return options;
}

CausalLaraOptions causal_lara_options(const BenchShape& shape) {
  CausalLaraOptions options{.window = shape.window, .chunk = shape.chunk, .seed = shape.seed};
  options.samples = shape.samples.value_or(options.samples);
  return options;
}

RaOptions ra_options(const BenchShape& shape, bool causal) {
  RaOptions options{.causal = causal, .seed = shape.seed};
  options.draws = shape.samples.value_or(options.draws);
  return options;
}

EvaOptions eva_options(const BenchShape& shape) {
  EvaOptions options{.window = shape.window};
  options.samples = shape.samples.value_or(options.samples);
  return options;
}

CausalEvaOptions causal_eva_options(const BenchShape& shape) {
  CausalEvaOptions options{.window = shape.window, .chunk = shape.chunk, .features = shape.random_features, .seed = shape.seed};
  options.summaries = shape.samples.value_or(options.summaries);
  return options;
}

std::optional<int64_t> samples_of(const BenchShape& shape, const OpForm& form) {
  switch (form.op) {
    case Op::lara:
      return form.causal ? causal_lara_options(shape).samples : lara_options(shape).samples;
    case Op::ra:
      return ra_options(shape, form.causal).draws;
    case Op::eva:
      return form.causal ? causal_eva_options(shape).summaries : eva_options(shape).samples;
    default:
      return std::nullopt;
  }
}

std::optional<int64_t> window_of(const BenchShape& shape, const OpForm& form) {
  const bool has_windows = form.op == Op::hybrid || form.op == Op::eva || (form.op == Op::lara && form.causal);
  return has_windows ? std::optional(shape.window) : std::nullopt;
}

std::optional<WindowStateShape> window_state_shape(const BenchShape& s, const OpForm& form) {
  if (form.op == Op::hybrid) {
    return hybrid_state_shape(s.batch, s.kv_heads, s.head_dim, s.value_dim, make_map(s, form.input),
                              form.input == OpInput::features, hybrid_options(s));
  }
  if (form.op == Op::lara && form.causal) {
    return causal_lara_state_shape(s.batch, s.heads, s.kv_heads, s.head_dim, s.value_dim, causal_lara_options(s));
  }
  if (form.op == Op::eva && form.causal) {
    return causal_eva_state_shape(s.batch, s.heads, s.kv_heads, s.head_dim, s.value_dim, causal_eva_options(s));
  }
  return std::nullopt;
}

void check_form(const BenchShape& shape, const OpForm& form) {
  if (!form.causal || (form.op != Op::lara && form.op != Op::eva)) return;
  const std::string_view op = name_in(kOps, form.op);
  if (shape.window % shape.chunk != 0) {
    throw UsageError(fmt::format("--chunk: {} does not divide --window {}, as causal {} needs", shape.chunk, shape.window, op));
  }
  const int64_t samples = *samples_of(shape, form), per_window = shape.window / shape.chunk;
  if (form.op == Op::lara && samples < per_window) {
    throw UsageError(
        fmt::format("--samples: {} is too few for causal lara, expected at least {} (--window / --chunk)", samples, per_window));
  }
  if (form.op == Op::eva && samples % per_window != 0) {
    throw UsageError(fmt::format("--samples: {} does not suit causal eva, expected a multiple of {} (--window / --chunk)",
                                 samples, per_window));
  }
}

}  // namespace raffia::cli
