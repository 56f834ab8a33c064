// Randomized Attention: the softmax kernel draws a key for every query, then attends to all keys with the sum of both as query.
//
//   logsumexp_n of q'_n . k'_m;  m drawn from it;  w = q'_n + k'_m + e;  out_n = softmax_m(w . k'_m - |k'_m|^2 / 2) v_m
#include <algorithm>
#include <vector>

#include "core/check.h"
#include "core/scratch.h"
#include "core/trace.h"
#include "estimators/ra/drawn_keys.h"
#include "estimators/shared/chunk_means.h"
#include "estimators/shared/qkv.h"
#include "estimators/shared/softmax_part.h"
#include "kernels/noise.h"

namespace raffia {

using namespace internal;
namespace {

struct RaPlan {
  RaPlan(const char* function, View4 q, View4 k, View4 v, const RaOptions& given)
      : problem(function, q, k, v, given.layout, given.scale, given.run), workers(given.run), options(given) {
    require(options.draws >= 1, "{}: draws is {}, expected at least 1", function, options.draws);
    require(options.first_query >= 0 && options.first_query < kBlocks, "{}: first_query is {}, expected 0 to {}", function,
            options.first_query, kBlocks - 1);
    int64_t longest = 0;
    for (const Sequence& s : problem.sequences) {
      longest = std::max(longest, s.queries);
      keys.push_back({s.batch, s.first_key, s.keys, problem.key_mask(s)});
    }
    const int64_t queries = longest == 0 ? 0 : options.first_query + longest;  // counted from the beginning of the stream
    const std::optional<int64_t> blocks = checked_product({queries, options.draws, 1 + (problem.dim + 1) / 2});
    require(blocks.has_value() && *blocks <= kBlocks, "{}: draws is {} for {} queries, expected at most {} (one random stream)",
            function, options.draws, queries, kBlocks / std::max<int64_t>(queries * (1 + (problem.dim + 1) / 2), 1));
  }

  SoftmaxPart part(View4 q, View4 k, View4 v, float scale, View3 key_bias) const {
    SoftmaxPart part{.q = q,
                     .k = k,
                     .v = v,
                     .scale = scale,
                     .key_bias = key_bias,
                     .valid = problem.valid,
                     .query_valid = problem.self ? problem.valid : View2(),
                     .sequences = {},
                     .workers = workers};
    for (const Sequence& s : problem.sequences) {
      const size_t queries = static_cast<size_t>(s.queries), length = static_cast<size_t>(s.keys);
      part.sequences.push_back({s.batch, s.first_query, s.first_key,
                                options.causal ? Visibility::causal(queries, length) : Visibility::all(queries, length)});
    }
    return part;
  }

  int64_t position(int64_t i) const { return options.first_query + i; }  // of query i of a sequence in the random streams
  StreamKey stream(int64_t h) const { return {options.seed, options.layer, static_cast<uint32_t>(h), options.draw}; }
  Extents<3> row_shape() const { return {problem.batch, problem.query_length, problem.heads}; }
  size_t rows() const { return static_cast<size_t>(problem.batch * problem.query_length * problem.heads); }

  Qkv problem;
  Workers workers;
  const RaOptions& options;
  std::vector<TokenSpan> keys;  // of the sequences

 private:
  static constexpr int64_t kBlocks = int64_t{1} << 32;  // of a random stream
};

std::vector<int32_t> draw(const RaPlan& plan, View4 q, View4 k) {
  const Scratch memory(1, plan.rows() + 1);
  const MutView3 logsumexp(memory.of(0), plan.row_shape());
  const MutView4 no_out(memory.of(0), {plan.problem.batch, plan.problem.query_length, plan.problem.heads, 0});
  const SoftmaxPart part = plan.part(q, k, no_values(k), plan.problem.scale, {});
  forward(part, no_out, logsumexp);
  std::vector<int32_t> drawn(plan.rows() * static_cast<size_t>(plan.options.draws), -1);
  draw_keys(
      part, logsumexp, plan.options.draws,
      [&](int64_t i, int64_t h, int64_t t) {
        return randomized_uniform(plan.stream(h), plan.position(i), plan.options.draws, t, plan.problem.dim);
      },
      drawn);
  return drawn;
}

// body(sequence, query, head) in parallel, by stretches of queries.
template <class Body>
void for_queries(const RaPlan& plan, const Body& body) {
  constexpr int64_t kStretch = 32;
  struct Stretch {
    const Sequence* s;
    int64_t begin, end;
  };
  std::vector<Stretch> stretches;
  for (const Sequence& s : plan.problem.sequences) {
    for (int64_t i = 0; i < s.queries; i += kStretch) stretches.push_back({&s, i, std::min(i + kStretch, s.queries)});
  }
  plan.workers.run(stretches, Scratch(plan.workers.count(), 0), [&](const Stretch& stretch, float*) {
    for (int64_t i = stretch.begin; i < stretch.end; ++i) {
      for (int64_t h = 0; h < plan.problem.heads; ++h) body(*stretch.s, i, h);
    }
  });
}

int32_t drawn_key(const RaPlan& plan, const std::vector<int32_t>& drawn, const Sequence& s, int64_t i, int64_t h, int64_t t) {
  const int64_t row = (s.batch * plan.problem.query_length + s.first_query + i) * plan.problem.heads + h;
  return drawn[static_cast<size_t>(row * plan.options.draws + t)];
}

// body(columns) with the columns of one row: where they are adjacent floats, the compiler makes vector code of the body.
template <class Body>
void with_columns(const Rows& one, const Body& body) {
  if (one.direct()) return body(one.direct_row(0));
  body(RowColumns{one, 0});
}

// w of draw t: [B, Tq, H, D] fp32.
void sample(const RaPlan& plan, View4 q, View4 k, const std::vector<int32_t>& drawn, int64_t t, MutView4 w) {
  const size_t dim = static_cast<size_t>(plan.problem.dim);
  const int64_t group = plan.problem.heads / plan.problem.groups;
  for_queries(plan, [&](const Sequence& s, int64_t i, int64_t h) {
    float* to = row(w, s.batch, s.first_query + i, h);
    const int32_t m = drawn_key(plan, drawn, s, i, h, t);
    if (m < 0) {
      std::fill_n(to, dim, 0.0F);
      return;
    }
    randomized_noise(plan.stream(h), plan.position(i), plan.options.draws, t, std::span(to, dim));
    with_columns(rows_of<Rows>(q, s.batch, s.first_query + i, h), [&](const auto& query) {
      with_columns(rows_of<Rows>(k, s.batch, s.first_key + m, h / group), [&](const auto& key) {
        for (size_t e = 0; e < dim; ++e) to[e] = plan.problem.root * (query[e] + key[e]) + to[e];
      });
    });
  });
}

// to = (first ? 0 : to) + factor * from, over the tokens of all sequences.
void accumulate(const RaPlan& plan, View4 from, float factor, bool first, MutView4 to) {
  const size_t columns = static_cast<size_t>(from.extent(3));
  for_queries(plan, [&](const Sequence& s, int64_t i, int64_t h) {
    const MutRows out = rows_of<MutRows>(to, s.batch, s.first_query + i, h);
    with_columns(rows_of<Rows>(from, s.batch, s.first_query + i, h), [&](const auto& in) {
      if (out.direct()) {
        float* sum = out.direct_row(0);
        for (size_t e = 0; e < columns; ++e) sum[e] = (first ? 0.0F : sum[e]) + factor * in[e];
      } else {
        for (size_t e = 0; e < columns; ++e) out.set(0, e, (first ? 0.0F : out.readable().at(0, e)) + factor * in[e]);
      }
    });
  });
}

// Adds the gradient of w to the keys that were drawn for it, in the order of queries.
void add_to_drawn_keys(const RaPlan& plan, View4 dw, const std::vector<int32_t>& drawn, int64_t t, MutView4 dk) {
  const int64_t groups = plan.problem.groups, group = plan.problem.heads / groups;
  plan.workers.run(static_cast<int64_t>(plan.problem.sequences.size()) * groups, Scratch(plan.workers.count(), 0),
                   [&](int64_t index, float*) {
                     const Sequence& s = plan.problem.sequences[static_cast<size_t>(index / groups)];
                     const int64_t g = index % groups;
                     for (int64_t i = 0; i < s.queries; ++i) {
                       for (int64_t h = g * group; h < (g + 1) * group; ++h) {
                         const int32_t m = drawn_key(plan, drawn, s, i, h, t);
                         if (m < 0) continue;
                         const Rows from = rows_of<Rows>(dw, s.batch, s.first_query + i, h);
                         const MutRows to = rows_of<MutRows>(dk, s.batch, s.first_key + m, g);
                         for (size_t e = 0; e < static_cast<size_t>(plan.problem.dim); ++e) {
                           to.set(0, e, to.readable().at(0, e) + plan.problem.root * from.at(0, e));
                         }
                       }
                     }
                   });
}

}  // namespace

std::vector<int32_t> internal::ra_drawn_keys(View4 q, View4 k, const RaOptions& options) {
  return draw(RaPlan("ra_drawn_keys", q, k, no_values(k), options), q, k);
}

void ra_attention(View4 q, View4 k, View4 v, MutView4 out, const RaOptions& options) {
  constexpr const char* kName = "ra_attention";
  const RaPlan plan(kName, q, k, v, options);
  const Qkv& p = plan.problem;
  p.check_output("out", out);
  const Trace trace(kName, "q", q, options.draws);

  const std::vector<int32_t> drawn = draw(plan, q, k);
  const Scratch norms(1, static_cast<size_t>(p.batch * p.key_length * p.groups));
  const MutView3 key_norm(norms.of(0), {p.batch, p.key_length, p.groups});
  half_norms(k, p.scale, plan.keys, key_norm, plan.workers);

  // A single draw is written directly to the output.
  const bool several = options.draws > 1;
  const Scratch samples(1, plan.rows() * static_cast<size_t>(p.dim));
  const Scratch one(1, several ? static_cast<size_t>(out.size()) : 0);
  const MutView4 w(samples.of(0), q.shape());
  const MutView4 f = several ? MutView4(one.of(0), out.shape()) : out;
  const Float32Output sum(several ? out : MutView4());
  const SoftmaxPart part = plan.part(w, k, v, p.root, key_norm);
  for (int64_t t = 0; t < options.draws; ++t) {
    sample(plan, q, k, drawn, t, w);
    forward(part, f, {});
    if (several) accumulate(plan, f, 1.0F / static_cast<float>(options.draws), t == 0, sum.view());
  }
  if (several) sum.store(plan.workers);
  zero_padding(out, p, &Sequence::queries);
  if (options.causal) zero_masked_queries(out, p);
}

void ra_attention_backward(View4 q, View4 k, View4 v, View4 dout, const QkvGradients& gradients, const RaOptions& options) {
  constexpr const char* kName = "ra_attention_backward";
  const RaPlan plan(kName, q, k, v, options);
  const Qkv& p = plan.problem;
  p.check_output("dout", dout);
  p.check_gradients(gradients);
  const Trace trace(kName, "q", q, options.draws);

  const std::vector<int32_t> drawn = draw(plan, q, k);
  const size_t key_rows = static_cast<size_t>(p.batch * p.key_length * p.groups);
  const Scratch norms(1, 2 * key_rows);
  const MutView3 key_norm(norms.of(0), {p.batch, p.key_length, p.groups}), dkey_norm(norms.of(0) + key_rows, key_norm.shape());
  half_norms(k, p.scale, plan.keys, key_norm, plan.workers);

  const size_t q_size = static_cast<size_t>(q.size()), out_size = static_cast<size_t>(dout.size());
  const Scratch memory(1, 2 * q_size + 2 * out_size + plan.rows());
  const MutView4 w(memory.of(0), q.shape()), dw(memory.of(0) + q_size, q.shape());
  const MutView4 f(memory.of(0) + 2 * q_size, dout.shape()), df(memory.of(0) + 2 * q_size + out_size, dout.shape());
  const MutView3 log_z(memory.of(0) + 2 * (q_size + out_size), plan.row_shape());
  const Float32Output dq(gradients.q), dk(gradients.k), dv(gradients.v);
  accumulate(plan, dout, 1.0F / static_cast<float>(options.draws), true, df);

  const SoftmaxPart part = plan.part(w, k, v, p.root, key_norm);
  for (int64_t t = 0; t < options.draws; ++t) {
    sample(plan, q, k, drawn, t, w);
    forward(part, f, log_z);
    backward(part, f, log_z, df, {}, {.q = dw, .k = dk.view(), .v = dv.view(), .key_bias = dkey_norm}, {.k = t > 0});
    if (!dq.view().absent()) accumulate(plan, dw, p.root, t == 0, dq.view());
    if (!dk.view().absent()) add_to_drawn_keys(plan, dw, drawn, t, dk.view());
  }
  if (!dk.view().absent()) add_half_norms_backward(k, p.scale, dkey_norm, plan.keys, dk.view(), plan.workers);
  zero_padding(dq.view(), p, &Sequence::queries);
  zero_padding(dk.view(), p, &Sequence::keys);
  zero_padding(dv.view(), p, &Sequence::keys);
  dq.store(plan.workers);
  dk.store(plan.workers);
  dv.store(plan.workers);
}

}  // namespace raffia
