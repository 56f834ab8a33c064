// Causal EVA, one token at a time.
#include "core/check.h"
#include "core/trace.h"
#include "estimators/eva/causal.h"

namespace raffia {

using namespace internal;
namespace {

void step(const char* function, View3 q, View3 k, View3 v, const std::vector<StepEntry>& entries, MutView3 out,
          const CausalEvaOptions& options) {
  require_options(function, options);
  require(options.summaries > 0, "{}: summaries is 0, expected at least {} (such a state would grow without bound)", function,
          options.window / options.chunk);
  const WindowedCall call(function, with_time(q), with_time(k), with_time(v), options);
  call.check_step(entries, out, shape_of(call, options));
  const Trace trace(function, "q", q);
  const int64_t G = call.groups, H = call.heads, D = call.dim, V = call.value_dim, per = call.chunks();
  DrawnRows features = features_of(call, options);
  for (const auto& [state, entry] : entries) {
    if (state->tokens(entry) == 0) features.give_to(*state, entry);
  }
  const auto others = [&](const StepEntry& entry, int64_t member) {
    const auto rows = [&](WindowPart part, int64_t stride, int64_t offset = 0) {
      return Rows{entry.state->part(part, entry.b).data() + offset, DType::f32, stride, 1};
    };
    const int64_t before = entry.state->tokens(entry.b) / call.window;
    std::vector<StepKeys> keys;
    keys.push_back({.count = static_cast<size_t>(std::min(before, options.summaries / per) * per),
                    .groups = static_cast<size_t>(G),
                    .scale = call.root,
                    .k = rows(WindowPart::summary_keys, G * D),
                    .v = rows(WindowPart::summary_values, H * V, member * V),
                    .bias = rows(WindowPart::summary_weights, 1),
                    .k_head = D,
                    .v_head = call.group * V});
    if (before > options.summaries / per) {
      keys.push_back({.count = static_cast<size_t>(options.features),
                      .groups = static_cast<size_t>(G),
                      .scale = call.root,
                      .k = rows(WindowPart::projections, G * D),
                      .v = rows(WindowPart::folded_values, H * V, member * V),
                      .bias = rows(WindowPart::folded_weights, G),
                      .k_head = D,
                      .v_head = call.group * V,
                      .bias_head = 1,
                      .sampled = true,
                      .offset = -std::log(static_cast<float>(options.features))});
    }
    return keys;
  };
  windowed_step(call, entries, with_time(out), call.group, others, [&](const StepEntry& entry) {
    const SequenceWindows windows(call, *entry.state, entry.b);
    const EvaSequence eva(call, options, features.of_entry(entry.state, entry.b, false), windows, entry.state, entry.b, false);
    eva.save(*entry.state, entry.b);
  });
}

}  // namespace

void causal_eva_step(View3 q, View3 k, View3 v, WindowState& state, MutView3 out, const CausalEvaOptions& options) {
  step("causal_eva_step", q, k, v, step_entries("causal_eva_step", state, q.extent(0)), out, options);
}

void causal_eva_step(View3 q, View3 k, View3 v, std::span<WindowState* const> sessions, MutView3 out,
                     const CausalEvaOptions& options) {
  step("causal_eva_step", q, k, v, step_entries("causal_eva_step", sessions, q.extent(0)), out, options);
}

}  // namespace raffia
