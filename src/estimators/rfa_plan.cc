#include <utility>

#include "core/check.h"
#include "estimators/rfa.h"

namespace raffia {
namespace {

size_t round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

}  // namespace

LinearPlan::LinearPlan(const char* name, Reach how_far, const LinearViews& views, const FeatureMap& map,
                       const AttentionOptions& options)
    : function(name), reach(how_far) {
  // A fold has no queries and a read no keys: shapes come from what is there.
  const bool has_queries = !views.q.absent() || views.k.absent(), has_keys = !views.k.absent() || views.q.absent();
  const View4& some = has_keys ? views.k : views.q;
  batch = some.extent(0);
  keys = has_keys ? views.k.extent(1) : 0;
  groups = has_keys ? views.k.extent(2) : map.heads();
  queries = has_queries ? views.q.extent(1) : 0;
  heads = has_queries ? views.q.extent(2) : groups;
  value_dim = has_keys ? views.v.extent(3) : views.out.extent(3);

  if (has_keys) {
    require_dtype(name, "k", views.k, {DType::f32, DType::bf16});
    require_dtype(name, "v", views.v, {DType::f32, DType::bf16});
    require_shape(name, "k", views.k, {batch, keys, map.heads(), map.dim()}, "heads and dim of the feature map");
    require_shape(name, "v", views.v, {batch, keys, groups, value_dim}, "batch, length and heads of k");
  }
  if (has_queries) {
    require_dtype(name, "q", views.q, {DType::f32, DType::bf16});
    require(groups >= 1 && heads % groups == 0, "{}: q has {} heads, expected a multiple of the {} heads of the feature map", name,
            heads, groups);
    require_shape(name, "q", views.q, {batch, reach == Reach::causal ? keys : queries, heads, map.dim()},
                  reach == Reach::causal ? "batch and length of k, dim of the feature map" : "batch of k, dim of the feature map");
  }
  if (views.gated) {
    require_dtype(name, "gate_logits", views.gate_logits, {DType::f32, DType::bf16});
    require_shape(name, "gate_logits", views.gate_logits, {batch, keys, groups}, "batch and heads of k, length of k");
  }
  const auto require_rows = [&](const char* argument, const View4& view) {
    if (view.absent()) return;
    require_dtype(name, argument, view, {DType::f32, DType::bf16});
    require_shape(name, argument, view, {batch, queries, heads, value_dim}, "batch, length and heads of q, dim of v");
  };
  require_rows("out", views.out);
  require_rows("out", views.forward_out);
  require_rows("dout", views.dout);
  if (!options.layout.valid.absent()) {
    require_dtype(name, "layout.valid", options.layout.valid, {DType::u8});
    require_shape(name, "layout.valid", options.layout.valid, {batch, has_keys ? keys : queries}, "batch and length of k");
  }
  require(options.threads >= 0, "{}: threads is {}, expected at least 0", name, options.threads);
  require(value_dim >= 1, "{}: v has dim 0, expected at least 1", name);
  const float eps = options.eps ? *options.eps : map.default_eps();
  require(eps >= 0.0f, "{}: eps is {}, expected at least 0", name, eps);

  sequences = sequences_of(name, options.layout, batch, has_queries ? queries : keys, has_keys ? keys : queries);
  const size_t group = static_cast<size_t>(heads / groups);
  query_heads.resize(sequences.size() * static_cast<size_t>(heads));
  problems.reserve(sequences.size() * static_cast<size_t>(groups));
  size_t record = 0;
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
      problem.k = rows_of<Rows>(views.k, s.batch, s.first_key, g);
      problem.v = rows_of<Rows>(views.v, s.batch, s.first_key, g);
      problem.gate = column_of<Rows>(views.gate_logits, s.batch, s.first_key, g);
      if (!options.layout.valid.absent() && has_keys) {
        const View2& valid = options.layout.valid;
        problem.valid = static_cast<const uint8_t*>(valid.data()) + valid.offset(s.batch, s.first_key);
        problem.valid_stride = valid.stride(1);
      }
      problems.push_back(problem);
    }
    for (int64_t h = 0; has_queries && h < heads; ++h) {
      QueryHead& head = query_heads[n * static_cast<size_t>(heads) + static_cast<size_t>(h)];
      head.q = rows_of<Rows>(views.q, s.batch, s.first_query, h);
      head.out = rows_of<MutRows>(views.out, s.batch, s.first_query, h);
      head.forward_out = rows_of<Rows>(views.forward_out, s.batch, s.first_query, h);
      head.dout = rows_of<Rows>(views.dout, s.batch, s.first_query, h);
      denominator_offsets.push_back(record);
      record += static_cast<size_t>(s.queries);
    }
    if (options.layout.cu_seqlens.empty() && !views.out.absent()) fill_rest(views.out, s.batch, s.queries);
  }
  record = round_up(record, kChunk);
  for (const LinearProblem& problem : problems) {
    state_offsets.push_back(record);
    record += problem.state_floats() * (reach == Reach::causal ? (problem.length + kBlock - 1) / kBlock : 1);
    scratch_floats = std::max(scratch_floats, linear_scratch_floats(problem));
  }
  state_offsets.push_back(record);

  if (!options.record.empty()) {
    require(options.record.size() >= record, "{}: record has {} floats, expected {} (record_size)", name, options.record.size(), record);
    for (size_t i = 0; i < denominator_offsets.size(); ++i) {
      query_heads[i].denominators = options.record.data() + denominator_offsets[i];
    }
  }
}

StateSlots::StateSlots(const LinearPlan& plan, size_t slots)
    : slots_(slots), floats_(plan.size() == 0 ? 0 : round_up(plan[0].state_floats(), kChunk)), memory_(1, floats_ * slots) {}

std::vector<PackedState> StateSlots::all(const LinearPlan& plan) const {
  std::vector<PackedState> states;
  states.reserve(slots_);
  for (size_t slot = 0; slot < slots_; ++slot) states.emplace_back(memory_.of(0) + slot * floats_, plan[0]);
  return states;
}

}  // namespace raffia
