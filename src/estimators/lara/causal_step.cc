// Causal LARA, one token at a time.
#include "core/check.h"
#include "core/trace.h"
#include "estimators/lara/causal.h"

namespace raffia {

using namespace internal;
namespace {

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
