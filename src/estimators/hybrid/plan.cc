#include "estimators/hybrid/plan.h"

#include <cmath>

#include "core/check.h"
#include "estimators/shared/qkv.h"

namespace raffia {

using namespace internal;

void internal::require_hybrid_state(const char* function, const WindowStateShape& found, int64_t batch,
                                    const HybridInputs& inputs, const FeatureMap& map, const HybridOptions& options) {
  const WindowStateShape expected =
      hybrid_state_shape(batch, inputs.k.extent(2), inputs.k.extent(3), inputs.v.extent(3), map, !inputs.k_far.absent(), options);
  require(found == expected,
          "{}: state is of kind {} with batch {}, heads {}, dim {}, far_dim {}, value_dim {}, window {}, features {}; expected "
          "hybrid with {}, {}, {}, {}, {}, {}, {} (of the inputs, the map and options.window)",
          function, name_of(found.kind), found.batch, found.heads, found.dim, found.far_dim, found.value_dim, found.window,
          found.features, expected.batch, expected.heads, expected.dim, expected.far_dim, expected.value_dim, expected.window,
          expected.features);
}

WindowStateShape hybrid_state_shape(int64_t batch, int64_t heads, int64_t dim, int64_t value_dim, const FeatureMap& map,
                                    bool has_far, const HybridOptions& options) {
  return {.kind = WindowKind::hybrid,
          .batch = batch,
          .heads = heads,
          .dim = dim,
          .far_dim = has_far ? map.dim() : 0,
          .value_dim = value_dim,
          .window = options.window,
          .features = map.features()};
}

LinearViews internal::check_hybrid(const char* function, const HybridInputs& inputs, const FeatureMap& map, View4 out,
                                   const HybridOptions& options) {
  const int64_t batch = inputs.k.extent(0), length = inputs.k.extent(1), groups = map.heads(), heads = inputs.q.extent(2);
  require(options.window >= 1, "{}: window is {}, expected at least 1", function, options.window);
  require(!options.scale || (*options.scale > 0 && std::isfinite(*options.scale)),
          "{}: scale is {}, expected a finite number above 0", function, options.scale.value_or(0.0f));
  require(inputs.q_far.absent() == inputs.k_far.absent(), "{}: {} is given without {}, expected both or neither", function,
          inputs.q_far.absent() ? "k_far" : "q_far", inputs.q_far.absent() ? "q_far" : "k_far");
  for (const auto& [name, view] : {std::pair{"q", inputs.q}, {"k", inputs.k}}) {
    require_dtype(function, name, view, {DType::f32, DType::bf16});
  }
  require(inputs.k.extent(3) >= 1, "{}: k has dim 0, expected at least 1", function);
  require_shape(function, "k", inputs.k, {batch, length, groups, inputs.k.extent(3)}, "heads of the feature map");
  require_shape(function, "q", inputs.q, {batch, length, heads, inputs.k.extent(3)}, "batch, length and dim of k");
  require_dtype(function, "log_scale", inputs.log_scale, {DType::f32});
  require_shape(function, "log_scale", inputs.log_scale, {heads}, "heads of q");
  if (!inputs.q_far.absent()) {
    require(inputs.q_far.extent(2) == heads, "{}: q_far has {} heads, expected {} (heads of q)", function, inputs.q_far.extent(2),
            heads);
  }
  return {.q = HybridPlan::far_queries(inputs),
          .k = HybridPlan::far_keys(inputs),
          .v = inputs.v,
          .gate_logits = inputs.gate_logits,
          .forward_out = out};
}

HybridPlan::HybridPlan(const char* function, const HybridInputs& inputs, const FeatureMap& map, const WindowState* initial,
                       View4 out, const HybridOptions& options)
    : linear(function, Reach::causal, check_hybrid(function, inputs, map, out, options), map,
             {.eps = 0.0f, .layout = options.layout, .segment = -1, .run = options.run}),
      scale_(scale_or_default(options.scale, inputs.k.extent(3))),
      exact_dim_(inputs.k.extent(3)),
      far_dim_(map.dim()),
      valid_(options.layout.valid) {
  const int64_t sequences = static_cast<int64_t>(linear.sequences.size());
  if (initial != nullptr) require_hybrid_state(function, initial->shape(), sequences, inputs, map, options);
  for (int64_t n = 0; n < sequences; ++n) {
    blocks_.push_back({.window = static_cast<size_t>(options.window),
                       .before = initial == nullptr ? 0 : static_cast<size_t>(initial->tokens(n)),
                       .length = static_cast<size_t>(linear.sequences[static_cast<size_t>(n)].keys)});
  }
  const size_t group = static_cast<size_t>(linear.heads / linear.groups);
  for (size_t i = 0; i < size(); ++i) {
    heads_.insert(heads_.end(), linear[i].heads, linear[i].heads + group);
    for (size_t g = 0; g < group; ++g) {
      far_.push_back({.log_scale = static_cast<float>(
                          inputs.log_scale(linear.head_of(i) * static_cast<int64_t>(group) + static_cast<int64_t>(g)))});
    }
  }
  if (initial != nullptr) bring(inputs, *initial, options.layout);
}

LinearProblem HybridPlan::fresh(size_t i) const {
  LinearProblem problem = linear[i];
  problem.heads = heads_.data() + i * problem.group;
  return problem;
}

size_t HybridPlan::head_rows(size_t n) const {
  const Blocks& b = blocks_[n];
  return b.before == 0 ? 0 : std::min(b.length, (b.first_block() + 2) * b.window - b.before);
}

int64_t HybridPlan::head_key(size_t n) const { return head_offset_[n] + static_cast<int64_t>(blocks_[n].held()); }

void HybridPlan::bring(const HybridInputs& inputs, const WindowState& initial, const Layout& layout) {
  const bool packed = linear.packed_sequences;
  for (size_t n = 0; n < blocks_.size(); ++n) {
    const int64_t rows = static_cast<int64_t>(blocks_[n].held() + head_rows(n));
    head_offset_.push_back(packed ? head_length_ : 0);
    head_length_ = packed ? head_length_ + rows : std::max(head_length_, rows);
  }
  const int64_t groups = linear.groups, value_dim = linear.value_dim;
  const size_t rows = static_cast<size_t>(linear.batch * head_length_), heads = static_cast<size_t>(groups);
  head_k_.resize(rows * heads * static_cast<size_t>(exact_dim_));
  head_v_.resize(rows * heads * static_cast<size_t>(value_dim));
  head_gates_.resize(rows * heads);
  head_far_k_.resize(initial.shape().far_dim > 0 ? rows * heads * static_cast<size_t>(far_dim_) : 0);
  head_valid_.resize(rows);
  for (size_t n = 0; n < blocks_.size(); ++n) {
    const Sequence& s = linear.sequences[n];
    const int64_t entry = static_cast<int64_t>(n), first = s.batch * head_length_ + head_offset_[n];
    const int64_t held = static_cast<int64_t>(blocks_[n].held()), slots = 2 * static_cast<int64_t>(blocks_[n].window);
    const auto copy_held = [&](WindowPart part, int64_t width, std::vector<float>& rows_out) {
      const std::span<const float> ring = initial.part(part, entry);
      for (int64_t j = 0; j < held; ++j) {
        const int64_t slot = (static_cast<int64_t>(blocks_[n].held_first()) + j) % slots;
        std::copy_n(ring.begin() + slot * width, width, rows_out.begin() + (first + j) * width);
      }
    };
    copy_held(WindowPart::keys, groups * exact_dim_, head_k_);
    copy_held(WindowPart::values, groups * value_dim, head_v_);
    copy_held(WindowPart::gates, groups, head_gates_);
    if (!head_far_k_.empty()) copy_held(WindowPart::far_keys, groups * far_dim_, head_far_k_);
    for (int64_t j = 0; j < held; ++j) {
      const int64_t slot = (static_cast<int64_t>(blocks_[n].held_first()) + j) % slots;
      head_valid_[static_cast<size_t>(first + j)] = initial.part(WindowPart::present, entry)[static_cast<size_t>(slot)] != 0.0f;
    }
    for (int64_t t = 0; t < static_cast<int64_t>(head_rows(n)); ++t) {
      const bool present = layout.valid.absent() || layout.valid(s.batch, s.first_key + t) != 0;
      const int64_t row = first + held + t;
      head_valid_[static_cast<size_t>(row)] = present;
      for (int64_t g = 0; present && g < groups; ++g) {
        const Rows k = rows_of<Rows>(inputs.k, s.batch, s.first_key + t, g),
                   v = rows_of<Rows>(inputs.v, s.batch, s.first_key + t, g);
        for (int64_t e = 0; e < exact_dim_; ++e) {
          head_k_[static_cast<size_t>((row * groups + g) * exact_dim_ + e)] = k.at(0, static_cast<size_t>(e));
        }
        for (int64_t e = 0; e < value_dim; ++e) {
          head_v_[static_cast<size_t>((row * groups + g) * value_dim + e)] = v.at(0, static_cast<size_t>(e));
        }
      }
    }
  }
}

LinearProblem HybridPlan::old(size_t i) const {
  LinearProblem problem = linear[i];
  const size_t n = static_cast<size_t>(linear.sequence_of(i));
  problem.group = 0;
  problem.dk = problem.dv = problem.dgate = {};
  if (head_length_ == 0) {
    problem.length = 0;
    return problem;
  }
  const Sequence& s = linear.sequences[n];
  const int64_t groups = linear.groups, g = linear.head_of(i), first = s.batch * head_length_ + head_offset_[n];
  const std::vector<float>& k = head_far_k_.empty() ? head_k_ : head_far_k_;
  problem.length = blocks_[n].held();
  problem.k = {k.data() + (first * groups + g) * far_dim_, DType::f32, groups * far_dim_, 1};
  problem.v = {head_v_.data() + (first * groups + g) * linear.value_dim, DType::f32, groups * linear.value_dim, 1};
  problem.gate = {head_gates_.data() + first * groups + g, DType::f32, groups, 1};
  problem.valid = head_valid_.data() + first;
  problem.valid_stride = 1;
  return problem;
}

void HybridPlan::load(size_t i, const WindowState* initial, PackedState& state) const {
  if (initial == nullptr) {
    clear_state(linear[i], state);
    return;
  }
  const int64_t n = linear.sequence_of(i);
  const size_t g = static_cast<size_t>(linear.head_of(i)), features = linear[i].map.features;
  pack_state(initial->part(WindowPart::sums, n).data() + g * features * linear[i].value_dim,
             initial->part(WindowPart::normaliser, n).data() + g * features, linear[i], state);
  state.mass = static_cast<double>(initial->part(WindowPart::mass, n)[g]);
  state.log_decay = static_cast<double>(initial->part(WindowPart::log_decay, n)[g]);
}

void HybridPlan::save(size_t i, const PackedState& packed, WindowState& state) const {
  const int64_t n = linear.sequence_of(i);
  const size_t g = static_cast<size_t>(linear.head_of(i)), features = linear[i].map.features;
  unpack_state(packed, linear[i], state.part(WindowPart::sums, n).data() + g * features * linear[i].value_dim,
               state.part(WindowPart::normaliser, n).data() + g * features);
  state.part(WindowPart::mass, n)[g] = static_cast<float>(packed.mass);
  state.part(WindowPart::log_decay, n)[g] = static_cast<float>(packed.log_decay);
}

void HybridPlan::fill_reach(size_t i, float* reach) const {
  const Blocks& b = blocks(i);
  const LinearProblem held = old(i), fresh = linear[i];
  double previous = 1, own = 1;  // gates of the block before, and of this block up to here
  for (size_t p = b.held_first(); p < b.before + b.length; ++p) {
    if (p % b.window == 0) {
      previous = own;
      own = 1;
    }
    const bool is_new = p >= b.before;
    const LinearProblem& problem = is_new ? fresh : held;
    const size_t t = is_new ? p - b.before : p - b.held_first();
    const bool present = problem.valid == nullptr || problem.valid[static_cast<int64_t>(t) * problem.valid_stride] != 0;
    if (present) own *= 1 / (1 + std::exp(-static_cast<double>(problem.gate.at(t, 0))));
    if (is_new) reach[t] = static_cast<float>(previous * own);
  }
}

std::optional<PartSequence> HybridPlan::direct_sequence(size_t n) const {
  const Sequence& s = linear.sequences[n];
  const int64_t skipped = static_cast<int64_t>(head_rows(n)), window = static_cast<int64_t>(blocks_[n].window);
  if (skipped == s.keys) return std::nullopt;
  const int64_t lead = skipped == 0 ? 0 : window;  // the block before is whole, and in the caller's views
  const size_t queries = static_cast<size_t>(s.keys - skipped);
  return PartSequence{s.batch, s.first_query + skipped, s.first_key + skipped - lead,
                      Visibility::recent(queries, queries + static_cast<size_t>(lead), window, 1, 0)};
}

SoftmaxPart HybridPlan::direct_part(const HybridInputs& inputs, const Workers& workers) const {
  SoftmaxPart part{.q = inputs.q,
                   .k = inputs.k,
                   .v = inputs.v,
                   .scale = scale_,
                   .valid = valid_,
                   .query_valid = valid_,
                   .sequences = {},
                   .workers = workers};
  for (size_t n = 0; n < blocks_.size(); ++n) {
    if (const std::optional<PartSequence> s = direct_sequence(n)) part.sequences.push_back(*s);
  }
  return part;
}

SoftmaxPart HybridPlan::head_part(const HybridInputs& inputs, const Workers& workers) const {
  SoftmaxPart part{.q = inputs.q,
                   .k = head_keys(),
                   .v = head_values(),
                   .scale = scale_,
                   .valid = View2(head_valid_.data(), {linear.batch, head_length_}),
                   .query_valid = valid_,
                   .sequences = {},
                   .workers = workers};
  for (size_t n = 0; n < blocks_.size(); ++n) {
    const size_t rows = head_rows(n), held = blocks_[n].held();
    if (rows == 0) continue;
    part.sequences.push_back({linear.sequences[n].batch, linear.sequences[n].first_query, head_offset_[n],
                              Visibility::recent(rows, rows + held, static_cast<int64_t>(blocks_[n].window), 1, 0)});
  }
  return part;
}

}  // namespace raffia
