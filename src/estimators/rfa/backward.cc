// The linear ops, backward: the same segments as forward, with states composed from right to left.
#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "core/check.h"
#include "core/trace.h"
#include "estimators/rfa/plan.h"
#include "estimators/shared/map_sums.h"

namespace raffia {

using namespace internal;
namespace {

void clear_all(const LinearPlan& plan, std::vector<PackedState>& states) {
  for (PackedState& state : states) clear_state(plan[0], state);
}

// The segments that are only folded. Where bf16 rounded their outputs, these are read again, in fp32, from the recorded states.
class FoldedSegments {
 public:
  FoldedSegments(const LinearPlan& plan, const View4& out, const std::vector<Segment>& segments, std::span<const float> record)
      : plan_(plan), record_(record), memory_(1, 0) {
    const bool folds = std::ranges::any_of(segments, [](const Segment& s) { return !s.first && !s.last; });
    if (!folds || out.dtype() == DType::f32) return;
    memory_ = Scratch(1, static_cast<size_t>(out.size()));
    const MutView4 again(memory_.of(0), out.shape());
    slots_.emplace(plan, segments.size());
    states_ = slots_->all(plan);
    for (size_t i = 0; i < plan.size(); ++i) {
      const Sequence& s = plan.sequences[static_cast<size_t>(plan.sequence_of(i))];
      const size_t group = plan[i].group;
      for (size_t g = 0; g < group; ++g) {
        QueryHead head = plan[i].heads[g];
        head.out = rows_of<MutRows>(again, s.batch, s.first_query,
                                    plan.head_of(i) * static_cast<int64_t>(group) + static_cast<int64_t>(g));
        head.denominators = nullptr;
        head.forward_out = head.out.readable();
        heads_.push_back(head);
      }
    }
  }

  // fold_gradient() of segment `s` of the list.
  void fold(const Segment& segment, size_t s, PackedState& gradient, float* scratch) const {
    LinearProblem problem = plan_[segment.problem];
    if (!heads_.empty()) {
      problem.heads = heads_.data() + segment.problem * problem.group;
      read_again(problem, segment, s, scratch);
    }
    fold_gradient(problem, segment.begin, segment.end, gradient, scratch);
  }

 private:
  void read_again(LinearProblem problem, const Segment& segment, size_t s, float* scratch) const {
    problem.eps = 0;  // the record has no mass for a floor; rows that were clamped are not read
    PackedState state = states_[s];
    const float* recorded = record_.data() + plan_.record_states_offset(segment.problem);
    std::copy_n(recorded + segment.begin / kBlock * problem.state_floats(), problem.state_floats(), state.sums);
    ClampCount clamps;
    causal_forward(problem, segment.begin, segment.end, {}, state, nullptr, scratch, clamps);
    for (size_t g = 0; g < problem.group; ++g) {
      const QueryHead& head = problem.heads[g];
      for (size_t t = segment.begin; t < segment.end; ++t) {
        if (head.forward_denominators[t] <= 0.0f) std::fill_n(head.out.direct_row(t), problem.value_dim, 0.0f);
      }
    }
  }

  const LinearPlan& plan_;
  std::span<const float> record_;
  Scratch memory_;
  std::optional<StateSlots> slots_;
  std::vector<PackedState> states_;  // by segment
  std::vector<QueryHead> heads_;     // by problem
};

void causal(const char* name, const LinearViews& views, const FeatureMap& map, std::span<const float> record,
            const AttentionGradients& gradients, const AttentionOptions& options) {
  LinearPlan plan(name, Reach::causal, views, map, options);
  plan.attach(gradients, record);
  if (gradients.state != nullptr) require_state(plan, map, "gradients.state", gradients.state->shape());
  const Trace trace(name, "q", *views.q, static_cast<int64_t>(kChunk));
  const std::vector<Segment> segments = causal_segments(plan, options);
  MapSumSlots sums(name, map, gradients.map, segments.size());
  plan.fill_padding(gradients);

  const Workers workers(options.run);
  const Scratch scratch(workers.count(), plan.scratch_floats);
  const StateSlots slots(plan, segments.size());
  std::vector<PackedState> states = slots.all(plan);  // gradients: of the state after a segment, then of the one before it
  clear_all(plan, states);
  const FoldedSegments folded(plan, *views.forward_out, segments, record);

  const auto compute = [&](const Bundle& bundle, float* memory) {
    const size_t first = segments[bundle.first].begin, end = segments[bundle.first].end;
    const auto recorded = [&](size_t s, size_t begin) {
      const size_t problem = segments[s].problem;
      return record.data() + plan.record_states_offset(problem) + begin / kBlock * plan[problem].state_floats();
    };
    for (size_t block = (end - first + kBlock - 1) / kBlock; block-- > 0;) {
      const size_t begin = first + block * kBlock;
      for (size_t s = bundle.first; s < bundle.end; ++s) {
        LinearProblem problem = plan[segments[s].problem];
        problem.map_sums = sums.of(s);
        // Continue with the next head, or with the block before of the first head.
        const bool same_block = s + 1 < bundle.end;
        const size_t next = same_block ? s + 1 : bundle.first;
        Upcoming upcoming;
        if (same_block || block > 0) {
          const size_t next_begin = same_block ? begin : begin - kBlock;
          upcoming = {&plan[segments[next].problem], next_begin, recorded(next, next_begin)};
        }
        causal_backward(problem, begin, std::min(begin + kBlock, end), recorded(s, begin), upcoming, states[s], memory);
      }
    }
    for (size_t s = bundle.first; s < bundle.end; ++s) {
      if (!segments[s].first || gradients.state == nullptr) continue;
      states[s].mass = 0;
      states[s].log_decay = 0;
      save_state(plan, segments[s].problem, states[s], *gradients.state);
    }
  };

  const std::vector<Bundle> bundles = bundle_heads(plan, segments, workers.count());
  workers.run(bundles, scratch, [&](const Bundle& bundle, float* memory) {
    const Segment& segment = segments[bundle.first];
    if (segment.last) {
      for (size_t s = bundle.first; s < bundle.end && gradients.state != nullptr; ++s) {
        load_state(plan, segments[s].problem, *gradients.state, states[s]);
      }
      compute(bundle, memory);
    } else if (!segment.first) {
      folded.fold(segment, bundle.first, states[bundle.first], memory);
    }
  });
  if (segments.size() > plan.size()) {
    // From right to left: what is left before segment s + 1 is what s starts from.
    for (size_t s = segments.size(); s-- > 0;) {
      if (!segments[s].first && !segments[s].last) compose_states(plan[segments[s].problem], states[s + 1], states[s]);
    }
    std::vector<Bundle> earlier;  // from the beginning: the first segment is the longest
    for (size_t s = 0; s < segments.size(); ++s) {
      if (segments[s].last) continue;
      std::swap(states[s], states[s + 1]);
      earlier.push_back({s, s + 1});
    }
    workers.run(earlier, scratch, compute);
  }
  for (size_t s = 0; s < segments.size(); ++s) sums.add(s, plan.head_of(segments[s].problem));
}

}  // namespace

void causal_attention_backward(View4 q, View4 k, View4 v, const FeatureMap& map, View4 out, std::span<const float> record,
                               View4 dout, const AttentionGradients& gradients, const AttentionOptions& options) {
  require(gradients.gate_logits.absent(), "causal_attention_backward: gradients.gate_logits is given, but there is no gate");
  causal("causal_attention_backward", {.q = q, .k = k, .v = v, .forward_out = out, .dout = dout}, map, record, gradients,
         options);
}

void gated_attention_backward(View4 q, View4 k, View4 v, View3 gate_logits, const FeatureMap& map, View4 out,
                              std::span<const float> record, View4 dout, const AttentionGradients& gradients,
                              const AttentionOptions& options) {
  causal("gated_attention_backward", {.q = q, .k = k, .v = v, .gate_logits = gate_logits, .forward_out = out, .dout = dout}, map,
         record, gradients, options);
}

void rfa_attention_backward(View4 q, View4 k, View4 v, const FeatureMap& map, View4 out, std::span<const float> record,
                            View4 dout, const AttentionGradients& gradients, const AttentionOptions& options) {
  constexpr const char* kName = "rfa_attention_backward";
  require(gradients.gate_logits.absent() && gradients.state == nullptr,
          "{}: gradients of gate_logits or state are requested, but this op has neither", kName);
  LinearPlan plan(kName, Reach::everything, {.q = q, .k = k, .v = v, .forward_out = out, .dout = dout}, map, options);
  plan.attach(gradients, record);
  const Trace trace(kName, "q", q, static_cast<int64_t>(kChunk));
  const std::vector<Segment> reads = read_segments(plan), folds = fold_segments(plan);
  MapSumSlots sums(kName, map, gradients.map, reads.size() + folds.size());
  plan.fill_padding(gradients);

  const Workers workers(options.run);
  const Scratch scratch(workers.count(), plan.scratch_floats);
  const StateSlots slots(plan, reads.size()), whole_slots(plan, plan.size());
  std::vector<PackedState> parts = slots.all(plan), whole = whole_slots.all(plan);
  clear_all(plan, parts);
  clear_all(plan, whole);

  workers.run(static_cast<int64_t>(reads.size()), scratch, [&](int64_t index, float* memory) {
    const size_t s = static_cast<size_t>(index);
    LinearProblem problem = plan[reads[s].problem];
    problem.map_sums = sums.of(s);
    // The recorded state is only read.
    const PackedState state(const_cast<float*>(record.data()) + plan.record_states_offset(reads[s].problem), problem);
    read_backward(problem, reads[s].begin, reads[s].end, state, parts[s], memory);
  });
  for (size_t s = 0; s < reads.size(); ++s) compose_states(plan[reads[s].problem], parts[s], whole[reads[s].problem]);
  workers.run(static_cast<int64_t>(folds.size()), scratch, [&](int64_t index, float* memory) {
    const size_t s = static_cast<size_t>(index);
    LinearProblem problem = plan[folds[s].problem];
    problem.map_sums = sums.of(reads.size() + s);
    fold_backward(problem, folds[s].begin, folds[s].end, whole[folds[s].problem], memory);
  });
  for (size_t s = 0; s < reads.size(); ++s) sums.add(s, plan.head_of(reads[s].problem));
  for (size_t s = 0; s < folds.size(); ++s) sums.add(reads.size() + s, plan.head_of(folds[s].problem));
}

}  // namespace raffia
