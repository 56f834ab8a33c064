// Causal LARA: exact keys in a query's own window and samples for all earlier windows, in one softmax.
//
//   logits   q_p . k_m                              of keys m <= p in window b of p
//            w_s . q_p - |q_p|^2 / 2 + l_s(b)       of samples s of windows before b
//   l_s(b) = logsumexp_m (w_s . k_m - |k_m|^2 / 2 - b_s) over keys m of windows before b, and f_s(b) averages their values,
//            b_s = log per + logsumexp_c (w_s . mu_c - |mu_c|^2 / 2) over the proposals that key m is shared among:
//            streaming  of windows up to that of m; and only samples of these windows see m
//            full       of all windows before b
#include "raffia/reference_sampled.h"
#include "reference/rows.h"
#include "reference/terms.h"

namespace raffia::reference {

using namespace internal;
using namespace internal::twins;

namespace {

struct Proposal {
  int64_t window;
  std::vector<double> mu;
  Rows samples;  // w_s = mu + e_s, [per, D]
};

// Complete windows, until the maximum number of samples is reached. Chunks without tokens propose nothing.
std::vector<Proposal> propose(const Head& head, const CausalLaraOptions& options, int64_t g) {
  const int64_t length = static_cast<int64_t>(head.k.size()), per = options.samples_per_proposal;
  const int64_t chunks = options.window / options.chunk;  // of a window
  const int64_t windows = std::min(length / options.window, options.samples / (chunks * per));
  const Rows noise = draw_rows(options, g, options.samples, static_cast<int64_t>(head.k[0].size()));
  std::vector<Proposal> proposals;
  for (int64_t c = 0; c < windows * chunks; ++c) {
    const Head part = present_part(head, static_cast<size_t>(c * options.chunk), static_cast<size_t>((c + 1) * options.chunk));
    if (part.k.empty()) continue;
    proposals.push_back({c / chunks, plus(mean_of(part.q), mean_of(part.k)), {}});
    for (int64_t s = c * per; s < (c + 1) * per; ++s) {
      proposals.back().samples.push_back(plus(proposals.back().mu, noise[static_cast<size_t>(s)]));
    }
  }
  return proposals;
}

// b_s over the proposals of windows before `end`.
double mixture(const std::vector<Proposal>& proposals, std::span<const double> w, int64_t end, int64_t per) {
  Softmax over_proposals(0);
  for (const Proposal& proposal : proposals) {
    if (proposal.window < end) over_proposals.add(log_xi(proposal.mu, w));
  }
  return over_proposals.log_sum() + std::log(static_cast<double>(per));
}

// The samples over the windows before b: `samples.log_z` holds l_s(b).
Samples samples_before(const Head& head, const std::vector<Proposal>& proposals, int64_t b, const CausalLaraOptions& options) {
  Samples samples;
  for (const Proposal& proposal : proposals) {
    if (proposal.window >= b) continue;
    for (const std::vector<double>& w : proposal.samples) {
      Softmax over_keys(head.v[0].size());
      for (int64_t window = options.streaming ? proposal.window : 0; window < b; ++window) {
        const double b_s = mixture(proposals, w, options.streaming ? window + 1 : b, options.samples_per_proposal);
        for (int64_t m = window * options.window; m < (window + 1) * options.window; ++m) {
          const size_t at = static_cast<size_t>(m);
          if (head.present[at]) over_keys.add(log_xi(head.k[at], w) - b_s, head.v[at]);
        }
      }
      samples.w.push_back(w);
      samples.log_z.push_back(over_keys.log_sum());
      samples.f.push_back(over_keys.mean());
    }
  }
  return samples;
}

}  // namespace

void causal_lara_attention(View4 q, View4 k, View4 v, MutView4 out, const CausalLaraOptions& options, MutView3 log_sum) {
  fill(out, 0);
  fill(log_sum, -kInfinity);
  const double root = root_scale(q, options.scale);
  for (const Sequence& sequence : sequences_of(options.layout, q.extent(0), q.extent(1), k.extent(1))) {
    if (sequence.keys == 0) continue;
    for (int64_t h = 0; h < q.extent(2); ++h) {
      const Head head = head_of(q, k, v, sequence, h, root, options.layout);
      const std::vector<Proposal> proposals = propose(head, options, h / (q.extent(2) / k.extent(2)));

      Samples samples;
      for (size_t p = 0; p < head.q.size(); ++p) {
        const size_t window = static_cast<size_t>(options.window), begin = p / window * window;  // of the window of p
        if (p == begin) samples = samples_before(head, proposals, static_cast<int64_t>(p / window), options);
        if (!head.present[p]) continue;
        Softmax terms(head.v[0].size());
        for (size_t m = begin; m <= p; ++m) {
          if (head.present[m]) terms.add(dot(head.q[p], head.k[m]), head.v[m]);
        }
        for (size_t s = 0; s < samples.w.size(); ++s) {
          terms.add(log_xi(head.q[p], samples.w[s]) + samples.log_z[s], samples.f[s]);
        }
        const int64_t t = sequence.first_query + static_cast<int64_t>(p);
        store_row(terms.mean(), out, sequence.batch, t, h);
        if (!log_sum.absent()) log_sum.set(terms.log_sum(), sequence.batch, t, h);
      }
    }
  }
}

}  // namespace raffia::reference
