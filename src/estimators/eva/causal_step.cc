// Causal EVA, one token at a time.
#include "core/check.h"
#include "core/trace.h"
#include "estimators/eva/causal.h"
#include "estimators/shared/stored_samples.h"

namespace raffia {

using namespace internal;
namespace {

// The folded past of a state reads the summaries of one window, which begin at `slot`.
void fold_window(const WindowedCall& call, const CausalEvaOptions& options, const StepEntry& entry, int64_t slot) {
  const int64_t H = call.heads, G = call.groups, D = call.dim, V = call.value_dim, R = options.features, per = call.chunks();
  const auto part = [&](WindowPart which) { return entry.state->part(which, entry.b).data(); };
  const Workers workers = call.workers();
  const View4 keys(part(WindowPart::summary_keys) + slot * G * D, {1, per, G, D});
  const View4 values(part(WindowPart::summary_values) + slot * H * V, {1, per, H, V});
  const Array<3> bias({1, per, G});
  half_norms(keys, 1.0F, {{0, 0, per, {}}}, bias.view(), workers);
  for (int64_t i = 0; i < per * G; ++i) bias.data()[i] += part(WindowPart::summary_weights)[slot + i / G];
  const StoredSamples shape{
      .count = static_cast<size_t>(R), .dim = static_cast<size_t>(D), .value_dim = static_cast<size_t>(V), .w = {}};
  const size_t weight_floats = round_up(shape.count, 16);
  workers.run(G, Scratch(workers.count(), weight_floats + add_keys_scratch_floats(shape)), [&](int64_t g, float* memory) {
    float* weights = part(WindowPart::folded_weights) + g;
    for (int64_t h = g * call.group; h < (g + 1) * call.group; ++h) {  // these share weights
      for (int64_t r = 0; r < R; ++r) memory[r] = weights[r * G];
      const KeySource summaries{
          rows_of<Rows>(keys, 0, 0, g), rows_of<Rows>(values, 0, 0, h), {.bias = column_of<Rows>(bias.view(), 0, 0, g)}};
      StoredSamples samples = shape;
      samples.w = {part(WindowPart::projections) + g * D, DType::f32, G * D, 1};
      samples.log_weights = {memory, DType::f32, 1, 1};
      samples.values = {part(WindowPart::folded_values) + h * V, DType::f32, H * V, 1};
      add_keys(summaries, static_cast<size_t>(per), 1.0F, std::log(options.decay), nullptr, samples, memory + weight_floats);
    }
    for (int64_t r = 0; r < R; ++r) weights[r * G] = memory[r];
  });
}

// The end of a window, where the state has it: its summaries take the place of the oldest ones, which are folded.
void end_window(const WindowedCall& call, const CausalEvaOptions& options, const StepEntry& entry) {
  const int64_t H = call.heads, G = call.groups, D = call.dim, V = call.value_dim, per = call.chunks();
  const int64_t seen = (entry.state->tokens(entry.b) / call.window - 1) * per, slot = seen % options.summaries;
  const auto part = [&](WindowPart which) { return entry.state->part(which, entry.b).data(); };
  if (seen >= options.summaries) fold_window(call, options, entry, slot);
  const WindowTokens tokens(call, entry);
  const Array<4> means({1, per, H, D});
  const Array<3> norms({1, call.window, G}), log_z({1, per, H});
  half_norms(tokens.k, call.scale, {{0, 0, call.window, tokens.mask()}}, norms.view(), call.workers());
  summarise_chunks(call, tokens.q, tokens.k, tokens.v, View2(tokens.valid.data(), {1, call.window}), norms.view(),
                   {0, 0, 0, tokens.mask(), equal_stretches(tokens.mask(), call.window, call.chunk)},
                   {.means = means.view(),
                    .keys = MutView4(part(WindowPart::summary_keys) + slot * G * D, {1, per, G, D}),
                    .values = MutView4(part(WindowPart::summary_values) + slot * H * V, {1, per, H, V}),
                    .log_z = log_z.view(),
                    .log_counts = part(WindowPart::summary_weights) + slot});
}

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
  windowed_step(call, entries, with_time(out), call.group, others,
                [&](const StepEntry& entry) { end_window(call, options, entry); });
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
