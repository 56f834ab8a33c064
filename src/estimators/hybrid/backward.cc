// Hybrid attention, backward: the folded part first, which overwrites gradients, then the exact part, which adds to them.
//
// Queries need the states that they read: from left to right. Keys and values need the gradient of the state: from right to left.
// With h_t = phi(q_t) . dphi(q_t) and r_t = phi(k_t) . dphi(k_t), the gradient of log g_t is the sum of h_s - r_s over s >= t,
// as for RFA-Gate: every pair of a key and a later query that reads it counts once on either side.
#include <cmath>
#include <optional>

#include "core/check.h"
#include "core/trace.h"
#include "estimators/hybrid/plan.h"
#include "estimators/shared/map_sums.h"
#include "estimators/shared/qkv.h"

namespace raffia {

using namespace internal;
namespace {

void check_gradients(const char* function, const HybridInputs& inputs, const HybridGradients& gradients) {
  const auto check = [&](const char* name, const MutView4& gradient, const View4& of) {
    if (gradient.absent()) return;
    require_dtype(function, name, gradient, {DType::f32, DType::bf16});
    require_shape(function, name, gradient, of.shape(), "shape of the input");
  };
  check("gradients.q", gradients.q, inputs.q);
  check("gradients.k", gradients.k, inputs.k);
  check("gradients.v", gradients.v, inputs.v);
  check("gradients.q_far", gradients.q_far, inputs.q_far);
  check("gradients.k_far", gradients.k_far, inputs.k_far);
  if (!gradients.gate_logits.absent()) {
    require_dtype(function, "gradients.gate_logits", gradients.gate_logits, {DType::f32, DType::bf16});
    require_shape(function, "gradients.gate_logits", gradients.gate_logits, inputs.gate_logits.shape(), "shape of the input");
  }
  if (!gradients.log_scale.absent()) {
    require_dtype(function, "gradients.log_scale", gradients.log_scale, {DType::f32});
    require_shape(function, "gradients.log_scale", gradients.log_scale, inputs.log_scale.shape(), "heads of q");
  }
}

// Rows that nothing was folded from.
void zero_rows(const MutRows& rows, size_t begin, size_t end, size_t columns) {
  for (size_t t = begin; rows.data != nullptr && t < end; ++t) {
    for (size_t c = 0; c < columns; ++c) rows.set(t, c, 0.0f);
  }
}

void zero_view(MutView4 view) {
  for (int64_t b = 0; b < view.extent(0); ++b) fill_rest(view, b, 0);
}

void gate_gradient(const LinearProblem& problem, const float* h, const float* r) {
  double suffix = 0;
  for (size_t t = problem.length; t-- > 0;) {
    const bool present = problem.valid == nullptr || problem.valid[static_cast<int64_t>(t) * problem.valid_stride] != 0;
    double gradient = 0;
    if (present) {
      const double keep = 1 / (1 + std::exp(-static_cast<double>(problem.gate.at(t, 0))));
      suffix += static_cast<double>(h[t]) - static_cast<double>(r[t]);
      gradient = (1 - keep) * suffix - keep * static_cast<double>(r[t]);
    }
    problem.dgate.set(t, 0, static_cast<float>(gradient));
  }
}

// view [B, T, G, ..] rows [first, first + count) += rows of `added` from `row` on.
void add_rows(View4 added, int64_t b, int64_t row, int64_t count, MutView4 view, int64_t first) {
  for (int64_t t = 0; !view.absent() && t < count; ++t) {
    for (int64_t g = 0; g < view.extent(2); ++g) {
      const MutRows to = rows_of<MutRows>(view, b, first + t, g);
      const Rows from = rows_of<Rows>(added, b, row + t, g);
      for (size_t e = 0; e < static_cast<size_t>(view.extent(3)); ++e) to.set(0, e, to.readable().at(0, e) + from.at(0, e));
    }
  }
}

// `initial` null: empty.
void differentiate(const HybridInputs& inputs, const FeatureMap& map, const WindowState* initial, View4 out,
                   std::span<const float> record, View4 dout, const HybridGradients& gradients, const HybridOptions& options) {
  constexpr const char* kName = "hybrid_attention_backward";
  HybridPlan plan(kName, inputs, map, initial, out, options);
  require_dtype(kName, "dout", dout, {DType::f32, DType::bf16});
  require_shape(kName, "dout", dout, out.shape(), "as out");
  require(record.size() == static_cast<size_t>(plan.record_floats()),
          "{}: record has {} floats, expected {} (hybrid_record_size)", kName, record.size(), plan.record_floats());
  check_gradients(kName, inputs, gradients);
  MapSumSlots sums(kName, map, gradients.map, plan.size());
  const Trace trace(kName, "q", inputs.q, options.window);
  const Workers workers(options.run);

  const ForwardOutputs outputs(out, [&](MutView4 again) {
    if (initial == nullptr) {
      hybrid_attention(inputs, map, again, options);
    } else {
      WindowState state = *initial;
      hybrid_attention(inputs, map, state, again, options);
    }
  });
  const bool apart = !inputs.q_far.absent();
  const MutView4 dq = apart ? gradients.q_far : gradients.q, dk = apart ? gradients.k_far : gradients.k;
  const Extents<4> shape = out.shape();
  const size_t rows = static_cast<size_t>(shape[0] * shape[1] * shape[2]);
  const size_t group = static_cast<size_t>(plan.linear.heads / plan.linear.groups);
  std::vector<LinearProblem> problems;
  size_t tokens = 0, scratch_floats = 0;
  std::vector<size_t> token_at;
  for (size_t i = 0; i < plan.size(); ++i) {
    const Sequence& s = plan.linear.sequences[static_cast<size_t>(plan.linear.sequence_of(i))];
    const int64_t g = plan.linear.head_of(i);
    for (size_t j = 0; j < group; ++j) {
      const int64_t h = g * static_cast<int64_t>(group) + static_cast<int64_t>(j);
      QueryHead& head = plan.heads(i)[j];
      head.forward_denominators = record.data() + rows + (s.batch * shape[2] + h) * shape[1] + s.first_query;
      head.forward_out = rows_of<Rows>(outputs.view(), s.batch, s.first_query, h);
      head.dout = rows_of<Rows>(dout, s.batch, s.first_query, h);
      head.dq = rows_of<MutRows>(dq, s.batch, s.first_query, h);
    }
    LinearProblem problem = plan.fresh(i);
    problem.dk = rows_of<MutRows>(dk, s.batch, s.first_key, g);
    problem.dv = rows_of<MutRows>(gradients.v, s.batch, s.first_key, g);
    problem.dgate = column_of<MutRows>(gradients.gate_logits, s.batch, s.first_key, g);
    problem.map_sums = sums.of(i);
    problems.push_back(problem);
    token_at.push_back(tokens);
    tokens += problem.length;
    scratch_floats = std::max({scratch_floats, linear_scratch_floats(problem), far_backward_scratch_floats(problem)});
  }
  plan.linear.fill_padding(AttentionGradients{.q = dq, .k = dk, .v = gradients.v, .gate_logits = gradients.gate_logits});

  const Scratch scratch(workers.count(), scratch_floats), per_token(1, 3 * tokens);
  const StateSlots slots(plan.linear, 2 * plan.size());
  std::vector<PackedState> states = slots.all(plan.linear);
  std::vector<double> dlog_scale(plan.size() * group);
  std::vector<float> decays(plan.size(), 1.0f);  // of gradients of states, not yet applied

  const auto queries_and_states = [&](size_t i, size_t b, float* memory) {
    const Blocks& blocks = plan.blocks(i);
    float *reach = per_token.of(0) + token_at[i], *h = reach + tokens;
    const TokenRange queries = blocks.fresh(b);
    far_read_backward(problems[i], queries.begin, queries.end, reach, states[2 * i], h, dlog_scale.data() + i * group, memory);
    if (!blocks.folds_after(b)) return;
    const TokenRange old = blocks.old(b - 1), keys = blocks.fresh(b - 1);
    if (old.size() > 0) fold(plan.old(i), old.begin, old.end, states[2 * i], memory);
    if (keys.size() > 0) fold(problems[i], keys.begin, keys.end, states[2 * i], memory);
  };
  const auto keys_and_gradients = [&](size_t i, size_t b, float* memory) {
    const Blocks& blocks = plan.blocks(i);
    float *reach = per_token.of(0) + token_at[i], *r = reach + 2 * tokens;
    PackedState& gradient = states[2 * i + 1];
    if (blocks.folds_after(b)) {
      const TokenRange old = blocks.old(b - 1), keys = blocks.fresh(b - 1);
      if (keys.size() > 0) far_fold_backward(problems[i], keys.begin, keys.end, gradient, decays[i], r, memory);
      const LinearProblem held = plan.old(i);
      for (size_t t = old.begin; t < old.end; ++t) {
        if (held.valid[t] != 0) decays[i] /= 1.0f + std::exp(-held.gate.at(t, 0));
      }
    }
    const TokenRange queries = blocks.fresh(b);
    far_read_gradient(problems[i], queries.begin, queries.end, reach, decays[i], gradient, memory);
    decays[i] = 1;
  };

  // Heads of one sequence go through it together, about kBlock tokens at a time: their rows lie side by side.
  const std::vector<Bundle> bundles = bundle_heads(plan.linear, causal_segments(plan.linear, {.segment = -1}), workers.count());
  workers.run(bundles, scratch, [&](const Bundle& bundle, float* memory) {
    const Blocks& blocks = plan.blocks(bundle.first);
    const size_t turn = std::max<size_t>(1, kBlock / blocks.window), first = blocks.first_block(), end = blocks.end_block();
    for (size_t i = bundle.first; i < bundle.end; ++i) {
      plan.load(i, initial, states[2 * i]);
      clear_state(problems[i], states[2 * i + 1]);
      plan.fill_reach(i, per_token.of(0) + token_at[i]);
    }
    for (size_t begin = first; begin < end; begin += turn) {
      for (size_t i = bundle.first; i < bundle.end; ++i) {
        for (size_t b = begin; b < std::min(begin + turn, end); ++b) queries_and_states(i, b, memory);
      }
    }
    for (size_t turns = (end - first + turn - 1) / turn; turns-- > 0;) {
      const size_t begin = first + turns * turn;
      for (size_t i = bundle.first; i < bundle.end; ++i) {
        for (size_t b = std::min(begin + turn, end); b-- > begin;) keys_and_gradients(i, b, memory);
      }
    }
    for (size_t i = bundle.first; i < bundle.end; ++i) {
      const LinearProblem& problem = problems[i];
      const float* h = per_token.of(0) + token_at[i] + tokens;
      float* r = per_token.of(0) + token_at[i] + 2 * tokens;
      const size_t folded_end = end > first && blocks.folds_after(end - 1)       ? blocks.fresh(end - 2).end
                                : end > first + 1 && blocks.folds_after(end - 2) ? blocks.fresh(end - 3).end
                                                                                 : 0;
      std::fill(r + folded_end, r + problem.length, 0.0f);
      zero_rows(problem.dk, folded_end, problem.length, problem.map.dim);
      zero_rows(problem.dv, folded_end, problem.length, problem.value_dim);
      if (problem.dgate.data != nullptr) gate_gradient(problem, h, r);
    }
  });
  for (size_t i = 0; i < plan.size(); ++i) {
    sums.add(i, plan.linear.head_of(i));
    for (size_t j = 0; j < group && !gradients.log_scale.absent(); ++j) {
      const int64_t h = plan.linear.head_of(i) * static_cast<int64_t>(group) + static_cast<int64_t>(j);
      gradients.log_scale.set(gradients.log_scale(h) + dlog_scale[i * group + j], h);
    }
  }

  if (apart) {
    zero_view(gradients.q);
    zero_view(gradients.k);
  }
  const View3 logsumexp(record.data(), {shape[0], shape[1], shape[2]});
  const Additions additions{.q = true, .k = true};
  backward(plan.direct_part(inputs, workers), outputs.view(), logsumexp, dout, {},
           {.q = gradients.q, .k = gradients.k, .v = gradients.v}, additions);
  const SoftmaxPart part = plan.head_part(inputs, workers);
  if (part.sequences.empty()) return;
  std::vector<float> dk_head(static_cast<size_t>(part.k.size())), dv_head(static_cast<size_t>(part.v.size()));
  const MutView4 dk_view(dk_head.data(), part.k.shape()), dv_view(dv_head.data(), part.v.shape());
  backward(part, outputs.view(), logsumexp, dout, {}, {.q = gradients.q, .k = dk_view, .v = dv_view}, additions);
  for (size_t n = 0; n < plan.linear.sequences.size(); ++n) {
    const Sequence& s = plan.linear.sequences[n];
    const int64_t count = static_cast<int64_t>(plan.head_rows(n));
    add_rows(dk_view, s.batch, plan.head_key(n), count, gradients.k, s.first_key);
    add_rows(dv_view, s.batch, plan.head_key(n), count, gradients.v, s.first_key);
  }
}

}  // namespace

void hybrid_attention_backward(const HybridInputs& inputs, const FeatureMap& map, const WindowState& initial, View4 out,
                               std::span<const float> record, View4 dout, const HybridGradients& gradients,
                               const HybridOptions& options) {
  differentiate(inputs, map, &initial, out, record, dout, gradients, options);
}

void hybrid_attention_backward(const HybridInputs& inputs, const FeatureMap& map, View4 out, std::span<const float> record,
                               View4 dout, const HybridGradients& gradients, const HybridOptions& options) {
  differentiate(inputs, map, nullptr, out, record, dout, gradients, options);
}

}  // namespace raffia
