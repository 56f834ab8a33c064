// Exact softmax attention: checks, the sequences of a layout, and the division of a step into tasks.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/check.h"
#include "core/scratch.h"
#include "core/trace.h"
#include "estimators/shared/qkv.h"
#include "estimators/shared/sequences.h"
#include "estimators/shared/softmax_part.h"
#include "raffia/attention.h"

namespace raffia {

using namespace internal;
namespace {

// Common to forward and backward: checked shapes, and the sequences.
struct Problem {
  Problem(const char* function, View4 q, View4 k, View4 v, const SoftmaxOptions& options)
      : batch(q.extent(0)),
        query_length(q.extent(1)),
        heads(q.extent(2)),
        dim(q.extent(3)),
        key_length(k.extent(1)),
        groups(k.extent(2)),
        value_dim(v.extent(3)) {
    for (const auto& [name, view] : {std::pair{"q", q}, {"k", k}, {"v", v}}) {
      require_dtype(function, name, view, {DType::f32, DType::bf16});
    }
    require_shape(function, "q", q, q.shape(), "any");
    require(dim >= 1, "{}: q has shape {}, expected at least one dimension", function, to_string(q.shape().data(), 4));
    require_shape(function, "k", k, {batch, key_length, groups, dim}, "batch and dimensions of q");
    require(groups >= 1 && heads % groups == 0, "{}: k has {} heads, expected a divisor of the {} heads of q", function, groups,
            heads);
    require_shape(function, "v", v, {batch, key_length, groups, value_dim}, "batch of q, length and heads of k");
    if (!options.key_bias.absent()) {
      require_dtype(function, "key_bias", options.key_bias, {DType::f32, DType::bf16});
      require_shape(function, "key_bias", options.key_bias, {batch, key_length, groups}, "batch, length and heads of k");
    }
    if (!options.layout.valid.absent()) {
      require_dtype(function, "layout.valid", options.layout.valid, {DType::u8});
      require_shape(function, "layout.valid", options.layout.valid, {batch, key_length}, "batch and length of k");
    }
    require(options.run.threads >= 0, "{}: threads is {}, expected at least 0", function, options.run.threads);
    sequences = sequences_of(function, options.layout, batch, query_length, key_length);
    scale = scale_or_default(options.scale, dim);
    require(options.window >= 0, "{}: window is {}, expected at least 0", function, options.window);
    require(options.before >= 0 && (options.before == 0 || (options.window > 0 && options.causal)),
            "{}: before is {}, expected 0 or more, and 0 unless there is a window and causal is set", function, options.before);
    for (const Sequence& s : sequences) {
      require(options.window == 0 || s.queries == s.keys,
              "{}: window is {} with {} queries and {} keys, expected as many queries as keys", function, options.window,
              s.queries, s.keys);
    }
  }

  SoftmaxPart part(View4 q, View4 k, View4 v, const SoftmaxOptions& options) const {
    SoftmaxPart part{.q = q,
                     .k = k,
                     .v = v,
                     .scale = scale,
                     .key_bias = options.key_bias,
                     .valid = options.layout.valid,
                     .workers = Workers(options.run)};
    for (const Sequence& s : sequences) {
      const size_t queries = static_cast<size_t>(s.queries), keys = static_cast<size_t>(s.keys);
      const int64_t before = std::min(options.before, s.keys);  // there are no more windows
      const Visibility visible = options.window == 0
                                     ? (options.causal ? Visibility::causal(queries, keys) : Visibility::all(queries, keys))
                                 : options.causal ? Visibility::recent(queries, keys, options.window, before, 0)
                                                  : Visibility::own(queries, keys, options.window, options.window);
      part.sequences.push_back({s.batch, s.first_query, s.first_key, visible});
    }
    return part;
  }

  Extents<4> out_shape() const { return {batch, query_length, heads, value_dim}; }
  Extents<3> row_shape() const { return {batch, query_length, heads}; }

  int64_t batch, query_length, heads, dim, key_length, groups, value_dim;
  float scale = 1;
  std::vector<Sequence> sequences;
};

// The heads of the one token of batch entry `b`, as rows.
template <class AnyRows, class AnyView>
AnyRows head_rows(const AnyView& view, int64_t b) {
  return rows_of<AnyRows>(view.permuted({0, 2, 1, 3}), b, 0, 0);
}

}  // namespace

void softmax_attention(View4 q, View4 k, View4 v, MutView4 out, const SoftmaxOptions& options, MutView3 logsumexp) {
  constexpr const char* kName = "softmax_attention";
  const Problem problem(kName, q, k, v, options);
  require_dtype(kName, "out", out, {DType::f32, DType::bf16});
  require_shape(kName, "out", out, problem.out_shape(), "batch, length and heads of q, dimensions of v");
  if (!logsumexp.absent()) {
    require_dtype(kName, "logsumexp", logsumexp, {DType::f32});
    require_shape(kName, "logsumexp", logsumexp, problem.row_shape(), "batch, length and heads of q");
  }
  const Trace trace(kName, "q", q, static_cast<int64_t>(kKeyBlock));

  forward(problem.part(q, k, v, options), out, logsumexp);
  for (const Sequence& s : problem.sequences) {
    if (!options.layout.cu_seqlens.empty()) break;
    fill_rest(out, s.batch, s.queries);
    fill_rest(logsumexp, s.batch, s.queries, -std::numeric_limits<float>::infinity());
  }
}

void softmax_attention_backward(View4 q, View4 k, View4 v, View4 out, View3 logsumexp, View4 dout,
                                const SoftmaxGradients& gradients, const SoftmaxOptions& options) {
  constexpr const char* kName = "softmax_attention_backward";
  const Problem problem(kName, q, k, v, options);
  for (const auto& [name, view] : {std::pair{"out", out}, {"dout", dout}}) {
    require_dtype(kName, name, view, {DType::f32, DType::bf16});
    require_shape(kName, name, view, problem.out_shape(), "batch, length and heads of q, dimensions of v");
  }
  require_dtype(kName, "logsumexp", logsumexp, {DType::f32});
  require_shape(kName, "logsumexp", logsumexp, problem.row_shape(), "batch, length and heads of q");
  const auto check_gradient = [&](const char* name, MutView4 gradient, View4 of) {
    if (gradient.absent()) return;
    require_dtype(kName, name, gradient, {DType::f32, DType::bf16});
    require_shape(kName, name, gradient, of.shape(), "shape of the input");
  };
  check_gradient("gradients.q", gradients.q, q);
  check_gradient("gradients.k", gradients.k, k);
  check_gradient("gradients.v", gradients.v, v);
  if (!gradients.key_bias.absent()) {
    require_dtype(kName, "gradients.key_bias", gradients.key_bias, {DType::f32, DType::bf16});
    require_shape(kName, "gradients.key_bias", gradients.key_bias, {problem.batch, problem.key_length, problem.groups},
                  "batch, length and heads of k");
  }
  const Trace trace(kName, "q", q, static_cast<int64_t>(kBackwardKeys));

  const SoftmaxPart part = problem.part(q, k, v, options);
  const ForwardOutputs outputs(out, [&](MutView4 again) { forward(part, again, {}); });
  backward(part, outputs.view(), logsumexp, dout, {}, gradients);
  for (const Sequence& s : problem.sequences) {
    if (!options.layout.cu_seqlens.empty()) break;
    fill_rest(gradients.q, s.batch, s.queries);
    fill_rest(gradients.k, s.batch, s.keys);
    fill_rest(gradients.v, s.batch, s.keys);
    fill_rest(gradients.key_bias, s.batch, s.keys, 0.0F);
  }
}

void softmax_step(View3 q, View4 k_cache, View4 v_cache, std::span<const int64_t> lengths, MutView3 out,
                  const SoftmaxOptions& options, MutView3 logsumexp) {
  constexpr const char* kName = "softmax_step";
  require(options.layout.lengths.empty() && options.layout.cu_seqlens.empty() && options.layout.cu_seqlens_k.empty(),
          "{}: options.layout holds lengths or cu_seqlens, expected the argument lengths alone", kName);
  const Problem problem(kName, with_time(q), k_cache, v_cache, options);
  require_dtype(kName, "out", out, {DType::f32, DType::bf16});
  require_shape(kName, "out", out, {problem.batch, problem.heads, problem.value_dim},
                "batch and heads of q, dimensions of v_cache");
  require(lengths.size() == static_cast<size_t>(problem.batch), "{}: lengths has {} entries, expected {} (batch of q)", kName,
          lengths.size(), problem.batch);
  for (size_t b = 0; b < lengths.size(); ++b) {
    require(lengths[b] >= 0 && lengths[b] <= problem.key_length, "{}: lengths[{}] is {}, expected 0 to {} (capacity of k_cache)",
            kName, b, lengths[b], problem.key_length);
  }
  if (!logsumexp.absent()) {
    require_dtype(kName, "logsumexp", logsumexp, {DType::f32});
    require_shape(kName, "logsumexp", logsumexp, problem.row_shape(), "batch and heads of q, one token");
  }
  const Trace trace(kName, "q", q, static_cast<int64_t>(kStepKeys));

  const size_t heads = static_cast<size_t>(problem.heads), groups = static_cast<size_t>(problem.groups);
  const size_t dim = static_cast<size_t>(problem.dim), value_dim = static_cast<size_t>(problem.value_dim);
  size_t stretches = 0;
  for (int64_t length : lengths) stretches += (static_cast<size_t>(length) + kStepKeys - 1) / kStepKeys;
  const Scratch partials(1, stretches * StepPartial::size(heads, value_dim));
  float* free = partials.of(0);

  std::vector<StepTask> tasks;
  std::vector<CombineTask> combine_tasks;
  for (int64_t b = 0; b < problem.batch; ++b) {
    const size_t length = static_cast<size_t>(lengths[static_cast<size_t>(b)]);
    const MutRows rows_out = head_rows<MutRows>(with_time(out), b);
    const MutRows rows_logsumexp = logsumexp.absent() ? MutRows{} : column_of<MutRows>(logsumexp.permuted({0, 2, 1}), b, 0, 0);
    combine_tasks.push_back({.partials = free,
                             .stretches = (length + kStepKeys - 1) / kStepKeys,
                             .heads = heads,
                             .value_dim = value_dim,
                             .out = rows_out,
                             .logsumexp = rows_logsumexp});
    for (size_t begin = 0; begin < length; begin += kStepKeys, free += StepPartial::size(heads, value_dim)) {
      tasks.push_back({.heads = heads,
                       .groups = groups,
                       .dim = dim,
                       .value_dim = value_dim,
                       .begin = begin,
                       .end = std::min(begin + kStepKeys, length),
                       .scale = problem.scale,
                       .q = head_rows<Rows>(with_time(q), b),
                       .k = rows_of<Rows>(k_cache, b, 0, 0),
                       .v = rows_of<Rows>(v_cache, b, 0, 0),
                       .mask = mask_of(options.layout.valid, options.key_bias, b, 0, 0),
                       .k_head = k_cache.stride(2),
                       .v_head = v_cache.stride(2),
                       .bias_head = options.key_bias.stride(2),
                       .partial = free});
    }
  }
  const Workers workers(options.run);
  const Scratch scratch(workers.count(), step_scratch(heads, dim, value_dim));
  workers.run(tasks, scratch, softmax_step_stretch);
  workers.run(combine_tasks, scratch, softmax_step_combine);
}

}  // namespace raffia
