// EVA, bidirectional: four parts of the blocked softmax kernel, the last three of which form one softmax.
//
//   summaries  chunk c over its own keys          logits w_c . k' - |k'|^2 / 2   ->  beta_c
//   exact      queries over keys of their window  logits q' . k'
//   far        queries over the chunks before and after their window, logits q' . kbar_c + log|P_c|, values beta_c
//
// x' = root x: the kernel scales q and k, means are kept scaled.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/check.h"
#include "core/scratch.h"
#include "core/trace.h"
#include "estimators/shared/chunk_means.h"
#include "estimators/shared/qkv.h"
#include "estimators/shared/softmax_part.h"
#include "raffia/eva.h"

namespace raffia {

using namespace internal;
namespace {

// A sequence that has keys.
struct ChunkedTokens {
  Sequence tokens;
  int64_t length;  // up to the last key that takes part
  int64_t chunks, chunk, window;
  int64_t first_chunk;  // row of its first mean
};

struct EvaPlan {
  EvaPlan(const char* function, View4 q, View4 k, View4 v, const EvaOptions& options)
      : problem(function, q, k, v, options.layout, options.scale, options.run), workers(options.run) {
    require(options.samples >= 1, "{}: samples is {}, expected at least 1", function, options.samples);
    require(options.window >= 1, "{}: window is {}, expected at least 1", function, options.window);
    require(problem.self && problem.query_length == problem.key_length,
            "{}: there are {} queries and {} keys, or cu_seqlens_k is given; expected self attention", function,
            problem.query_length, problem.key_length);
    for (const Sequence& s : problem.sequences) max_chunks = std::max(max_chunks, std::min(options.samples, s.keys));
    for (size_t n = 0; n < problem.sequences.size(); ++n) {
      add_sequence(problem.sequences[n], problem.packed ? static_cast<int64_t>(n) * max_chunks : 0, options);
    }
  }

  int64_t group() const { return problem.heads / problem.groups; }

  template <class Of>
  SoftmaxPart part(View4 q, View4 k, View4 v, float scale, View3 key_bias, View2 valid, const Of& sequence_of) const {
    SoftmaxPart part{
        .q = q, .k = k, .v = v, .scale = scale, .key_bias = key_bias, .valid = valid, .sequences = {}, .workers = workers};
    for (const ChunkedTokens& s : sequences) part.sequences.push_back(sequence_of(s));
    return part;
  }

  Qkv problem;
  Workers workers;
  int64_t max_chunks = 0;        // of any sequence: rows that each has for its chunks
  std::vector<int64_t> lengths;  // of all sequences, up to the last key that takes part
  std::vector<ChunkedTokens> sequences;
  std::vector<ChunkedSequence> token_chunks;  // of the same sequences
  std::vector<TokenSpan> key_spans;

 private:
  void add_sequence(const Sequence& s, int64_t first_chunk, const EvaOptions& options) {
    const KeyMask mask = problem.key_mask(s);
    int64_t length = s.keys;
    while (length > 0 && !mask.takes_part(static_cast<size_t>(length - 1))) --length;
    lengths.push_back(length);
    if (length == 0) return;
    const int64_t chunk = 1 + (length - 1) / options.samples;
    const int64_t window = (std::min(options.window, s.queries) + chunk - 1) / chunk * chunk;
    std::vector<TokenChunk> chunks = equal_stretches(mask, length, chunk);
    sequences.push_back({s, length, static_cast<int64_t>(chunks.size()), chunk, window, first_chunk});
    key_spans.push_back({s.batch, s.first_key, length, mask});
    token_chunks.push_back({s.batch, s.first_key, first_chunk, mask, std::move(chunks)});
  }
};

// What the parts pass on to each other and to the backward pass: the record.
struct EvaBuffers {
  EvaBuffers(const EvaPlan& plan, float* memory) {
    const Qkv& p = plan.problem;
    const int64_t entries = p.packed ? 1 : p.batch;
    const int64_t rows = plan.max_chunks * (p.packed ? static_cast<int64_t>(p.sequences.size()) : 1);
    Pieces pieces(memory);
    const auto take4 = [&](const Extents<4>& shape) { return MutView4(pieces.take(MutView4(memory, shape).size()), shape); };
    const auto take3 = [&](const Extents<3>& shape) { return MutView3(pieces.take(MutView3(memory, shape).size()), shape); };
    w = take4({entries, rows, p.heads, p.dim});
    k_mean = take4({entries, rows, p.heads, p.dim});
    beta = take4({entries, rows, p.heads, p.value_dim});
    log_z = take3({entries, rows, p.heads});
    log_count = take3({entries, rows, p.heads});
    key_norm = take3({p.batch, p.key_length, p.groups});
    logsumexp = take3({p.batch, p.query_length, p.heads});
    size = pieces.taken();
  }

  MutView4 w, k_mean, beta;   // [.., C, H, D], [.., C, H, V]; kbar once for every query head, as beta
  MutView3 log_z, log_count;  // [.., C, H]: of the summaries, log|P_c|
  MutView3 key_norm;          // [B, T, G]: -|k'|^2 / 2
  MutView3 logsumexp;         // [B, T, H]: of the whole softmax
  int64_t size = 0;
};

size_t count(int64_t n) { return static_cast<size_t>(n); }

SoftmaxPart summaries(const EvaPlan& plan, View4 k, View4 v, const EvaBuffers& buffers) {
  return plan.part(buffers.w, k, v, plan.problem.root, buffers.key_norm, plan.problem.valid, [](const ChunkedTokens& s) {
    return PartSequence{s.tokens.batch, s.first_chunk, s.tokens.first_key,
                        Visibility::own(count(s.chunks), count(s.length), 1, s.chunk)};
  });
}

SoftmaxPart exact(const EvaPlan& plan, View4 q, View4 k, View4 v) {
  SoftmaxPart part = plan.part(q, k, v, plan.problem.scale, {}, plan.problem.valid, [](const ChunkedTokens& s) {
    return PartSequence{s.tokens.batch, s.tokens.first_query, s.tokens.first_key,
                        Visibility::own(count(s.tokens.queries), count(s.length), s.window, s.window)};
  });
  part.query_valid = plan.problem.valid;
  return part;
}

enum class Side { before, after };

SoftmaxPart far(const EvaPlan& plan, View4 q, const EvaBuffers& buffers, Side side) {
  SoftmaxPart part =
      plan.part(q, buffers.k_mean, buffers.beta, plan.problem.root, buffers.log_count, {}, [&](const ChunkedTokens& s) {
        const auto visible = side == Side::before
                                 ? Visibility::earlier(count(s.tokens.queries), count(s.chunks), s.window, s.window / s.chunk)
                                 : Visibility::later(count(s.tokens.queries), count(s.chunks), s.window, s.window / s.chunk);
        return PartSequence{s.tokens.batch, s.tokens.first_query, s.first_chunk, visible};
      });
  part.query_valid = plan.problem.valid;
  return part;
}

// The one softmax of queries, over summaries that are there.
void read(const EvaPlan& plan, View4 q, View4 k, View4 v, const EvaBuffers& buffers, MutView4 out, MutView3 logsumexp) {
  forward(exact(plan, q, k, v), out, logsumexp);
  forward(far(plan, q, buffers, Side::before), out, logsumexp, Start::resume);
  forward(far(plan, q, buffers, Side::after), out, logsumexp, Start::resume);
}

// body(chunk of the sequence, row of its mean, sequence) for all of them.
template <class Body>
void for_chunks(const EvaPlan& plan, const Body& body) {
  plan.workers.run(static_cast<int64_t>(plan.sequences.size()), Scratch(plan.workers.count(), 0), [&](int64_t n, float*) {
    const ChunkedTokens& s = plan.sequences[static_cast<size_t>(n)];
    for (int64_t c = 0; c < s.chunks; ++c) body(plan.token_chunks[static_cast<size_t>(n)].chunks[count(c)], s.first_chunk + c, s);
  });
}

// w_c, kbar_c and log|P_c|.
void find_means(const EvaPlan& plan, View4 q, View4 k, const EvaBuffers& buffers) {
  const Qkv& p = plan.problem;
  Extents<4> shape = buffers.w.shape();
  shape[2] = p.groups;
  const Scratch memory(1, static_cast<size_t>(MutView4(static_cast<float*>(nullptr), shape).size()));
  const MutView4 k_mean(memory.of(0), shape);
  chunk_means(q, p.root, plan.token_chunks, buffers.w, plan.workers);
  chunk_means(k, p.root, plan.token_chunks, k_mean, plan.workers);
  for_chunks(plan, [&](const TokenChunk& chunk, int64_t c, const ChunkedTokens& s) {
    // Chunks without tokens have a weight of 0.
    const float log_count = chunk.count == 0 ? -std::numeric_limits<float>::infinity()
                                             : static_cast<float>(std::log(static_cast<double>(chunk.count)));
    for (int64_t h = 0; h < p.heads; ++h) {
      const float* mean = row(k_mean, s.tokens.batch, c, h / plan.group());
      float* w = row(buffers.w, s.tokens.batch, c, h);
      std::copy_n(mean, p.dim, row(buffers.k_mean, s.tokens.batch, c, h));
      for (int64_t i = 0; i < p.dim; ++i) w[i] += mean[i];
      static_cast<float*>(buffers.log_count.data())[buffers.log_count.offset(s.tokens.batch, c, h)] = log_count;
    }
  });
}

// Tokens that no part writes: padding, sequences without keys, and what follows the last key.
void zero_queries(const EvaPlan& plan, MutView4 view) {
  zero_padding(view, plan.problem, &Sequence::queries);
  for (size_t n = 0; n < plan.lengths.size(); ++n) {
    const Sequence& s = plan.problem.sequences[n];
    if (plan.lengths[n] == 0) zero_tokens(view, s.batch, s.first_query, s.first_query + s.queries);
  }
}

void zero_keys(const EvaPlan& plan, MutView4 view) {
  zero_padding(view, plan.problem, &Sequence::keys);
  for (size_t n = 0; n < plan.lengths.size(); ++n) {
    const Sequence& s = plan.problem.sequences[n];
    zero_tokens(view, s.batch, s.first_key + plan.lengths[n], s.first_key + s.keys);
  }
}

}  // namespace

void eva_attention(View4 q, View4 k, View4 v, MutView4 out, const EvaOptions& options, std::span<float> record) {
  constexpr const char* kName = "eva_attention";
  const EvaPlan plan(kName, q, k, v, options);
  plan.problem.check_output("out", out);
  const int64_t size = EvaBuffers(plan, nullptr).size;
  if (!record.empty()) plan.problem.check_record(record, size);
  const Trace trace(kName, "q", q, plan.max_chunks);

  const Scratch own(1, record.empty() ? static_cast<size_t>(size) : 0);
  const EvaBuffers buffers(plan, record.empty() ? own.of(0) : record.data());
  half_norms(k, plan.problem.scale, plan.key_spans, buffers.key_norm, plan.workers);
  find_means(plan, q, k, buffers);
  forward(summaries(plan, k, v, buffers), buffers.beta, buffers.log_z);
  const Float32Output sum(out);
  read(plan, q, k, v, buffers, sum.view(), buffers.logsumexp);
  zero_queries(plan, sum.view());
  sum.store(plan.workers);
}

int64_t eva_record_size(View4 q, View4 k, View4 v, const EvaOptions& options) {
  return EvaBuffers(EvaPlan("eva_record_size", q, k, v, options), nullptr).size;
}

void eva_attention_backward(View4 q, View4 k, View4 v, View4 out, std::span<const float> record, View4 dout,
                            const QkvGradients& gradients, const EvaOptions& options) {
  constexpr const char* kName = "eva_attention_backward";
  const EvaPlan plan(kName, q, k, v, options);
  const Qkv& p = plan.problem;
  p.check_output("out", out);
  p.check_output("dout", dout);
  p.check_gradients(gradients);
  // The record is only read: nothing below writes to it.
  const EvaBuffers buffers(plan, const_cast<float*>(record.data()));
  p.check_record(record, buffers.size);
  const Trace trace(kName, "q", q, plan.max_chunks);

  const Scratch own(1, static_cast<size_t>(buffers.size));
  const EvaBuffers d(plan, own.of(0));  // the gradients of what they are named after
  const Float32Output dq(gradients.q), dk(gradients.k), dv(gradients.v);
  // d.logsumexp is no gradient: it takes the logsumexp of the second reading.
  const ForwardOutputs outputs(out, [&](MutView4 again) { read(plan, q, k, v, buffers, again, d.logsumexp); });
  backward(exact(plan, q, k, v), outputs.view(), buffers.logsumexp, dout, {}, {.q = dq.view(), .k = dk.view(), .v = dv.view()});
  for (Side side : {Side::before, Side::after}) {
    backward(far(plan, q, buffers, side), outputs.view(), buffers.logsumexp, dout, {},
             {.q = dq.view(), .k = d.k_mean, .v = d.beta}, {.q = true, .k = side == Side::after});
  }
  std::fill_n(static_cast<float*>(d.key_norm.data()), d.key_norm.size(), 0.0F);  // added to, as keys and values are
  backward(summaries(plan, k, v, buffers), buffers.beta, buffers.log_z, d.beta, {},
           {.q = d.w, .k = dk.view(), .v = dv.view(), .key_bias = d.key_norm}, {.k = true});
  if (!dq.view().absent()) add_chunk_means_backward(d.w, p.root, plan.token_chunks, dq.view(), plan.workers);
  if (!dk.view().absent()) {
    add_half_norms_backward(k, p.scale, d.key_norm, plan.key_spans, dk.view(), plan.workers);
    // kbar is a key, and a part of w, of every query head of its group: their sum takes the place of the first.
    for_chunks(plan, [&](const TokenChunk&, int64_t c, const ChunkedTokens& s) {
      for (int64_t h = 0; h < p.heads; ++h) {
        float* sum = row(d.k_mean, s.tokens.batch, c, h / plan.group());
        const float *as_key = row(d.k_mean, s.tokens.batch, c, h), *in_w = row(d.w, s.tokens.batch, c, h);
        const bool first = h % plan.group() == 0;
        for (int64_t i = 0; i < p.dim; ++i) sum[i] = (first ? 0.0F : sum[i]) + as_key[i] + in_w[i];
      }
    });
    add_chunk_means_backward(d.k_mean, p.root, plan.token_chunks, dk.view(), plan.workers);
  }
  zero_queries(plan, dq.view());
  zero_keys(plan, dk.view());
  zero_keys(plan, dv.view());
  dq.store(plan.workers);
  dk.store(plan.workers);
  dv.store(plan.workers);
}

}  // namespace raffia
