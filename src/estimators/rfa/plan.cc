#include "estimators/rfa/plan.h"

#include <utility>

#include "core/check.h"

namespace raffia::internal {
namespace {

constexpr size_t kFoldSegment = 2048;  // keys per task where they are only folded
constexpr size_t kReadSegment = 1024;  // queries per task where they only read

// Causal segments cost up to 50% more work: they only help if a single sequence and head must feed several threads.
// Of 32 parts the first and the last segment take nine each, since they need no fold; the 14 between take one each.
// See docs/performance-avx2.md#one-head-one-long-sequence-avx2
constexpr size_t kMinSegmented = 8192;
constexpr size_t kSegmentParts = 32;
constexpr size_t kOuterParts = 9;

constexpr size_t kStateBytesInCache = 320 << 10;  // of a 512 KiB L2

size_t whole_steps(size_t n, size_t step) { return (n + step - 1) / step * step; }

struct SegmentLengths {
  size_t outer, inner;  // of the first and the last segment of a sequence, and of those between
};

SegmentLengths segment_lengths(const LinearPlan& plan, const AttentionOptions& options, size_t length) {
  if (options.segment > 0) {
    const size_t each = whole_steps(static_cast<size_t>(options.segment), kBlock);
    return {each, each};
  }
  if (options.segment < 0 || plan.size() > 1 || length < kMinSegmented) return {length, length};
  const size_t part = whole_steps((length + kSegmentParts - 1) / kSegmentParts, kBlock);
  return {kOuterParts * part, part};
}

std::vector<Segment> cut(const LinearPlan& plan, const auto& length_of, const auto& lengths_of) {
  std::vector<Segment> segments;
  for (size_t i = 0; i < plan.size(); ++i) {
    const size_t length = length_of(plan[i]);
    const SegmentLengths lengths = lengths_of(length);
    size_t begin = 0, end = std::min(lengths.outer, length);
    segments.push_back({i, begin, end, true, end == length});
    while (end < length) {
      begin = end;
      end = length - begin <= lengths.outer ? length : begin + lengths.inner;
      segments.push_back({i, begin, end, false, end == length});
    }
  }
  return segments;
}

}  // namespace

std::vector<Segment> causal_segments(const LinearPlan& plan, const AttentionOptions& options) {
  return cut(
      plan, [](const LinearProblem& p) { return p.length; },
      [&](size_t length) { return segment_lengths(plan, options, length); });
}

std::vector<Segment> fold_segments(const LinearPlan& plan) {
  return cut(
      plan, [](const LinearProblem& p) { return p.length; },
      [](size_t) {
        return SegmentLengths{kFoldSegment, kFoldSegment};
      });
}

std::vector<Segment> read_segments(const LinearPlan& plan) {
  return cut(
      plan, [](const LinearProblem& p) { return p.query_length; },
      [](size_t) {
        return SegmentLengths{kReadSegment, kReadSegment};
      });
}

std::vector<Bundle> bundle_heads(const LinearPlan& plan, const std::vector<Segment>& segments, int workers) {
  // As many heads as keep their states in L2 beside the rows, and no fewer tasks than workers.
  size_t max = 1;
  if (segments.size() == plan.size() && plan.size() > 0) {
    const size_t in_cache = kStateBytesInCache / (plan[0].state_floats() * sizeof(float));
    max = std::clamp(plan.size() / static_cast<size_t>(workers), size_t{1}, std::max(in_cache, size_t{1}));
  }
  std::vector<Bundle> bundles;
  for (size_t s = 0; s < segments.size(); ++s) {
    const bool joins = !bundles.empty() && s - bundles.back().first < max &&
                       plan.sequence_of(segments[s].problem) == plan.sequence_of(segments[bundles.back().first].problem);
    if (joins) {
      bundles.back().end = s + 1;
    } else {
      bundles.push_back({s, s + 1});
    }
  }
  return bundles;
}

void require_state(const LinearPlan& plan, const FeatureMap& map, const char* argument, const StateShape& found) {
  const StateShape expected{static_cast<int64_t>(plan.sequences.size()), map.heads(), map.features(), plan.value_dim};
  require(found == expected,
          "{}: {} has shape [{}, {}, {}, {}], expected [{}, {}, {}, {}] (sequences, heads and features of the map, dim of v)",
          plan.function, argument, found.batch, found.heads, found.features, found.value_dim, expected.batch, expected.heads,
          expected.features, expected.value_dim);
}

void load_state(const LinearPlan& plan, size_t i, const State& state, PackedState& packed) {
  const int64_t n = plan.sequence_of(i), g = plan.head_of(i);
  pack_state(state.sums(n, g).data(), state.normaliser(n, g).data(), plan[i], packed);
  packed.mass = static_cast<double>(state.mass(n, g));
  packed.log_decay = static_cast<double>(state.log_decay(n, g));
}

void save_state(const LinearPlan& plan, size_t i, const PackedState& packed, State& state) {
  const int64_t n = plan.sequence_of(i), g = plan.head_of(i);
  unpack_state(packed, plan[i], state.sums(n, g).data(), state.normaliser(n, g).data());
  state.mass(n, g) = static_cast<float>(packed.mass);
  state.log_decay(n, g) = static_cast<float>(packed.log_decay);
}

LinearSizes check_linear(const char* name, Reach reach, const LinearViews& views, const FeatureMap& map,
                         const AttentionOptions& options) {
  // A fold has no queries and a read has no keys: shapes are taken from the views that are given.
  const bool has_queries = views.q.has_value(), has_keys = views.k.has_value();
  const View4 q = views.q.value_or(View4()), k = views.k.value_or(View4()), v = views.v.value_or(View4());
  const View3 gate_logits = views.gate_logits.value_or(View3());
  const MutView4 out = views.out.value_or(MutView4());
  const int64_t batch = has_keys ? k.extent(0) : q.extent(0), keys = k.extent(1), queries = q.extent(1);
  const int64_t groups = has_keys ? k.extent(2) : map.heads(), heads = has_queries ? q.extent(2) : groups;
  const int64_t value_dim = has_keys ? v.extent(3) : out.extent(3);
  if (has_keys) {
    require_dtype(name, "k", k, {DType::f32, DType::bf16});
    require_dtype(name, "v", v, {DType::f32, DType::bf16});
    require_shape(name, "k", k, {batch, keys, map.heads(), map.dim()}, "heads and dim of the feature map");
    require_shape(name, "v", v, {batch, keys, groups, value_dim}, "batch, length and heads of k");
  }
  require(value_dim >= 1, "{}: {} has dim 0, expected at least 1", name, has_keys ? "v" : "out");
  if (has_queries) {
    require_dtype(name, "q", q, {DType::f32, DType::bf16});
    require(heads >= 1 && heads % groups == 0, "{}: q has {} heads, expected a multiple of the {} heads of the feature map", name,
            heads, groups);
    require_shape(
        name, "q", q, {batch, reach == Reach::causal ? keys : queries, heads, map.dim()},
        reach == Reach::causal ? "batch and length of k, dim of the feature map" : "batch of k, dim of the feature map");
  }
  if (views.gate_logits) {
    require_dtype(name, "gate_logits", gate_logits, {DType::f32, DType::bf16});
    require_shape(name, "gate_logits", gate_logits, {batch, keys, groups}, "batch and heads of k, length of k");
  }
  const auto require_rows = [&](const char* argument, const View4& view) {
    require_dtype(name, argument, view, {DType::f32, DType::bf16});
    require_shape(name, argument, view, {batch, queries, heads, value_dim}, "batch, length and heads of q, dim of v");
  };
  if (views.out) require_rows("out", out);
  if (views.forward_out) require_rows("out", *views.forward_out);
  if (views.dout) require_rows("dout", *views.dout);
  if (!options.layout.valid.absent()) {
    require_dtype(name, "layout.valid", options.layout.valid, {DType::u8});
    require_shape(name, "layout.valid", options.layout.valid, {batch, has_keys ? keys : queries}, "batch and length of k");
  }
  require(options.run.threads >= 0, "{}: threads is {}, expected at least 0", name, options.run.threads);
  const float eps = options.eps ? *options.eps : map.default_eps();
  require(eps >= 0.0f, "{}: eps is {}, expected at least 0", name, eps);
  return {batch, queries, heads, keys, groups, value_dim};
}

LinearPlan::LinearPlan(const char* name, Reach how_far, const LinearViews& views, const FeatureMap& map,
                       const AttentionOptions& options, std::span<float> record)
    : LinearSizes(check_linear(name, how_far, views, map, options)),
      function(name),
      reach(how_far),
      packed_sequences(!options.layout.cu_seqlens.empty()) {
  const bool has_queries = views.q.has_value(), has_keys = views.k.has_value();
  const View4 q = views.q.value_or(View4()), k = views.k.value_or(View4()), v = views.v.value_or(View4());
  const View3 gate_logits = views.gate_logits.value_or(View3());
  const MutView4 out = views.out.value_or(MutView4());
  const View4 forward_out = views.forward_out.value_or(View4()), dout = views.dout.value_or(View4());
  const float eps = options.eps ? *options.eps : map.default_eps();
  sequences = sequences_of(name, options.layout, batch, has_queries ? queries : keys, has_keys ? keys : queries);
  for (const Sequence& s : sequences) {
    require(reach != Reach::causal || (s.first_query == s.first_key && s.queries == s.keys),
            "{}: cu_seqlens_k differs from cu_seqlens, expected the same (queries and keys are the same tokens)", name);
  }
  const size_t group = static_cast<size_t>(heads / groups);
  query_heads.resize(sequences.size() * static_cast<size_t>(heads));
  problems.reserve(sequences.size() * static_cast<size_t>(groups));
  size_t floats = 0;
  for (size_t n = 0; n < sequences.size(); ++n) {
    const Sequence& s = sequences[n];
    for (int64_t g = 0; g < groups; ++g) {
      LinearProblem problem{.map = MapParams(map, g)};
      problem.value_dim = static_cast<size_t>(value_dim);
      problem.query_length = has_queries ? static_cast<size_t>(s.queries) : 0;
      problem.length = has_keys ? static_cast<size_t>(s.keys) : 0;
      problem.eps = eps;
      problem.group = has_queries ? group : 0;
      problem.heads = query_heads.data() + n * static_cast<size_t>(heads) + static_cast<size_t>(g) * group;
      problem.k = rows_of<Rows>(k, s.batch, s.first_key, g);
      problem.v = rows_of<Rows>(v, s.batch, s.first_key, g);
      problem.gate = column_of<Rows>(gate_logits, s.batch, s.first_key, g);
      if (!options.layout.valid.absent() && has_keys) {
        const View2& valid = options.layout.valid;
        problem.valid = static_cast<const uint8_t*>(valid.data()) + valid.offset(s.batch, s.first_key);
        problem.valid_stride = valid.stride(1);
      }
      problems.push_back(problem);
    }
    for (int64_t h = 0; has_queries && h < heads; ++h) {
      QueryHead& head = query_heads[n * static_cast<size_t>(heads) + static_cast<size_t>(h)];
      head.q = rows_of<Rows>(q, s.batch, s.first_query, h);
      head.out = rows_of<MutRows>(out, s.batch, s.first_query, h);
      head.forward_out = rows_of<Rows>(forward_out, s.batch, s.first_query, h);
      head.dout = rows_of<Rows>(dout, s.batch, s.first_query, h);
      denominator_offsets.push_back(floats);
      floats += static_cast<size_t>(s.queries);
    }
  }
  floats = whole_steps(floats, kChunk);
  for (const LinearProblem& problem : problems) {
    state_offsets.push_back(floats);
    floats += problem.state_floats() * (reach == Reach::causal ? (problem.length + kBlock - 1) / kBlock + 1 : 1);
    scratch_floats = std::max(scratch_floats, linear_scratch_floats(problem));
  }
  state_offsets.push_back(floats);

  if (!record.empty()) {
    require(record.size() >= floats, "{}: record has {} floats, expected {} (record_size)", name, record.size(), floats);
    for (size_t i = 0; i < denominator_offsets.size(); ++i) {
      query_heads[i].denominators = record.data() + denominator_offsets[i];
    }
  }
}

void LinearPlan::attach(const AttentionGradients& gradients, std::span<const float> record) {
  require(record.size() >= record_floats(), "{}: record has {} floats, expected {} (record_size)", function, record.size(),
          record_floats());
  const auto require_like = [&](const char* argument, const MutView4& view, const Extents<4>& shape, const char* why) {
    if (view.absent()) return;
    require_dtype(function, argument, view, {DType::f32, DType::bf16});
    require_shape(function, argument, view, shape, why);
  };
  const int64_t dim = problems.empty() ? gradients.q.extent(3) : static_cast<int64_t>(problems[0].map.dim);
  require_like("gradients.q", gradients.q, {batch, queries, heads, dim}, "shape of q");
  require_like("gradients.k", gradients.k, {batch, keys, groups, dim}, "shape of k");
  require_like("gradients.v", gradients.v, {batch, keys, groups, value_dim}, "shape of v");
  if (!gradients.gate_logits.absent()) {
    require_dtype(function, "gradients.gate_logits", gradients.gate_logits, {DType::f32, DType::bf16});
    require_shape(function, "gradients.gate_logits", gradients.gate_logits, {batch, keys, groups},
                  "batch, length and heads of k");
  }
  for (size_t n = 0; n < sequences.size(); ++n) {
    const Sequence& s = sequences[n];
    for (int64_t g = 0; g < groups; ++g) {
      LinearProblem& problem = problems[n * static_cast<size_t>(groups) + static_cast<size_t>(g)];
      problem.dk = rows_of<MutRows>(gradients.k, s.batch, s.first_key, g);
      problem.dv = rows_of<MutRows>(gradients.v, s.batch, s.first_key, g);
      problem.dgate = column_of<MutRows>(gradients.gate_logits, s.batch, s.first_key, g);
    }
    for (int64_t h = 0; h < heads; ++h) {
      const size_t i = n * static_cast<size_t>(heads) + static_cast<size_t>(h);
      query_heads[i].dq = rows_of<MutRows>(gradients.q, s.batch, s.first_query, h);
      query_heads[i].forward_denominators = record.data() + denominator_offsets[i];
    }
  }
  scratch_floats = 0;
  for (const LinearProblem& problem : problems)
    scratch_floats = std::max(scratch_floats, linear_backward_scratch_floats(problem));
}

void LinearPlan::fill_padding(MutView4 out) const {
  for (const Sequence& s : sequences) {
    if (!packed_sequences) fill_rest(out, s.batch, s.queries);
  }
}

void LinearPlan::fill_padding(const AttentionGradients& gradients) const {
  fill_padding(gradients.q);
  for (const Sequence& s : sequences) {
    if (packed_sequences) break;
    fill_rest(gradients.k, s.batch, s.keys);
    fill_rest(gradients.v, s.batch, s.keys);
    fill_rest(gradients.gate_logits, s.batch, s.keys, 0.0f);
  }
}

StateSlots::StateSlots(const LinearPlan& plan, size_t slots)
    : slots_(slots), floats_(plan.size() == 0 ? 0 : whole_steps(plan[0].state_floats(), kChunk)), memory_(1, floats_ * slots) {}

std::vector<PackedState> StateSlots::all(const LinearPlan& plan) const {
  std::vector<PackedState> states;
  states.reserve(slots_);
  for (size_t slot = 0; slot < slots_; ++slot) states.emplace_back(memory_.of(0) + slot * floats_, plan[0]);
  return states;
}

}  // namespace raffia::internal
