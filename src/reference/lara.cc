// LARA: samples drawn around the means of chunks and shared by all queries.
//
//   pass 1   log z_s, f_s: sample w_s over the keys
//   weights  b_s = logsumexp_c (w_s . mu_c - |mu_c|^2 / 2) + log of samples per proposal
//   pass 2   out_n = sum_s softmax_s(w_s . q_n - |q_n|^2 / 2 + log z_s - b_s) f_s
#include "raffia/reference_sampled.h"
#include "reference/rows.h"
#include "reference/terms.h"

namespace raffia::reference {

using namespace internal;
using namespace internal::twins;

namespace {

// The tokens of chunk c. With fewer tokens than chunks, some tokens are in several chunks.
Rows chunk_of(const Rows& x, size_t c, size_t chunks) {
  const size_t begin = c * x.size() / chunks, end = std::max(begin + 1, (c + 1) * x.size() / chunks);
  return {x.begin() + static_cast<std::ptrdiff_t>(begin), x.begin() + static_cast<std::ptrdiff_t>(end)};
}

// Where samples are drawn: the means of the queries and keys that take part.
struct Means {
  Rows q, mu;  // [C, D]
};

Means means_of(const Rows& q, const Rows& k, const LaraOptions& options) {
  const size_t chunks = static_cast<size_t>(options.samples / options.samples_per_proposal);
  Means means;
  Rows k_mean;
  std::vector<double> keys;  // |P_c|
  for (size_t c = 0; c < chunks; ++c) {
    means.q.push_back(mean_of(chunk_of(q, c, chunks)));
    k_mean.push_back(mean_of(chunk_of(k, c, chunks)));
    keys.push_back(static_cast<double>(chunk_of(k, c, chunks).size()));
  }
  for (size_t c = 0; c < chunks; ++c) {
    if (options.proposals == Proposals::standard) means.mu.emplace_back(q[0].size());
    if (options.proposals == Proposals::chunk_mean) means.mu.push_back(plus(means.q[c], k_mean[c]));
    if (options.proposals == Proposals::qk_mixed) {
      Softmax over_chunks(k[0].size());
      for (size_t other = 0; other < chunks; ++other) {
        over_chunks.add(dot(means.q[c], k_mean[other]) + std::log(keys[other]), k_mean[other]);
      }
      means.mu.push_back(plus(means.q[c], over_chunks.mean()));
    }
  }
  return means;
}

// w_s = mu_c(s) + e_s
Rows draw_samples(const Rows& mu, const LaraOptions& options, int64_t g) {
  const Rows noise = draw_rows(options, g, options.samples, static_cast<int64_t>(mu[0].size()));
  Rows w;
  for (size_t s = 0; s < noise.size(); ++s) {
    const std::vector<double>& mean = mu[s / static_cast<size_t>(options.samples_per_proposal)];
    w.push_back(options.mean ? mean : plus(mean, noise[s]));
  }
  return w;
}

// log of p_c(w_s) / N(w_s; 0, I), [S, C]
Rows log_proposals(const Rows& w, const Rows& mu) {
  Rows log_p;
  for (const std::vector<double>& w_s : w) {
    log_p.emplace_back();
    for (const std::vector<double>& mu_c : mu) log_p.back().push_back(log_xi(mu_c, w_s));
  }
  return log_p;
}

// mis-opt: the balance heuristic, corrected by how much of chunk c's queries query n is.
//   a_ns = max(1e-8, p_c(s)(w_s) / sum_c p_c(w_s) + eta (r_nc(s) - mean_c r_nc)),  r_nc = exp(q_n . qbar_c) / sum_n' of the same
//   log a_ns - log p_c(s)(w_s)
std::vector<double> mis_opt_weights(const Rows& log_p, const Rows& q, std::span<const double> q_n, const Means& means,
                                    const LaraOptions& options) {
  std::vector<double> r;
  for (const std::vector<double>& q_mean : means.q) {
    Softmax over_queries(0);
    for (const std::vector<double>& other : q) over_queries.add(dot(other, q_mean));
    r.push_back(std::exp(dot(q_n, q_mean) - over_queries.log_sum()));
  }
  double r_mean = 0;
  for (double r_c : r) r_mean += r_c / static_cast<double>(r.size());

  std::vector<double> weights;
  for (size_t s = 0; s < log_p.size(); ++s) {
    const size_t c = s / static_cast<size_t>(options.samples_per_proposal);
    const double balance = std::exp(log_p[s][c] - log_sum_exp(log_p[s]));
    const double a = std::max(1e-8, balance + static_cast<double>(options.mis_opt_strength) * (r[c] - r_mean));
    weights.push_back(std::log(a) - log_p[s][c]);
  }
  return weights;
}

// The balance heuristic: -logsumexp_c log p_c(w_s)
std::vector<double> balance_weights(const Rows& log_p) {
  std::vector<double> weights;
  for (const std::vector<double>& log_p_s : log_p) weights.push_back(-log_sum_exp(log_p_s));
  return weights;
}

}  // namespace

void lara_attention(View4 q, View4 k, View4 v, MutView4 out, const LaraOptions& options, MutView3 log_sum) {
  fill(out, 0);
  fill(log_sum, -kInfinity);
  const double root = root_scale(q, options.scale);
  const int64_t group = q.extent(2) / k.extent(2);
  for (const Sequence& sequence : sequences_of(options.layout, q.extent(0), q.extent(1), k.extent(1))) {
    const int64_t b = sequence.batch;
    const std::vector<int64_t> keys = present_tokens(options.layout, b, sequence.first_key, sequence.keys);
    const std::vector<int64_t> queries = present_tokens({}, b, sequence.first_query, sequence.queries);
    const std::vector<int64_t>& counted = is_self_attention(q, k, options.layout) ? keys : queries;
    if (keys.empty() || counted.empty()) continue;
    for (int64_t h = 0; h < q.extent(2); ++h) {
      const int64_t g = h / group;
      const Rows q_rows = scaled_rows(q, b, counted, h, root), k_rows = scaled_rows(k, b, keys, g, root);
      const Means means = means_of(q_rows, k_rows, options);
      const Rows w = draw_samples(means.mu, options, g);
      const Samples samples = read_keys(w, k_rows, scaled_rows(v, b, keys, g));
      const Rows log_p = log_proposals(w, means.mu);
      const std::vector<double> balance = balance_weights(log_p);
      for (int64_t t : queries) {
        const std::vector<double> q_t = scaled_row(q, b, t, h, root);
        std::vector<double> weights = balance;
        if (options.weights == SampleWeights::mis_opt) weights = mis_opt_weights(log_p, q_rows, q_t, means, options);
        for (double& weight : weights) weight -= std::log(static_cast<double>(options.samples_per_proposal));
        const Softmax over_samples = read_samples(samples, q_t, weights);
        store_row(over_samples.mean(), out, b, t, h);
        if (!log_sum.absent()) log_sum.set(over_samples.log_sum(), b, t, h);
      }
    }
  }
}

}  // namespace raffia::reference
