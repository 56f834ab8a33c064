#include "estimators/shared/qkv.h"

#include <cmath>
#include <utility>

#include "core/check.h"
#include "estimators/shared/softmax_part.h"

namespace raffia::internal {

float scale_or_default(std::optional<float> given, int64_t dim) {
  return given ? *given : static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
}

Qkv::Qkv(const char* function_name, View4 q, View4 k, View4 v, const Layout& layout, std::optional<float> given_scale,
         const RunOptions& run)
    : function(function_name),
      batch(q.extent(0)),
      query_length(q.extent(1)),
      heads(q.extent(2)),
      dim(q.extent(3)),
      key_length(k.extent(1)),
      groups(k.extent(2)),
      value_dim(v.extent(3)),
      valid(layout.valid),
      packed(!layout.cu_seqlens.empty()),
      self(packed ? layout.cu_seqlens_k.empty() : query_length == key_length) {
  for (const auto& [name, view] : {std::pair{"q", q}, {"k", k}, {"v", v}}) {
    require_dtype(function, name, view, {DType::f32, DType::bf16});
  }
  require_shape(function, "q", q, q.shape(), "any");
  require(dim >= 1, "{}: q has shape {}, expected at least one dimension", function, to_string(q.shape().data(), 4));
  require_shape(function, "k", k, {batch, key_length, groups, dim}, "batch and dimensions of q");
  require(groups >= 1 && heads % groups == 0, "{}: k has {} heads, expected a divisor of the {} heads of q", function, groups,
          heads);
  require_shape(function, "v", v, {batch, key_length, groups, value_dim}, "batch of q, length and heads of k");
  if (!valid.absent()) {
    require_dtype(function, "layout.valid", valid, {DType::u8});
    require_shape(function, "layout.valid", valid, {batch, key_length}, "batch and length of k");
  }
  require(run.threads >= 0, "{}: threads is {}, expected at least 0", function, run.threads);
  scale = scale_or_default(given_scale, dim);
  require(scale > 0 && std::isfinite(scale), "{}: scale is {}, expected a positive number", function, scale);
  root = static_cast<float>(std::sqrt(static_cast<double>(scale)));
  sequences = sequences_of(function, layout, batch, query_length, key_length);
}

void Qkv::check_output(const char* name, View4 out) const {
  require_dtype(function, name, out, {DType::f32, DType::bf16});
  require_shape(function, name, out, {batch, query_length, heads, value_dim}, "batch, length and heads of q, dimensions of v");
}

void Qkv::check_gradients(const QkvGradients& gradients) const {
  const auto check = [&](const char* name, MutView4 gradient, const Extents<4>& shape) {
    if (gradient.absent()) return;
    require_dtype(function, name, gradient, {DType::f32, DType::bf16});
    require_shape(function, name, gradient, shape, "shape of the input");
  };
  check("gradients.q", gradients.q, {batch, query_length, heads, dim});
  check("gradients.k", gradients.k, {batch, key_length, groups, dim});
  check("gradients.v", gradients.v, {batch, key_length, groups, value_dim});
}

void Qkv::check_record(std::span<const float> record, int64_t size) const {
  require(record.size() == static_cast<size_t>(size), "{}: record has {} floats, expected {} (its record size)", function,
          record.size(), size);
}

KeyMask Qkv::key_mask(const Sequence& s) const { return mask_of(valid, {}, s.batch, s.first_key, 0); }

void zero_tokens(MutView4 view, int64_t b, int64_t begin, int64_t end) {
  if (!view.absent() && begin < end) fill_rest(view.slice(1, 0, end), b, begin);
}

void zero_padding(MutView4 view, const Qkv& problem, int64_t Sequence::*tokens) {
  if (problem.packed || view.absent()) return;
  for (const Sequence& s : problem.sequences) zero_tokens(view, s.batch, s.*tokens, view.extent(1));
}

void zero_masked_queries(MutView4 view, const Qkv& problem) {
  if (!problem.self || problem.valid.absent()) return;
  for (const Sequence& s : problem.sequences) {
    for (int64_t i = 0; i < s.queries; ++i) {
      const bool takes_part = problem.valid(s.batch, s.first_key + i) != 0;
      if (!takes_part) zero_tokens(view, s.batch, s.first_query + i, s.first_query + i + 1);
    }
  }
}

Float32Output::Float32Output(MutView4 out)
    : out_(out), view_(out), memory_(1, out.dtype() == DType::f32 ? 0 : static_cast<size_t>(out.size())) {
  if (out.dtype() != DType::f32) view_ = MutView4(memory_.of(0), out.shape());
}

void Float32Output::store(const Workers& workers) const {
  if (out_.dtype() == DType::f32) return;
  constexpr int64_t kTokensPerTask = 64;
  const int64_t stretches = (out_.extent(1) + kTokensPerTask - 1) / kTokensPerTask;
  workers.run(out_.extent(0) * stretches, Scratch(workers.count(), 0), [&](int64_t index, float*) {
    const int64_t b = index / stretches, begin = index % stretches * kTokensPerTask;
    for (int64_t t = begin; t < std::min(begin + kTokensPerTask, out_.extent(1)); ++t) {
      for (int64_t h = 0; h < out_.extent(2); ++h) {
        const float* from = rows_of<MutRows>(view_, b, t, h).direct_row(0);
        const MutRows to = rows_of<MutRows>(out_, b, t, h);
        for (size_t i = 0; i < static_cast<size_t>(out_.extent(3)); ++i) to.set(0, i, from[i]);
      }
    }
  });
}

}  // namespace raffia::internal
