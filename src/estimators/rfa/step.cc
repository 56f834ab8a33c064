// Decoding: one token for each of a batch of sessions.
#include "kernels/step.h"

#include "core/check.h"
#include "core/trace.h"
#include "estimators/rfa/plan.h"
#include "estimators/shared/sequences.h"

namespace raffia {

using namespace internal;
namespace {

// Where the state of a session is: entry b of one state, or a state per session.
struct SessionEntry {
  State* state;
  int64_t b;
};

// Row `b`, head `h` on of a view [B, H, D].
template <class AnyRows, class AnyView>
AnyRows head_rows(const AnyView& view, int64_t b, int64_t h) {
  auto* bytes = static_cast<std::conditional_t<std::is_same_v<AnyRows, MutRows>, std::byte, const std::byte>*>(view.data());
  bytes += view.offset(b, h, int64_t{0}) * static_cast<int64_t>(size_of(view.dtype()));
  return {bytes, view.dtype(), view.stride(1), view.stride(2)};
}

template <class EntryOf>
Report step_all(const char* name, View3 q, View3 k, View3 v, View2 gate_logits, bool gated, const FeatureMap& map, MutView3 out,
                const AttentionOptions& options, const EntryOf& entry_of) {
  const int64_t batch = q.extent(0), heads = q.extent(1), groups = map.heads(), value_dim = v.extent(2);
  for (const auto& [argument, view] : {std::pair{"q", q}, {"k", k}, {"v", v}}) {
    require_dtype(name, argument, view, {DType::f32, DType::bf16});
  }
  require(heads >= 1 && heads % groups == 0, "{}: q has {} heads, expected a multiple of the {} heads of the feature map", name,
          heads, groups);
  require_shape(name, "q", q, {batch, heads, map.dim()}, "dim of the feature map");
  require_shape(name, "k", k, {batch, groups, map.dim()}, "batch of q, heads and dim of the feature map");
  require_shape(name, "v", v, {batch, groups, value_dim}, "batch of q, heads of the feature map");
  if (gated) {
    require_dtype(name, "gate_logits", gate_logits, {DType::f32, DType::bf16});
    require_shape(name, "gate_logits", gate_logits, {batch, groups}, "batch of q, heads of the feature map");
  }
  require_dtype(name, "out", out, {DType::f32, DType::bf16});
  require_shape(name, "out", out, {batch, heads, value_dim}, "batch and heads of q, dim of v");
  const float eps = options.eps ? *options.eps : map.default_eps();
  require(eps >= 0.0f, "{}: eps is {}, expected at least 0", name, eps);
  require(options.run.threads >= 0, "{}: threads is {}, expected at least 0", name, options.run.threads);
  require(options.layout.valid.absent() && options.layout.lengths.empty() && options.layout.cu_seqlens.empty(),
          "{}: a layout is given, but a step has one token for every session", name);
  for (int64_t b = 0; b < batch; ++b) {
    const auto [state, entry] = entry_of(b);
    const StateShape expected{state->shape().batch, groups, map.features(), value_dim};
    require(state->shape() == expected && entry < state->shape().batch,
            "{}: the state of session {} has shape [{}, {}, {}, {}], expected [{}, {}, {}, {}] (sessions, heads and features of "
            "the map, "
            "dim of v)",
            name, b, state->shape().batch, state->shape().heads, state->shape().features, state->shape().value_dim, batch, groups,
            map.features(), value_dim);
  }
  const Trace trace(name, "q", q);

  RunOptions run = options.run;
  if (batch * groups * map.features() * value_dim < kMinParallelFloats) run.threads = 1;
  const Workers workers(run);
  LinearStep shape{.map = MapParams(map, 0)};
  shape.value_dim = static_cast<size_t>(value_dim);
  shape.group = static_cast<size_t>(heads / groups);
  const Scratch scratch(workers.count(), step_scratch_floats(shape));
  std::vector<ClampCount> clamps(static_cast<size_t>(batch * groups));
  // Sessions of one head are processed one after the other: its projection stays in cache.
  workers.run(batch * groups, scratch, [&](int64_t index, float* memory) {
    const int64_t g = index / batch, b = index % batch, group = heads / groups;
    const auto [state, entry] = entry_of(b);
    LinearStep task{.map = MapParams(map, g)};
    task.value_dim = static_cast<size_t>(value_dim);
    task.group = static_cast<size_t>(group);
    task.eps = eps;
    task.q = head_rows<Rows>(q, b, g * group);
    task.k = head_rows<Rows>(k, b, g);
    task.v = head_rows<Rows>(v, b, g);
    task.gated = gated;
    if (gated) task.gate_logit = static_cast<float>(gate_logits(b, g));
    task.out = head_rows<MutRows>(out, b, g * group);
    task.sums = state->sums(entry, g).data();
    task.normaliser = state->normaliser(entry, g).data();
    task.mass = &state->mass(entry, g);
    task.log_decay = &state->log_decay(entry, g);
    linear_step(task, memory, clamps[static_cast<size_t>(index)]);
  });
  return total(clamps);
}

void require_batch(const char* name, const State& state, View3 q) {
  require(state.shape().batch == q.extent(0), "{}: state has {} entries, expected {} (batch of q)", name, state.shape().batch,
          q.extent(0));
}

void require_sessions(const char* name, std::span<State* const> sessions, View3 q) {
  require(sessions.size() == static_cast<size_t>(q.extent(0)), "{}: {} sessions are given, expected {} (batch of q)", name,
          sessions.size(), q.extent(0));
  for (size_t b = 0; b < sessions.size(); ++b) {
    require(sessions[b] != nullptr && sessions[b]->shape().batch == 1, "{}: session {} is {}, expected a state of one entry",
            name, b, sessions[b] == nullptr ? "null" : "a state of several entries");
  }
  std::vector<const State*> sorted(sessions.begin(), sessions.end());
  std::ranges::sort(sorted);
  require(std::ranges::adjacent_find(sorted) == sorted.end(), "{}: a session is given twice, expected distinct sessions", name);
}

}  // namespace

Report causal_step(View3 q, View3 k, View3 v, const FeatureMap& map, State& state, MutView3 out,
                   const AttentionOptions& options) {
  require_batch("causal_step", state, q);
  return step_all("causal_step", q, k, v, {}, false, map, out, options, [&](int64_t b) { return SessionEntry{&state, b}; });
}

Report gated_step(View3 q, View3 k, View3 v, View2 gate_logits, const FeatureMap& map, State& state, MutView3 out,
                  const AttentionOptions& options) {
  require_batch("gated_step", state, q);
  return step_all("gated_step", q, k, v, gate_logits, true, map, out, options, [&](int64_t b) {
    return SessionEntry{&state, b};
  });
}

Report causal_step(View3 q, View3 k, View3 v, const FeatureMap& map, std::span<State* const> sessions, MutView3 out,
                   const AttentionOptions& options) {
  require_sessions("causal_step", sessions, q);
  return step_all("causal_step", q, k, v, {}, false, map, out, options, [&](int64_t b) {
    return SessionEntry{sessions[static_cast<size_t>(b)], 0};
  });
}

Report gated_step(View3 q, View3 k, View3 v, View2 gate_logits, const FeatureMap& map, std::span<State* const> sessions,
                  MutView3 out, const AttentionOptions& options) {
  require_sessions("gated_step", sessions, q);
  return step_all("gated_step", q, k, v, gate_logits, true, map, out, options, [&](int64_t b) {
    return SessionEntry{sessions[static_cast<size_t>(b)], 0};
  });
}

}  // namespace raffia
