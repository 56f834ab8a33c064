// LARA: two uses of the blocked softmax kernel, and two tiny softmaxes for where samples are drawn and what they weigh.
//
//   pass 1   samples over keys     logits w_s . k' - |k'|^2 / 2       ->  f_s, log z_s
//   weights  samples over means    logits w_s . mu - |mu|^2 / 2       ->  b_s, their logsumexp
//   pass 2   queries over samples  logits w_s . q' + log z_s - b_s    ->  out
//   qk_mixed: query means over key means, logits qbar . kbar + log|P|  ->  what is added to qbar
//
// x' = root x: the kernel scales q and k, samples and means are kept scaled. The tiny ones are computed in double: an error of b
// or mu is an error of every output, and their logits are the largest of all. Gradients run through all four as parts, backwards.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/scratch.h"
#include "core/trace.h"
#include "estimators/shared/chunk_means.h"
#include "estimators/shared/qkv.h"
#include "estimators/shared/softmax_part.h"
#include "raffia/lara.h"

namespace raffia {

using namespace internal;
namespace {

// A sequence that has keys and queries that count, and where its samples and means lie.
struct SampledSequence {
  size_t number;  // in the list of all sequences
  Sequence tokens;
  int64_t first_sample, first_mean;
};

struct LaraPlan {
  LaraPlan(const char* function, View4 q, View4 k, View4 v, const LaraOptions& options)
      : problem(function, q, k, v, options.layout, options.scale, options.run),
        workers(options.run),
        samples(options.samples),
        per_proposal(options.samples_per_proposal),
        proposals(options.proposals) {
    require(samples >= 1 && samples <= kMaxSamples, "{}: samples is {}, expected 1 to {}", function, samples, kMaxSamples);
    require(per_proposal >= 1 && samples % per_proposal == 0, "{}: samples_per_proposal is {}, expected a divisor of samples, {}",
            function, per_proposal, samples);
    require(options.weights != SampleWeights::mis_opt || proposals != Proposals::standard,
            "{}: weights is mis-opt with standard proposals, expected proposals that have means", function);
    require(std::isfinite(options.mis_opt_strength), "{}: mis_opt_strength is {}, expected a finite number", function,
            options.mis_opt_strength);
    chunks = samples / per_proposal;
    for (size_t n = 0; n < problem.sequences.size(); ++n) add_sequence(static_cast<int64_t>(n), problem.sequences[n]);
  }

  bool has_means() const { return proposals != Proposals::standard; }
  int64_t group() const { return problem.heads / problem.groups; }

  // One softmax of the samples, means or queries of every sequence over others.
  template <class Of>
  SoftmaxPart part(View4 q, View4 k, View4 v, float scale, View3 key_bias, const Of& sequence_of) const {
    SoftmaxPart part{.q = q, .k = k, .v = v, .scale = scale, .key_bias = key_bias, .sequences = {}, .workers = workers};
    for (const SampledSequence& s : sequences) part.sequences.push_back(sequence_of(s));
    return part;
  }

  Qkv problem;
  Workers workers;
  int64_t samples, per_proposal, chunks = 0;
  Proposals proposals;
  std::vector<SampledSequence> sequences;
  std::vector<ChunkedSequence> query_chunks, key_chunks;  // of the same sequences, where there are means
  std::vector<TokenSpan> key_spans;

 private:
  static constexpr int64_t kMaxSamples = int64_t{1} << 24;

  void add_sequence(int64_t n, const Sequence& s) {
    const KeyMask keys = problem.key_mask(s), queries = problem.self ? keys : KeyMask{};
    std::vector<TokenChunk> of_queries = equal_shares(queries, s.queries, chunks), of_keys = equal_shares(keys, s.keys, chunks);
    if (of_queries.empty() || of_keys.empty()) return;
    const int64_t place = problem.packed ? n : 0;
    sequences.push_back({static_cast<size_t>(n), s, place * samples, place * chunks});
    key_spans.push_back({s.batch, s.first_key, s.keys, keys});
    if (!has_means()) return;
    query_chunks.push_back({s.batch, s.first_query, place * chunks, queries, std::move(of_queries)});
    key_chunks.push_back({s.batch, s.first_key, place * chunks, keys, std::move(of_keys)});
  }
};

Visibility all(int64_t queries, int64_t keys) { return Visibility::all(static_cast<size_t>(queries), static_cast<size_t>(keys)); }

// What the passes hand on to each other and to the backward pass: the record.
struct LaraBuffers {
  LaraBuffers(const LaraPlan& plan, float* memory) {
    const Qkv& p = plan.problem;
    const int64_t entries = p.packed ? 1 : p.batch, each = p.packed ? static_cast<int64_t>(p.sequences.size()) : 1;
    const int64_t sample_rows = each * plan.samples, mean_rows = plan.has_means() ? each * plan.chunks : 0;
    Pieces pieces(memory);
    const auto rows = [&](const Extents<4>& shape) { return MutView4(pieces.take(MutView4(memory, shape).size()), shape); };
    const auto numbers = [&](const Extents<3>& shape) { return MutView3(pieces.take(MutView3(memory, shape).size()), shape); };
    w = rows({entries, sample_rows, p.heads, p.dim});
    f = rows({entries, sample_rows, p.heads, p.value_dim});
    log_z = numbers({entries, sample_rows, p.heads});
    mixture = numbers({entries, sample_rows, p.heads});
    weight = numbers({entries, sample_rows, p.heads});
    key_norm = numbers({p.batch, p.key_length, p.groups});
    logsumexp = numbers({p.batch, p.query_length, p.heads});
    mu = rows({entries, mean_rows, p.heads, p.dim});
    mu_norm = numbers({entries, mean_rows, p.heads});
    q_mean = rows({entries, mean_rows, p.heads, p.dim});
    k_mean = rows({entries, mean_rows, p.groups, p.dim});
    const int64_t mixed_rows = plan.proposals == Proposals::qk_mixed ? mean_rows : 0;
    mixed = rows({entries, mixed_rows, p.heads, p.dim});
    mixed_logsumexp = numbers({entries, mixed_rows, p.heads});
    log_count = numbers({entries, mixed_rows, p.groups});
    size = pieces.taken();
  }

  MutView4 w, f;                    // [.., S, H, D], [.., S, H, V]
  MutView3 log_z, mixture, weight;  // [.., S, H]: log z, b, log z - b
  MutView3 key_norm;                // [B, Tk, G]: -|k'|^2 / 2
  MutView3 logsumexp;               // [B, Tq, H], of pass 2
  MutView4 mu, q_mean, k_mean;      // [.., C, H, D], and G heads of k
  MutView3 mu_norm;                 // [.., C, H]: -|mu|^2 / 2
  MutView4 mixed;                   // [.., C, H, D], qk_mixed: what is added to q_mean
  MutView3 mixed_logsumexp, log_count;
  int64_t size = 0;
};

SoftmaxPart samples_over_keys(const LaraPlan& plan, View4 k, View4 v, const LaraBuffers& buffers) {
  SoftmaxPart part = plan.part(buffers.w, k, v, plan.problem.root, buffers.key_norm, [&](const SampledSequence& s) {
    return PartSequence{s.tokens.batch, s.first_sample, s.tokens.first_key, all(plan.samples, s.tokens.keys)};
  });
  part.valid = plan.problem.valid;
  return part;
}

SoftmaxPart samples_over_means(const LaraPlan& plan, View4 nothing, const LaraBuffers& buffers) {
  return plan.part(buffers.w, buffers.mu, nothing, 1, buffers.mu_norm, [&](const SampledSequence& s) {
    return PartSequence{s.tokens.batch, s.first_sample, s.first_mean, all(plan.samples, plan.chunks)};
  });
}

SoftmaxPart queries_over_samples(const LaraPlan& plan, View4 q, const LaraBuffers& buffers) {
  SoftmaxPart part = plan.part(q, buffers.w, buffers.f, plan.problem.root, buffers.weight, [&](const SampledSequence& s) {
    return PartSequence{s.tokens.batch, s.tokens.first_query, s.first_sample, all(s.tokens.queries, plan.samples)};
  });
  if (plan.problem.self) part.query_valid = plan.problem.valid;
  return part;
}

SoftmaxPart means_over_means(const LaraPlan& plan, const LaraBuffers& buffers) {
  return plan.part(buffers.q_mean, buffers.k_mean, buffers.k_mean, 1, buffers.log_count, [&](const SampledSequence& s) {
    return PartSequence{s.tokens.batch, s.first_mean, s.first_mean, all(plan.chunks, plan.chunks)};
  });
}

float& number(const MutView3& view, int64_t b, int64_t t, int64_t h) {
  return static_cast<float*>(view.data())[view.offset(b, t, h)];
}

// body(number of a sequence that has samples, head) in parallel.
template <class Body>
void for_heads(const LaraPlan& plan, const Body& body) {
  plan.workers.run(
      static_cast<int64_t>(plan.sequences.size()) * plan.problem.heads, Scratch(plan.workers.count(), 0),
      [&](int64_t index, float*) { body(static_cast<size_t>(index / plan.problem.heads), index % plan.problem.heads); });
}

// Within the range of fp32, so that differences are never NaN.
float to_float(double x) {
  constexpr double kLargest = static_cast<double>(std::numeric_limits<float>::max());
  return static_cast<float>(std::clamp(x, -kLargest, kLargest));
}

// Softmax of a row over the means [C, D] of one head, in double.
class OverMeans {
 public:
  OverMeans(const MutView4& means, int64_t b, int64_t first, int64_t h, int64_t chunks)
      : dim_(static_cast<size_t>(means.extent(3))), chunks_(static_cast<size_t>(chunks)), transposed_(dim_ * chunks_) {
    for (size_t c = 0; c < chunks_; ++c) {
      const float* mean = row(means, b, first + static_cast<int64_t>(c), h);
      for (size_t i = 0; i < dim_; ++i) transposed_[i * chunks_ + c] = static_cast<double>(mean[i]);
    }
  }

  // Added to the logits.
  void set_bias(std::vector<double> bias) { bias_ = std::move(bias); }

  // -|mean|^2 / 2
  std::vector<double> half_norms() const {
    std::vector<double> norms(chunks_);
    for (size_t i = 0; i < dim_; ++i) {
      for (size_t c = 0; c < chunks_; ++c) norms[c] -= transposed_[i * chunks_ + c] * transposed_[i * chunks_ + c] / 2;
    }
    return norms;
  }

  // Returns logsumexp; the probabilities of x stay for mean().
  double read(const float* x) {
    probabilities_ = bias_;
    for (size_t i = 0; i < dim_; ++i) {
      const double factor = static_cast<double>(x[i]);
      const double* column = transposed_.data() + i * chunks_;
      for (size_t c = 0; c < chunks_; ++c) probabilities_[c] += factor * column[c];
    }
    const double greatest = *std::ranges::max_element(probabilities_);
    double sum = 0;
    for (double& p : probabilities_) sum += p = std::exp(p - greatest);
    for (double& p : probabilities_) p /= sum;
    return greatest + std::log(sum);
  }

  // Component i of the mean of means.
  double mean(size_t i) const {
    double sum = 0;
    for (size_t c = 0; c < chunks_; ++c) sum += probabilities_[c] * transposed_[i * chunks_ + c];
    return sum;
  }

 private:
  size_t dim_, chunks_;
  std::vector<double> transposed_;  // [D, C]
  std::vector<double> bias_, probabilities_;
};

// qk_mixed: what query means add to themselves.
void mix_key_means(const LaraPlan& plan, const LaraBuffers& buffers) {
  for_heads(plan, [&](size_t n, int64_t h) {
    const ChunkedSequence& s = plan.key_chunks[n];
    const int64_t g = h / plan.group();
    std::vector<double> log_counts;
    for (const TokenChunk& chunk : s.chunks) {
      const int64_t c = s.first_mean + static_cast<int64_t>(log_counts.size());
      log_counts.push_back(std::log(static_cast<double>(chunk.count)));
      if (h % plan.group() == 0) number(buffers.log_count, s.batch, c, g) = static_cast<float>(log_counts.back());
    }
    OverMeans over_means(buffers.k_mean, s.batch, s.first_mean, g, plan.chunks);
    over_means.set_bias(std::move(log_counts));
    for (int64_t c = s.first_mean; c < s.first_mean + plan.chunks; ++c) {
      number(buffers.mixed_logsumexp, s.batch, c, h) = to_float(over_means.read(row(buffers.q_mean, s.batch, c, h)));
      float* mixed = row(buffers.mixed, s.batch, c, h);
      for (int64_t i = 0; i < plan.problem.dim; ++i) mixed[i] = static_cast<float>(over_means.mean(static_cast<size_t>(i)));
    }
  });
}

// Where samples are drawn: mu.
void find_means(const LaraPlan& plan, View4 q, View4 k, const LaraBuffers& buffers) {
  chunk_means(q, plan.problem.root, plan.query_chunks, buffers.q_mean, plan.workers);
  chunk_means(k, plan.problem.root, plan.key_chunks, buffers.k_mean, plan.workers);
  const bool mixes = plan.proposals == Proposals::qk_mixed;
  if (mixes) mix_key_means(plan, buffers);
  for_heads(plan, [&](size_t n, int64_t h) {
    const SampledSequence& s = plan.sequences[n];
    for (int64_t c = s.first_mean; c < s.first_mean + plan.chunks; ++c) {
      const float* of_queries = row(buffers.q_mean, s.tokens.batch, c, h);
      const float* of_keys =
          mixes ? row(buffers.mixed, s.tokens.batch, c, h) : row(buffers.k_mean, s.tokens.batch, c, h / plan.group());
      float* mu = row(buffers.mu, s.tokens.batch, c, h);
      for (int64_t i = 0; i < plan.problem.dim; ++i) mu[i] = of_queries[i] + of_keys[i];
    }
  });
}

// w_s = mu_c(s) + e_s; the noise of a key head is the same for all sequences.
void draw_samples(const LaraPlan& plan, const LaraOptions& options, const LaraBuffers& buffers) {
  const size_t dim = static_cast<size_t>(plan.problem.dim), floats = static_cast<size_t>(plan.samples) * dim;
  const Scratch noise(1, floats * static_cast<size_t>(plan.problem.groups));
  const auto noise_of = [&](int64_t g) { return std::span(noise.of(0) + static_cast<size_t>(g) * floats, floats); };
  plan.workers.run(plan.problem.groups, Scratch(plan.workers.count(), 0), [&](int64_t g, float*) {
    if (options.mean) {
      std::ranges::fill(noise_of(g), 0.0F);
    } else {
      draw_projection({options.seed, options.layer, static_cast<uint32_t>(g), options.draw}, options.draws, plan.samples,
                      plan.problem.dim, noise_of(g));
    }
  });
  for_heads(plan, [&](size_t n, int64_t h) {
    const SampledSequence& s = plan.sequences[n];
    const float* e = noise_of(h / plan.group()).data();
    for (int64_t sample = 0; sample < plan.samples; ++sample, e += dim) {
      float* w = row(buffers.w, s.tokens.batch, s.first_sample + sample, h);
      std::copy_n(e, dim, w);
      if (!plan.has_means()) continue;
      const float* mu = row(buffers.mu, s.tokens.batch, s.first_mean + sample / plan.per_proposal, h);
      for (size_t i = 0; i < dim; ++i) w[i] += mu[i];
    }
  });
}

// b_s, and the bias of pass 2. Samples per proposal are the same for all: their logarithm would change nothing.
void weigh_samples(const LaraPlan& plan, const LaraBuffers& buffers) {
  for_heads(plan, [&](size_t n, int64_t h) {
    const SampledSequence& s = plan.sequences[n];
    const int64_t b = s.tokens.batch;
    if (!plan.has_means()) {
      for (int64_t sample = s.first_sample; sample < s.first_sample + plan.samples; ++sample) {
        number(buffers.mixture, b, sample, h) = 0;
        number(buffers.weight, b, sample, h) = number(buffers.log_z, b, sample, h);
      }
      return;
    }
    OverMeans over_means(buffers.mu, b, s.first_mean, h, plan.chunks);
    std::vector<double> norms = over_means.half_norms();
    for (int64_t c = 0; c < plan.chunks; ++c) {
      number(buffers.mu_norm, b, s.first_mean + c, h) = to_float(norms[static_cast<size_t>(c)]);
    }
    over_means.set_bias(std::move(norms));
    for (int64_t sample = s.first_sample; sample < s.first_sample + plan.samples; ++sample) {
      const double mixture = over_means.read(row(buffers.w, b, sample, h));
      number(buffers.mixture, b, sample, h) = to_float(mixture);
      number(buffers.weight, b, sample, h) = to_float(static_cast<double>(number(buffers.log_z, b, sample, h)) - mixture);
    }
  });
}

double dot(const float* a, const float* b, size_t dim) {
  double sum = 0;
  for (size_t i = 0; i < dim; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// Pass 2 with weights of mis-opt, which depend on the query: plain loops, in double.
//   log a_ns - own_s + log z_s,  a_ns = max(1e-8, exp(own_s - mix_s) + eta (r_nc(s) - mean_c r_nc)),  own_s = log p_c(s)(w_s)
//   r_nc = exp(q_n . qbar_c) / the same summed over the queries that count
void read_samples_mis_opt(const LaraPlan& plan, View4 q, const LaraOptions& options, const LaraBuffers& buffers, MutView4 out) {
  const Qkv& p = plan.problem;
  const size_t dim = static_cast<size_t>(p.dim), chunks = static_cast<size_t>(plan.chunks);
  const size_t samples = static_cast<size_t>(plan.samples), per_proposal = static_cast<size_t>(plan.per_proposal);
  const Scratch sums(1, static_cast<size_t>(buffers.mu_norm.size()));
  const MutView3 log_sums(sums.of(0), buffers.mu_norm.shape());
  SoftmaxPart means_over_queries = plan.part(buffers.q_mean, q, no_values(q), p.root, {}, [&](const SampledSequence& s) {
    return PartSequence{s.tokens.batch, s.first_mean, s.tokens.first_query, all(plan.chunks, s.tokens.queries)};
  });
  if (p.self) means_over_queries.valid = p.valid;
  forward(means_over_queries, no_values(buffers.q_mean), log_sums);

  for_heads(plan, [&](size_t n, int64_t h) {
    const SampledSequence& s = plan.sequences[n];
    const int64_t b = s.tokens.batch;
    std::vector<double> own(samples), share(chunks), logit(samples), sum(static_cast<size_t>(p.value_dim));
    for (size_t sample = 0; sample < samples; ++sample) {
      const int64_t c = s.first_mean + static_cast<int64_t>(sample / per_proposal);
      own[sample] = dot(row(buffers.w, b, s.first_sample + static_cast<int64_t>(sample), h), row(buffers.mu, b, c, h), dim) +
                    static_cast<double>(number(buffers.mu_norm, b, c, h));
    }
    std::vector<float> query(dim);
    for (int64_t t = 0; t < s.tokens.queries; ++t) {
      const Rows raw = rows_of<Rows>(q, b, s.tokens.first_query + t, h);
      for (size_t i = 0; i < dim; ++i) query[i] = p.root * raw.at(0, i);
      double mean_share = 0;
      for (size_t c = 0; c < chunks; ++c) {
        const int64_t place = s.first_mean + static_cast<int64_t>(c);
        share[c] = std::exp(dot(query.data(), row(buffers.q_mean, b, place, h), dim) -
                            static_cast<double>(number(log_sums, b, place, h)));
        mean_share += share[c] / static_cast<double>(chunks);
      }
      double greatest = -HUGE_VAL;
      for (size_t sample = 0; sample < samples; ++sample) {
        const int64_t place = s.first_sample + static_cast<int64_t>(sample);
        const double balance = std::exp(own[sample] - static_cast<double>(number(buffers.mixture, b, place, h)));
        const double correction = static_cast<double>(options.mis_opt_strength) * (share[sample / per_proposal] - mean_share);
        logit[sample] = dot(query.data(), row(buffers.w, b, place, h), dim) +
                        static_cast<double>(number(buffers.log_z, b, place, h)) + std::log(std::max(1e-8, balance + correction)) -
                        own[sample];
        greatest = std::max(greatest, logit[sample]);
      }
      double total = 0;
      std::ranges::fill(sum, 0.0);
      for (size_t sample = 0; sample < samples; ++sample) {
        const double probability = std::exp(logit[sample] - greatest);
        const float* f = row(buffers.f, b, s.first_sample + static_cast<int64_t>(sample), h);
        total += probability;
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += probability * static_cast<double>(f[i]);
      }
      const MutRows to = rows_of<MutRows>(out, b, s.tokens.first_query + t, h);
      for (size_t i = 0; i < sum.size(); ++i) to.set(0, i, static_cast<float>(sum[i] / total));
    }
  });
}

// d.k_mean from d.mu; d.q_mean is added to.
void pass_to_key_means(const LaraPlan& plan, const LaraBuffers& buffers, const LaraBuffers& d) {
  const Qkv& p = plan.problem;
  if (plan.proposals == Proposals::qk_mixed) {
    // Means are keys and values here: the gradient as values goes to memory that nothing else uses.
    const Scratch memory(1, static_cast<size_t>(d.k_mean.size()));
    const MutView4 as_values(memory.of(0), d.k_mean.shape());
    backward(means_over_means(plan, buffers), buffers.mixed, buffers.mixed_logsumexp, d.mu, {},
             {.q = d.q_mean, .k = d.k_mean, .v = as_values}, {.q = true});
    for (const SampledSequence& s : plan.sequences) {
      for (int64_t c = s.first_mean; c < s.first_mean + plan.chunks; ++c) {
        float* dmean = row(d.k_mean, s.tokens.batch, c, 0);
        const float* more = row(as_values, s.tokens.batch, c, 0);
        for (int64_t i = 0; i < p.groups * p.dim; ++i) dmean[i] += more[i];
      }
    }
    return;
  }
  for (const SampledSequence& s : plan.sequences) {
    for (int64_t c = s.first_mean; c < s.first_mean + plan.chunks; ++c) {
      for (int64_t h = 0; h < p.heads; ++h) {
        const float* dmu = row(d.mu, s.tokens.batch, c, h);
        float* dmean = row(d.k_mean, s.tokens.batch, c, h / plan.group());
        for (int64_t i = 0; i < p.dim; ++i) dmean[i] = (h % plan.group() == 0 ? 0.0F : dmean[i]) + dmu[i];
      }
    }
  }
}

// Sequences that have nothing to read: all of their tokens are 0.
void zero_others(const LaraPlan& plan, MutView4 view, int64_t Sequence::*first, int64_t Sequence::*count) {
  zero_padding(view, plan.problem, count);
  size_t next = 0;
  for (size_t n = 0; n < plan.problem.sequences.size(); ++n) {
    const Sequence& s = plan.problem.sequences[n];
    if (next < plan.sequences.size() && plan.sequences[next].number == n) {
      ++next;
    } else {
      zero_tokens(view, s.batch, s.*first, s.*first + s.*count);
    }
  }
}

}  // namespace

void lara_attention(View4 q, View4 k, View4 v, MutView4 out, const LaraOptions& options, std::span<float> record) {
  constexpr const char* kName = "lara_attention";
  const LaraPlan plan(kName, q, k, v, options);
  plan.problem.check_output("out", out);
  const int64_t size = LaraBuffers(plan, nullptr).size;
  if (!record.empty()) plan.problem.check_record(record, size);
  const Trace trace(kName, "q", q, plan.samples);

  const Scratch own(1, record.empty() ? static_cast<size_t>(size) : 0);
  const LaraBuffers buffers(plan, record.empty() ? own.of(0) : record.data());
  half_norms(k, plan.problem.scale, plan.key_spans, buffers.key_norm, plan.workers);
  if (plan.has_means()) find_means(plan, q, k, buffers);
  draw_samples(plan, options, buffers);
  forward(samples_over_keys(plan, k, v, buffers), buffers.f, buffers.log_z);
  weigh_samples(plan, buffers);
  if (options.weights == SampleWeights::mis_opt) {
    read_samples_mis_opt(plan, q, options, buffers, out);
  } else {
    forward(queries_over_samples(plan, q, buffers), out, buffers.logsumexp);
  }
  zero_others(plan, out, &Sequence::first_query, &Sequence::queries);
}

int64_t lara_record_size(View4 q, View4 k, View4 v, const LaraOptions& options) {
  return LaraBuffers(LaraPlan("lara_record_size", q, k, v, options), nullptr).size;
}

void lara_attention_backward(View4 q, View4 k, View4 v, View4 out, std::span<const float> record, View4 dout,
                             const QkvGradients& gradients, const LaraOptions& options) {
  constexpr const char* kName = "lara_attention_backward";
  const LaraPlan plan(kName, q, k, v, options);
  require(options.weights == SampleWeights::balance, "{}: weights is {}, expected balance (no other weights have gradients)",
          kName, name_of(options.weights));
  plan.problem.check_output("out", out);
  plan.problem.check_output("dout", dout);
  plan.problem.check_gradients(gradients);
  // The record is only read: nothing below writes to it.
  const LaraBuffers buffers(plan, const_cast<float*>(record.data()));
  plan.problem.check_record(record, buffers.size);
  const Trace trace(kName, "q", q, plan.samples);

  const Scratch own(1, static_cast<size_t>(buffers.size));
  const LaraBuffers d(plan, own.of(0));  // the gradients of what they are named after
  const Float32Output dq(gradients.q), dk(gradients.k);
  const float root = plan.problem.root;

  const SoftmaxPart last = queries_over_samples(plan, q, buffers);
  const ForwardOutputs outputs(out, [&](MutView4 again) { forward(last, again, {}); });
  backward(last, outputs.view(), buffers.logsumexp, dout, {}, {.q = dq.view(), .k = d.w, .v = d.f, .key_bias = d.weight});
  backward(samples_over_keys(plan, k, v, buffers), buffers.f, buffers.log_z, d.f, d.weight,
           {.q = d.w, .k = dk.view(), .v = gradients.v, .key_bias = d.key_norm}, {.q = true});
  if (!dk.view().absent()) add_half_norms_backward(k, plan.problem.scale, d.key_norm, plan.key_spans, dk.view(), plan.workers);
  if (plan.has_means()) {
    for_heads(plan, [&](size_t n, int64_t h) {
      const SampledSequence& s = plan.sequences[n];
      for (int64_t sample = s.first_sample; sample < s.first_sample + plan.samples; ++sample) {
        number(d.mixture, s.tokens.batch, sample, h) = -number(d.weight, s.tokens.batch, sample, h);
      }
    });
    const MutView4 nothing = no_values(buffers.mu);
    backward(samples_over_means(plan, nothing, buffers), no_values(buffers.w), buffers.mixture, no_values(buffers.w), d.mixture,
             {.q = d.w, .k = d.mu, .key_bias = d.mu_norm}, {.q = true});
    for_heads(plan, [&](size_t n, int64_t h) {
      const SampledSequence& s = plan.sequences[n];
      const int64_t b = s.tokens.batch;
      for (int64_t c = 0; c < plan.chunks; ++c) {
        const float* mu = row(buffers.mu, b, s.first_mean + c, h);
        float* dmu = row(d.mu, b, s.first_mean + c, h);
        const float dnorm = number(d.mu_norm, b, s.first_mean + c, h);
        for (int64_t i = 0; i < plan.problem.dim; ++i) dmu[i] -= dnorm * mu[i];
        for (int64_t sample = c * plan.per_proposal; sample < (c + 1) * plan.per_proposal; ++sample) {
          const float* dw = row(d.w, b, s.first_sample + sample, h);
          for (int64_t i = 0; i < plan.problem.dim; ++i) dmu[i] += dw[i];
        }
        std::copy_n(dmu, plan.problem.dim, row(d.q_mean, b, s.first_mean + c, h));
      }
    });
    pass_to_key_means(plan, buffers, d);
    if (!dq.view().absent()) add_chunk_means_backward(d.q_mean, root, plan.query_chunks, dq.view(), plan.workers);
    if (!dk.view().absent()) add_chunk_means_backward(d.k_mean, root, plan.key_chunks, dk.view(), plan.workers);
  }
  zero_others(plan, dq.view(), &Sequence::first_query, &Sequence::queries);
  zero_others(plan, dk.view(), &Sequence::first_key, &Sequence::keys);
  zero_others(plan, gradients.v, &Sequence::first_key, &Sequence::keys);
  dq.store(plan.workers);
  dk.store(plan.workers);
}

}  // namespace raffia
