// The linear ops, forward: checks, the division of sequences into segments, and the order in which states are composed.
//
// A causal sequence is one task, or several segments in two passes. First the segments are folded independently (the first one is
// computed in full, since its state is known). Then their states are composed from left to right, and the other segments are
// computed in full from these. The number of segments depends only on the shape and the options.
#include "core/check.h"
#include "core/trace.h"
#include "estimators/rfa/plan.h"

namespace raffia {

using namespace internal;

Report internal::total(const std::vector<ClampCount>& counts) {
  Report report;
  for (const ClampCount& count : counts) {
    report.rows += count.rows;
    report.clamped += count.clamped;
  }
  return report;
}

namespace {

Report causal(const char* name, const LinearViews& views, const FeatureMap& map, State& state, const AttentionOptions& options,
              std::span<float> record) {
  const LinearPlan plan(name, Reach::causal, views, map, options, record);
  require_state(plan, map, "state", state.shape());
  plan.fill_padding(*views.out);
  const Trace trace(name, "q", *views.q, static_cast<int64_t>(kChunk));
  const std::vector<Segment> segments = causal_segments(plan, options);

  const Workers workers(options.run);
  const Scratch scratch(workers.count(), plan.scratch_floats);
  const StateSlots slots(plan, segments.size());
  std::vector<PackedState> states = slots.all(plan);  // of each segment: what it starts from, then what it leaves
  std::vector<ClampCount> clamps(segments.size());

  // Heads of one sequence go through it together, a block at a time.
  const auto compute = [&](const Bundle& bundle, float* memory) {
    for (size_t begin = segments[bundle.first].begin; begin < segments[bundle.first].end; begin += kBlock) {
      for (size_t s = bundle.first; s < bundle.end; ++s) {
        const LinearProblem& problem = plan[segments[s].problem];
        float* states_at = record.empty() ? nullptr
                                          : record.data() + plan.record_states_offset(segments[s].problem) +
                                                begin / kBlock * problem.state_floats();
        const size_t end = std::min(begin + kBlock, segments[s].end);
        // Continue with the next head, or with the next block of the first head.
        const size_t next = s + 1 < bundle.end ? s + 1 : bundle.first, next_begin = s + 1 < bundle.end ? begin : end;
        Upcoming upcoming;
        if (next_begin < segments[next].end)
          upcoming = {&plan[segments[next].problem], next_begin, next == s ? nullptr : states[next].sums};
        causal_forward(problem, begin, end, upcoming, states[s], states_at, memory, clamps[s]);
      }
    }
    for (size_t s = bundle.first; s < bundle.end; ++s) {
      if (!segments[s].last) continue;
      const LinearProblem& problem = plan[segments[s].problem];
      if (!record.empty()) {  // the state after the last block too
        std::copy_n(states[s].sums, problem.state_floats(),
                    record.data() + plan.record_states_offset(segments[s].problem + 1) - problem.state_floats());
      }
      save_state(plan, segments[s].problem, states[s], state);
    }
  };

  const std::vector<Bundle> bundles = bundle_heads(plan, segments, workers.count());
  workers.run(bundles, scratch, [&](const Bundle& bundle, float* memory) {
    const Segment& segment = segments[bundle.first];
    if (segment.first) {
      for (size_t s = bundle.first; s < bundle.end; ++s) load_state(plan, segments[s].problem, state, states[s]);
      compute(bundle, memory);
    } else if (!segment.last) {
      clear_state(plan[segment.problem], states[bundle.first]);
      fold(plan[segment.problem], segment.begin, segment.end, states[bundle.first], memory);
    }
  });
  if (segments.size() == plan.size()) return total(clamps);

  // From left to right: what is left after segment s is what s + 1 starts from.
  for (size_t s = 0; s < segments.size(); ++s) {
    if (!segments[s].first && !segments[s].last) compose_states(plan[segments[s].problem], states[s - 1], states[s]);
  }
  std::vector<Bundle> later;  // from the end: the last segment is the longest
  for (size_t s = segments.size(); s-- > 0;) {
    if (segments[s].first) continue;
    std::swap(states[s], states[s - 1]);
    later.push_back({s, s + 1});
  }
  workers.run(later, scratch, compute);
  return total(clamps);
}

// Folds all keys into `states`, one per problem, which hold what to start from.
void fold_all(const LinearPlan& plan, const Workers& workers, const Scratch& scratch, std::vector<PackedState>& states) {
  const std::vector<Segment> segments = fold_segments(plan);
  const StateSlots slots(plan, segments.size());
  std::vector<PackedState> parts = slots.all(plan);
  workers.run(static_cast<int64_t>(segments.size()), scratch, [&](int64_t index, float* memory) {
    const Segment& segment = segments[static_cast<size_t>(index)];
    PackedState& part = parts[static_cast<size_t>(index)];
    clear_state(plan[segment.problem], part);
    fold(plan[segment.problem], segment.begin, segment.end, part, memory);
  });
  for (size_t s = 0; s < segments.size(); ++s) {
    const LinearProblem& problem = plan[segments[s].problem];
    PackedState& whole = states[segments[s].problem];
    compose_states(problem, segments[s].first ? whole : parts[s - 1], parts[s]);
    if (segments[s].last) copy_state(problem, parts[s], whole);
  }
}

// All queries read `states`, one per problem.
Report read_all(const LinearPlan& plan, const Workers& workers, const Scratch& scratch, const std::vector<PackedState>& states) {
  const std::vector<Segment> segments = read_segments(plan);
  std::vector<ClampCount> clamps(segments.size());
  workers.run(static_cast<int64_t>(segments.size()), scratch, [&](int64_t index, float* memory) {
    const Segment& segment = segments[static_cast<size_t>(index)];
    read(plan[segment.problem], segment.begin, segment.end, states[segment.problem], memory, clamps[static_cast<size_t>(index)]);
  });
  return total(clamps);
}

void fold_into(const LinearViews& views, const FeatureMap& map, State& state, const AttentionOptions& options) {
  constexpr const char* kName = "fold_keys";
  const LinearPlan plan(kName, Reach::everything, views, map, options);
  require_state(plan, map, "state", state.shape());
  const Trace trace(kName, "k", *views.k, static_cast<int64_t>(kChunk));
  const Workers workers(options.run);
  const Scratch scratch(workers.count(), plan.scratch_floats);
  const StateSlots slots(plan, plan.size());
  std::vector<PackedState> states = slots.all(plan);
  for (size_t i = 0; i < plan.size(); ++i) load_state(plan, i, state, states[i]);
  fold_all(plan, workers, scratch, states);
  for (size_t i = 0; i < plan.size(); ++i) save_state(plan, i, states[i], state);
}

}  // namespace

Report causal_attention(View4 q, View4 k, View4 v, const FeatureMap& map, State& state, MutView4 out,
                        const AttentionOptions& options, std::span<float> record) {
  return causal("causal_attention", {.q = q, .k = k, .v = v, .out = out}, map, state, options, record);
}

Report gated_attention(View4 q, View4 k, View4 v, View3 gate_logits, const FeatureMap& map, State& state, MutView4 out,
                       const AttentionOptions& options, std::span<float> record) {
  return causal("gated_attention", {.q = q, .k = k, .v = v, .gate_logits = gate_logits, .out = out}, map, state, options, record);
}

Report rfa_attention(View4 q, View4 k, View4 v, const FeatureMap& map, MutView4 out, const AttentionOptions& options,
                     std::span<float> record) {
  constexpr const char* kName = "rfa_attention";
  const LinearPlan plan(kName, Reach::everything, {.q = q, .k = k, .v = v, .out = out}, map, options, record);
  plan.fill_padding(out);
  const Trace trace(kName, "q", q, static_cast<int64_t>(kChunk));
  const Workers workers(options.run);
  const Scratch scratch(workers.count(), plan.scratch_floats);
  const StateSlots slots(plan, plan.size());
  std::vector<PackedState> states = slots.all(plan);
  for (size_t i = 0; i < plan.size(); ++i) clear_state(plan[i], states[i]);
  fold_all(plan, workers, scratch, states);
  if (!record.empty()) {
    for (size_t i = 0; i < plan.size(); ++i) {
      std::copy_n(states[i].sums, plan[i].state_floats(), record.data() + plan.record_states_offset(i));
    }
  }
  return read_all(plan, workers, scratch, states);
}

void fold_keys(View4 k, View4 v, const FeatureMap& map, State& state, const AttentionOptions& options) {
  fold_into({.k = k, .v = v}, map, state, options);
}

void fold_keys(View4 k, View4 v, View3 gate_logits, const FeatureMap& map, State& state, const AttentionOptions& options) {
  fold_into({.k = k, .v = v, .gate_logits = gate_logits}, map, state, options);
}

Report read_state(View4 q, const FeatureMap& map, const State& state, MutView4 out, const AttentionOptions& options) {
  constexpr const char* kName = "read_state";
  const LinearPlan plan(kName, Reach::everything, {.q = q, .out = out}, map, options);
  require_state(plan, map, "state", state.shape());
  plan.fill_padding(out);
  const Trace trace(kName, "q", q, static_cast<int64_t>(kChunk));
  const Workers workers(options.run);
  const Scratch scratch(workers.count(), plan.scratch_floats);
  const StateSlots slots(plan, plan.size());
  std::vector<PackedState> states = slots.all(plan);
  for (size_t i = 0; i < plan.size(); ++i) load_state(plan, i, state, states[i]);
  return read_all(plan, workers, scratch, states);
}

int64_t record_size(View4 q, View4 k, View4 v, const FeatureMap& map, const AttentionOptions& options) {
  // The causal record is the larger one: as many denominators, and more states.
  const Layout& layout = options.layout;
  const bool same_length =
      q.extent(1) == k.extent(1) && (layout.cu_seqlens_k.empty() || std::ranges::equal(layout.cu_seqlens_k, layout.cu_seqlens));
  const LinearPlan plan("record_size", same_length ? Reach::causal : Reach::everything, {.q = q, .k = k, .v = v}, map, options);
  return static_cast<int64_t>(plan.record_floats());
}

}  // namespace raffia
