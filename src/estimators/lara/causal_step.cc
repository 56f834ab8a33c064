// Causal LARA, one token at a time.
#include "core/check.h"
#include "core/trace.h"
#include "estimators/lara/causal.h"
#include "estimators/shared/stored_samples.h"

namespace raffia {

using namespace internal;
namespace {

// The end of a window when no more samples are made: those of the state read its keys, where both lie.
void add_window(const WindowedCall& call, const StepEntry& entry) {
  const int64_t W = call.window, H = call.heads, G = call.groups, D = call.dim, V = call.value_dim;
  const int64_t S = entry.state->shape().summaries;
  const auto part = [&](WindowPart which) { return entry.state->part(which, entry.b).data(); };
  const WindowTokens tokens(call, entry);
  const Array<3> norms({1, W, G});
  const Workers workers = call.workers();
  half_norms(tokens.k, call.scale, {{0, 0, W, tokens.mask()}}, norms.view(), workers);
  const StoredSamples shape{
      .count = static_cast<size_t>(S), .dim = static_cast<size_t>(D), .value_dim = static_cast<size_t>(V), .w = {}};
  const size_t mixture_floats = round_up(shape.count, 16);
  workers.run(H, Scratch(workers.count(), mixture_floats + add_keys_scratch_floats(shape)), [&](int64_t h, float* memory) {
    const int64_t g = h / call.group;
    for (int64_t s = 0; s < S; ++s) {
      const float b = part(WindowPart::mixtures)[s * H + h];
      memory[s] = b == kNone ? -kNone : b;  // a sample that is in no mixture takes no part
    }
    KeySource keys{rows_of<Rows>(tokens.k, 0, 0, g), rows_of<Rows>(tokens.v, 0, 0, g), tokens.mask()};
    keys.mask.bias = column_of<Rows>(norms.view(), 0, 0, g);
    StoredSamples samples = shape;
    samples.w = {part(WindowPart::summary_keys) + h * D, DType::f32, H * D, 1};
    samples.log_weights = {part(WindowPart::summary_weights) + h, DType::f32, H, 1};
    samples.values = {part(WindowPart::summary_values) + h * V, DType::f32, H * V, 1};
    add_keys(keys, static_cast<size_t>(W), call.root, 0.0F, memory, samples, memory + mixture_floats);
  });
}

void step(const char* function, View3 q, View3 k, View3 v, const std::vector<StepEntry>& entries, MutView3 out,
          const CausalLaraOptions& options) {
  require_options(function, options);
  require(options.streaming, "{}: streaming is off, expected on (no state can be carried otherwise)", function);
  const WindowedCall call(function, with_time(q), with_time(k), with_time(v), options);
  call.check_step(entries, out, shape_of(call, options));
  const Trace trace(function, "q", q);
  const int64_t H = call.heads, D = call.dim, V = call.value_dim;
  DrawnRows noise = noise_of(call, options, all_samples(options));
  for (const auto& [state, entry] : entries) {
    if (state->tokens(entry) == 0) noise.give_to(*state, entry);
  }
  const auto others = [&](const StepEntry& entry, int64_t) {
    const auto rows = [&](WindowPart part, int64_t stride) {
      return Rows{entry.state->part(part, entry.b).data(), DType::f32, stride, 1};
    };
    const int64_t windows = std::min(entry.state->tokens(entry.b) / call.window, proposing_windows(options));
    return std::vector<StepKeys>{{.count = static_cast<size_t>(windows * samples_of_window(options)),
                                  .groups = static_cast<size_t>(H),
                                  .scale = call.root,
                                  .k = rows(WindowPart::summary_keys, H * D),
                                  .v = rows(WindowPart::summary_values, H * V),
                                  .bias = rows(WindowPart::summary_weights, H),
                                  .k_head = D,
                                  .v_head = V,
                                  .bias_head = 1,
                                  .sampled = true}};
  };
  windowed_step(call, entries, with_time(out), 1, others, [&](const StepEntry& entry) {
    if (entry.state->tokens(entry.b) / call.window > proposing_windows(options)) return add_window(call, entry);
    const SequenceWindows windows(call, *entry.state, entry.b);
    LaraSequence(call, options, noise.of_entry(entry.state, entry.b, false), windows, entry.state, entry.b, false)
        .save(*entry.state, entry.b);
  });
}

}  // namespace

void causal_lara_step(View3 q, View3 k, View3 v, WindowState& state, MutView3 out, const CausalLaraOptions& options) {
  step("causal_lara_step", q, k, v, step_entries("causal_lara_step", state, q.extent(0)), out, options);
}

void causal_lara_step(View3 q, View3 k, View3 v, std::span<WindowState* const> sessions, MutView3 out,
                      const CausalLaraOptions& options) {
  step("causal_lara_step", q, k, v, step_entries("causal_lara_step", sessions, q.extent(0)), out, options);
}

}  // namespace raffia
