// Hybrid attention, forward: the exact part by the blocked softmax kernel, then the folded part, which merges into it. Where
// there are several heads both parts of about 128 tokens follow each other, so that the second finds the rows of the first in
// cache; a single head gives its exact part to all threads first.
#include "core/check.h"
#include "core/trace.h"
#include "estimators/hybrid/plan.h"
#include "estimators/shared/qkv.h"

namespace raffia {

using namespace internal;
namespace {

constexpr size_t kMaxAhead = 64;  // rows asked for early: more would not stay in cache

// The tokens of the last two blocks, into the state.
void remember(const HybridPlan& plan, const HybridInputs& inputs, const Layout& layout, WindowState& state) {
  const int64_t groups = plan.linear.groups;
  for (size_t n = 0; n < plan.linear.sequences.size(); ++n) {
    const Sequence& s = plan.linear.sequences[n];
    const int64_t entry = static_cast<int64_t>(n), before = state.tokens(entry);
    const int64_t slots = 2 * state.shape().window;
    for (int64_t t = std::max<int64_t>(0, s.keys - slots); t < s.keys; ++t) {
      const int64_t slot = (before + t) % slots, at = s.first_key + t;
      const bool present = layout.valid.absent() || layout.valid(s.batch, at) != 0;
      const auto store = [&](WindowPart part, const View4& view) {
        const int64_t width = view.extent(3);
        const auto row = state.part(part, entry).begin() + slot * groups * width;
        for (int64_t g = 0; g < groups; ++g) {
          const Rows rows = rows_of<Rows>(view, s.batch, at, g);
          for (int64_t e = 0; e < width; ++e) row[g * width + e] = present ? rows.at(0, static_cast<size_t>(e)) : 0.0f;
        }
      };
      store(WindowPart::keys, inputs.k);
      store(WindowPart::values, inputs.v);
      if (!inputs.k_far.absent()) store(WindowPart::far_keys, inputs.k_far);
      for (int64_t g = 0; g < groups; ++g) {
        state.part(WindowPart::gates, entry)[static_cast<size_t>(slot * groups + g)] =
            present ? column_of<Rows>(inputs.gate_logits, s.batch, at, g).at(0, 0) : 0.0f;
      }
      state.part(WindowPart::present, entry)[static_cast<size_t>(slot)] = present ? 1.0f : 0.0f;
    }
    state.tokens(entry) = before + s.keys;
  }
}

// The exact part of one problem, some tokens at a time.
class ExactTurns {
 public:
  ExactTurns(const HybridPlan& plan, const SoftmaxPart& part, MutView4 out, MutView3 logsumexp)
      : plan_(plan), part_(part), out_(out), logsumexp_(logsumexp) {
    for (size_t n = 0; n < plan.linear.sequences.size(); ++n) sequences_.push_back(plan.direct_sequence(n));
    for (size_t i = 0; i < plan.size(); ++i) {
      const std::optional<PartSequence>& s = sequences_[static_cast<size_t>(plan.linear.sequence_of(i))];
      const int64_t g = plan.linear.head_of(i);
      sources_.push_back(!s ? KeySource{}
                            : KeySource{rows_of<Rows>(part.k, s->batch, s->first_key, g),
                                        rows_of<Rows>(part.v, s->batch, s->first_key, g),
                                        mask_of(part.valid, {}, s->batch, s->first_key, g)});
    }
  }

  size_t scratch_floats() const {
    return forward_scratch(static_cast<size_t>(part_.q.extent(3)), static_cast<size_t>(part_.v.extent(3)));
  }

  // New tokens [begin, end) of problem i, unless they see tokens that the state brought.
  void run(size_t i, size_t begin, size_t end, float* scratch) const {
    const size_t n = static_cast<size_t>(plan_.linear.sequence_of(i)), skipped = plan_.head_rows(n);
    const std::optional<PartSequence>& s = sequences_[n];
    if (!s || end <= skipped) return;
    const int64_t group = plan_.linear.heads / plan_.linear.groups, g = plan_.linear.head_of(i);
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      ForwardTask task{.keys = {.count = s->visible.keys,
                                .dim = static_cast<size_t>(part_.q.extent(3)),
                                .value_dim = static_cast<size_t>(part_.v.extent(3))},
                       .unpacked = &sources_[i],
                       .masked = !part_.valid.absent(),
                       .visible = s->visible,
                       .scale = part_.scale,
                       .q = rows_of<Rows>(part_.q, s->batch, s->first_query, h),
                       .out = rows_of<MutRows>(out_, s->batch, s->first_query, h),
                       .logsumexp = column_of<MutRows>(logsumexp_, s->batch, s->first_query, h)};
      for (task.first = std::max(begin, skipped) - skipped; task.first < end - skipped; task.first += task.count) {
        task.count = std::min(kQueryBlock, end - skipped - task.first);
        softmax_forward(task, scratch);
      }
    }
  }

 private:
  const HybridPlan& plan_;
  const SoftmaxPart& part_;
  MutView4 out_;
  MutView3 logsumexp_;
  std::vector<std::optional<PartSequence>> sequences_;
  std::vector<KeySource> sources_;  // by problem
};

// `state` null: starts empty and keeps nothing.
Report attend(const HybridInputs& inputs, const FeatureMap& map, WindowState* state, MutView4 out, const HybridOptions& options,
              std::span<float> record) {
  constexpr const char* kName = "hybrid_attention";
  HybridPlan plan(kName, inputs, map, state, out, options);
  require(record.empty() || record.size() == static_cast<size_t>(plan.record_floats()),
          "{}: record has {} floats, expected {} (hybrid_record_size)", kName, record.size(), plan.record_floats());
  const Trace trace(kName, "q", inputs.q, options.window);
  const Workers workers(options.run);

  const Float32Output staged(out);  // until both parts have met
  const MutView4 exact = staged.view();
  const Extents<4> shape = out.shape();
  const size_t rows = static_cast<size_t>(shape[0] * shape[1] * shape[2]);
  const Scratch logsumexps(1, record.empty() ? rows : 0);
  float* logsumexp_data = record.empty() ? logsumexps.of(0) : record.data();
  const MutView3 logsumexp(logsumexp_data, {shape[0], shape[1], shape[2]});
  if (!record.empty()) std::fill(record.begin(), record.end(), 0.0f);

  const SoftmaxPart direct = plan.direct_part(inputs, workers);
  const bool interleaved = plan.size() > 1;
  if (!interleaved) forward(direct, exact, logsumexp);
  if (const SoftmaxPart part = plan.head_part(inputs, workers); !part.sequences.empty()) forward(part, exact, logsumexp);

  const size_t group = static_cast<size_t>(plan.linear.heads / plan.linear.groups);
  for (size_t i = 0; i < plan.size(); ++i) {
    const Sequence& s = plan.linear.sequences[static_cast<size_t>(plan.linear.sequence_of(i))];
    for (size_t g = 0; g < group; ++g) {
      const int64_t h = plan.linear.head_of(i) * static_cast<int64_t>(group) + static_cast<int64_t>(g);
      plan.heads(i)[g].out = rows_of<MutRows>(exact, s.batch, s.first_query, h);
      plan.far(i)[g].logsumexp = column_of<MutRows>(logsumexp, s.batch, s.first_query, h);
      if (!record.empty()) {
        plan.heads(i)[g].denominators = record.data() + rows + (s.batch * shape[2] + h) * shape[1] + s.first_query;
      }
    }
  }

  const ExactTurns turns(plan, direct, exact, logsumexp);
  size_t reach_floats = 0, scratch_floats = std::max(plan.linear.scratch_floats, turns.scratch_floats());
  std::vector<size_t> reach_at;
  for (size_t i = 0; i < plan.size(); ++i) {
    reach_at.push_back(reach_floats);
    reach_floats += plan.linear[i].length;
    scratch_floats = std::max({scratch_floats, linear_scratch_floats(plan.fresh(i)), far_scratch_floats(plan.fresh(i))});
  }
  const Scratch reach(1, reach_floats), scratch(workers.count(), scratch_floats);
  const StateSlots slots(plan.linear, plan.size());
  std::vector<PackedState> states = slots.all(plan.linear);
  std::vector<ClampCount> clamps(plan.size());

  // Heads of one sequence go through it together, about kBlock tokens at a time: their rows lie side by side.
  const std::vector<Segment> segments = causal_segments(plan.linear, {.segment = -1});
  const std::vector<Bundle> bundles = bundle_heads(plan.linear, segments, workers.count());
  workers.run(bundles, scratch, [&](const Bundle& bundle, float* memory) {
    for (size_t i = bundle.first; i < bundle.end; ++i) {
      plan.load(i, state, states[i]);
      plan.fill_reach(i, reach.of(0) + reach_at[i]);
    }
    const Blocks& blocks = plan.blocks(bundle.first);
    const size_t turn = std::max<size_t>(1, kBlock / blocks.window);
    for (size_t first = blocks.first_block(); first < blocks.end_block(); first += turn) {
      for (size_t i = bundle.first; i < bundle.end; ++i) {
        const LinearProblem fresh = plan.fresh(i), held = plan.old(i);
        const size_t end_of_turn = std::min(first + turn, blocks.end_block());
        if (interleaved) turns.run(i, blocks.fresh(first).begin, blocks.fresh(end_of_turn - 1).end, memory);
        for (size_t b = first; b < end_of_turn; ++b) {
          const TokenRange queries = blocks.fresh(b);
          const bool folds = blocks.folds_after(b);
          const TokenRange keys = folds ? blocks.fresh(b - 1) : TokenRange{0, 0}, next = blocks.fresh(b + 1);
          const AfterRead after{keys.begin, std::min(keys.end, keys.begin + kMaxAhead), next.begin,
                                std::min(next.end, next.begin + kMaxAhead)};
          far_read(fresh, plan.far(i), queries.begin, queries.end, reach.of(0) + reach_at[i], after, states[i], memory,
                   clamps[i]);
          if (!folds) continue;
          const TokenRange old = blocks.old(b - 1);
          if (old.size() > 0) fold(held, old.begin, old.end, states[i], memory);
          if (keys.size() > 0) fold(fresh, keys.begin, keys.end, states[i], memory);
        }
      }
    }
  });

  plan.linear.fill_padding(exact);
  staged.store(workers);
  if (state != nullptr) {
    for (size_t i = 0; i < plan.size(); ++i) plan.save(i, states[i], *state);
    remember(plan, inputs, options.layout, *state);
  }
  return total(clamps);
}

}  // namespace

int64_t hybrid_record_size(const HybridInputs& inputs, const FeatureMap&, const HybridOptions&) {
  return 2 * inputs.q.extent(0) * inputs.q.extent(1) * inputs.q.extent(2);
}

Report hybrid_attention(const HybridInputs& inputs, const FeatureMap& map, WindowState& state, MutView4 out,
                        const HybridOptions& options, std::span<float> record) {
  return attend(inputs, map, &state, out, options, record);
}

Report hybrid_attention(const HybridInputs& inputs, const FeatureMap& map, MutView4 out, const HybridOptions& options,
                        std::span<float> record) {
  return attend(inputs, map, nullptr, out, options, record);
}

}  // namespace raffia
