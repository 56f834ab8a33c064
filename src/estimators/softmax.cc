// Exact softmax attention: checks, the sequences of a layout, and the cutting of each op into tasks.
#include "kernels/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/check.h"
#include "core/scratch.h"
#include "core/trace.h"
#include "estimators/sequences.h"
#include "raffia/attention.h"

namespace raffia {
namespace {

// What forward and backward share: shapes that fit, and the sequences.
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
    require(options.threads >= 0, "{}: threads is {}, expected at least 0", function, options.threads);
    sequences = sequences_of(function, options.layout, batch, query_length, key_length);
    scale = options.scale ? *options.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
  }

  int64_t group() const { return heads / groups; }  // query heads per key head
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

KeyMask mask_of(const SoftmaxOptions& options, const Sequence& sequence, int64_t g) {
  KeyMask mask;
  if (!options.layout.valid.absent()) {
    const View2& valid = options.layout.valid;
    mask.valid = static_cast<const uint8_t*>(valid.data()) + valid.offset(sequence.batch, sequence.first_key);
    mask.valid_stride = valid.stride(1);
  }
  mask.bias = column_of<Rows>(options.key_bias, sequence.batch, sequence.first_key, g);
  return mask;
}

}  // namespace

void softmax_attention(View4 q, View4 k, View4 v, MutView4 out, const SoftmaxOptions& options) {
  constexpr const char* kName = "softmax_attention";
  const Problem problem(kName, q, k, v, options);
  require_dtype(kName, "out", out, {DType::f32, DType::bf16});
  require_shape(kName, "out", out, problem.out_shape(), "batch, length and heads of q, dimensions of v");
  if (!options.logsumexp.absent()) {
    require_dtype(kName, "logsumexp", options.logsumexp, {DType::f32});
    require_shape(kName, "logsumexp", options.logsumexp, problem.row_shape(), "batch, length and heads of q");
  }
  const Trace trace(kName, "q", q, static_cast<int64_t>(kKeyBlock));

  const size_t dim = static_cast<size_t>(problem.dim), value_dim = static_cast<size_t>(problem.value_dim);
  const bool masked = !options.key_bias.absent() || !options.layout.valid.absent();
  const size_t floats_per_key = dim + round_up(value_dim, 16) + (masked ? 1 : 0);
  size_t packed_keys = 0;
  for (const Sequence& s : problem.sequences) {
    packed_keys += round_up(static_cast<size_t>(s.keys), kKeyBlock) * static_cast<size_t>(problem.groups);
  }
  const Scratch packed(1, packed_keys * floats_per_key);
  float* free = packed.of(0);

  std::vector<PackTask> pack_tasks;
  std::vector<ForwardTask> tasks;
  for (const Sequence& s : problem.sequences) {
    for (int64_t g = 0; g < problem.groups; ++g) {
      PackedKeys keys{.count = static_cast<size_t>(s.keys), .dim = dim, .value_dim = value_dim};
      const size_t rows = keys.blocks() * kKeyBlock;
      keys.k = free;
      keys.v = keys.k + rows * dim;
      if (masked) keys.bias = keys.v + rows * keys.value_columns();
      free += rows * floats_per_key;
      const PackTask pack{.keys = keys,
                          .k = rows_of<Rows>(k, s.batch, s.first_key, g),
                          .v = rows_of<Rows>(v, s.batch, s.first_key, g),
                          .mask = mask_of(options, s, g)};
      for (size_t block = 0; block < keys.blocks(); ++block) {
        pack_tasks.push_back(pack);
        pack_tasks.back().block = block;
      }
      const size_t queries = static_cast<size_t>(s.queries);
      for (int64_t h = g * problem.group(); h < (g + 1) * problem.group(); ++h) {
        for (size_t first = 0; first < queries; first += kQueryBlock) {
          tasks.push_back({.keys = keys,
                           .visible = {.queries = queries, .keys = keys.count, .causal = options.causal},
                           .first = first,
                           .count = std::min(kQueryBlock, queries - first),
                           .scale = problem.scale,
                           .q = rows_of<Rows>(q, s.batch, s.first_query, h),
                           .out = rows_of<MutRows>(out, s.batch, s.first_query, h),
                           .logsumexp = column_of<MutRows>(options.logsumexp, s.batch, s.first_query, h)});
        }
      }
    }
    if (options.layout.cu_seqlens.empty()) {
      fill_rest(out, s.batch, s.queries);
      fill_rest(options.logsumexp, s.batch, s.queries, -std::numeric_limits<float>::infinity());
    }
  }
  const Workers workers(options);
  const Scratch scratch(workers.count(), std::max(pack_scratch(dim, value_dim), forward_scratch(dim, value_dim)));
  workers.run(pack_tasks, scratch, pack_keys);
  workers.run(tasks, scratch, softmax_forward);
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
    require_shape(kName, name, gradient, of.shape(), "as what it is the gradient of");
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

  const size_t dim = static_cast<size_t>(problem.dim), value_dim = static_cast<size_t>(problem.value_dim);
  const size_t floats_per_query = PackedQueries::floats_per_query(dim, value_dim);
  size_t queries = 0;
  for (const Sequence& s : problem.sequences) queries += static_cast<size_t>(s.queries * problem.heads);
  const Scratch packed(1, queries * floats_per_query);
  float* free = packed.of(0);

  std::vector<PackQueriesTask> pack_tasks;
  std::vector<BackwardHead> heads;
  heads.reserve(problem.sequences.size() * static_cast<size_t>(problem.heads));  // tasks point into it
  std::vector<BackwardTask> tasks;
  for (const Sequence& s : problem.sequences) {
    const size_t count = static_cast<size_t>(s.queries);
    for (int64_t g = 0; g < problem.groups; ++g) {
      tasks.push_back({.heads = heads.data() + heads.size(),
                       .head_count = static_cast<size_t>(problem.group()),
                       .dim = dim,
                       .value_dim = value_dim,
                       .visible = {.queries = count, .keys = static_cast<size_t>(s.keys), .causal = options.causal},
                       .scale = problem.scale,
                       .k = rows_of<Rows>(k, s.batch, s.first_key, g),
                       .v = rows_of<Rows>(v, s.batch, s.first_key, g),
                       .mask = mask_of(options, s, g),
                       .dk = rows_of<MutRows>(gradients.k, s.batch, s.first_key, g),
                       .dv = rows_of<MutRows>(gradients.v, s.batch, s.first_key, g),
                       .dbias = column_of<MutRows>(gradients.key_bias, s.batch, s.first_key, g)});
      for (int64_t h = g * problem.group(); h < (g + 1) * problem.group(); ++h) {
        const PackedQueries packed_queries(count, dim, value_dim, free);
        free += count * floats_per_query;
        heads.push_back({packed_queries, rows_of<MutRows>(gradients.q, s.batch, s.first_query, h)});
        for (size_t first = 0; first < count; first += kQueryBlock) {
          pack_tasks.push_back({.queries = packed_queries,
                                .first = first,
                                .end = std::min(first + kQueryBlock, count),
                                .scale = problem.scale,
                                .q = rows_of<Rows>(q, s.batch, s.first_query, h),
                                .out = rows_of<Rows>(out, s.batch, s.first_query, h),
                                .logsumexp = column_of<Rows>(logsumexp, s.batch, s.first_query, h),
                                .dout = rows_of<Rows>(dout, s.batch, s.first_query, h)});
        }
      }
    }
    if (options.layout.cu_seqlens.empty()) {
      fill_rest(gradients.q, s.batch, s.queries);
      fill_rest(gradients.k, s.batch, s.keys);
      fill_rest(gradients.v, s.batch, s.keys);
      fill_rest(gradients.key_bias, s.batch, s.keys, 0.0F);
    }
  }
  const Workers workers(options);
  const Scratch scratch(workers.count(), backward_scratch(dim, value_dim));
  workers.run(pack_tasks, scratch, pack_queries);
  workers.run(tasks, scratch, softmax_backward);
}

void softmax_step(View3 q, View4 k_cache, View4 v_cache, std::span<const int64_t> lengths, MutView3 out,
                  const SoftmaxOptions& options) {
  constexpr const char* kName = "softmax_step";
  // The same op with one query each.
  const auto with_time = [](const auto& view) {
    using Result = std::conditional_t<std::is_same_v<std::decay_t<decltype(view)>, MutView3>, MutView4, View4>;
    return Result(view.data(), view.dtype(), {view.extent(0), 1, view.extent(1), view.extent(2)},
                  {view.stride(0), 0, view.stride(1), view.stride(2)});
  };
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
  if (!options.logsumexp.absent()) {
    require_dtype(kName, "logsumexp", options.logsumexp, {DType::f32});
    require_shape(kName, "logsumexp", options.logsumexp, problem.row_shape(), "batch and heads of q, one token");
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
    const Sequence session{.batch = b, .first_query = 0, .queries = 1, .first_key = 0, .keys = static_cast<int64_t>(length)};
    const MutRows rows_out = head_rows<MutRows>(with_time(out), b);
    const MutRows rows_logsumexp =
        options.logsumexp.absent() ? MutRows{} : column_of<MutRows>(options.logsumexp.permuted({0, 2, 1}), b, 0, 0);
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
                       .mask = mask_of(options, session, 0),
                       .k_head = k_cache.stride(2),
                       .v_head = v_cache.stride(2),
                       .bias_head = options.key_bias.stride(2),
                       .partial = free});
    }
  }
  const Workers workers(options);
  const Scratch scratch(workers.count(), step_scratch(heads, dim, value_dim));
  workers.run(tasks, scratch, softmax_step_stretch);
  workers.run(combine_tasks, scratch, softmax_step_combine);
}

}  // namespace raffia
