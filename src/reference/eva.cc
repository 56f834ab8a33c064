// EVA: exact keys in a query's own window, and one virtual key and value per chunk elsewhere, in one softmax.
//
//   logits   q_p . k_m  and  q_p . kbar_c + log|P_c|,   values v_m and beta_c = sum_m softmax_m(w_c . k_m - |k_m|^2 / 2) v_m,
//   w_c = qbar_c + kbar_c
#include "raffia/reference_sampled.h"
#include "reference/rows.h"
#include "reference/terms.h"

namespace raffia::reference {

using namespace internal;
using namespace internal::twins;

namespace {

// A chunk of tokens, of which some are present.
struct Summary {
  int64_t first;  // position of its first token
  double log_count;
  std::vector<double> k_mean, beta;
};

// Summaries of chunks [0, chunk), [chunk, 2 chunk).. of the first `length` tokens. Chunks without any token have none.
std::vector<Summary> summarise(const Head& head, size_t chunk, size_t length) {
  std::vector<Summary> summaries;
  for (size_t first = 0; first < length; first += chunk) {
    const Head part = present_part(head, first, std::min(first + chunk, length));
    if (part.k.empty()) continue;
    const Rows w{plus(mean_of(part.q), mean_of(part.k))};
    summaries.push_back({static_cast<int64_t>(first), std::log(static_cast<double>(part.k.size())), mean_of(part.k),
                         read_keys(w, part.k, part.v).f[0]});
  }
  return summaries;
}

// The keys present at positions [first, end).
void add_keys(const Head& head, size_t p, size_t first, size_t end, Softmax& terms) {
  for (size_t m = first; m < end; ++m) {
    if (head.present[m]) terms.add(dot(head.q[p], head.k[m]), head.v[m]);
  }
}

void add_summary(const Head& head, size_t p, const Summary& summary, Softmax& terms) {
  terms.add(dot(head.q[p], summary.k_mean) + summary.log_count, summary.beta);
}

// The far past of window b: summaries of the windows before `folded`, as random features.
//   log z_r = logsumexp_c (w_r . kbar_c - |kbar_c|^2 / 2 + log|P_c| + (folded - 1 - window of c) log decay), f_r averages beta_c
Samples fold(const Head& head, const std::vector<Summary>& summaries, int64_t folded, int64_t g,
             const CausalEvaOptions& options) {
  Samples past;
  for (const std::vector<double>& w : draw_rows(options, g, options.features, static_cast<int64_t>(head.k[0].size()))) {
    Softmax over_summaries(head.v[0].size());
    for (const Summary& summary : summaries) {
      const int64_t window = summary.first / options.window;
      if (window >= folded) continue;
      const double log_decay = static_cast<double>(folded - 1 - window) * std::log(static_cast<double>(options.decay));
      over_summaries.add(log_xi(summary.k_mean, w) + summary.log_count + log_decay, summary.beta);
    }
    past.w.push_back(w);
    past.log_z.push_back(over_summaries.log_sum());
    past.f.push_back(over_summaries.mean());
  }
  return past;
}

// w_r . q_p - |q_p|^2 / 2 + log z_r - log R, values f_r
void add_folded(const Head& head, size_t p, const Samples& past, Softmax& terms) {
  const double log_count = std::log(static_cast<double>(past.w.size()));
  for (size_t r = 0; r < past.w.size(); ++r) {
    terms.add(log_xi(head.q[p], past.w[r]) + past.log_z[r] - log_count, past.f[r]);
  }
}

}  // namespace

void eva_attention(View4 q, View4 k, View4 v, MutView4 out, const EvaOptions& options, MutView3 log_sum) {
  fill(out, 0);
  fill(log_sum, -kInfinity);
  const double root = root_scale(q, options.scale);
  for (const Sequence& sequence : sequences_of(options.layout, q.extent(0), q.extent(1), k.extent(1))) {
    const std::vector<int64_t> keys = present_tokens(options.layout, sequence.batch, sequence.first_key, sequence.keys);
    if (keys.empty()) continue;
    const size_t length = static_cast<size_t>(keys.back() - sequence.first_key + 1);  // up to the last key
    const size_t samples = static_cast<size_t>(options.samples), chunk = (length + samples - 1) / samples;
    const size_t window = (static_cast<size_t>(options.window) + chunk - 1) / chunk * chunk;
    for (int64_t h = 0; h < q.extent(2); ++h) {
      const Head head = head_of(q, k, v, sequence, h, root, options.layout);
      const std::vector<Summary> summaries = summarise(head, chunk, length);
      for (size_t p = 0; p < head.q.size(); ++p) {
        const size_t begin = p / window * window;
        Softmax terms(head.v[0].size());
        add_keys(head, p, begin, std::min(begin + window, head.q.size()), terms);
        for (const Summary& summary : summaries) {
          if (static_cast<size_t>(summary.first) / window != p / window) add_summary(head, p, summary, terms);
        }
        const int64_t t = sequence.first_query + static_cast<int64_t>(p);
        store_row(terms.mean(), out, sequence.batch, t, h);
        if (!log_sum.absent()) log_sum.set(terms.log_sum(), sequence.batch, t, h);
      }
    }
  }
}

void causal_eva_attention(View4 q, View4 k, View4 v, MutView4 out, const CausalEvaOptions& options, MutView3 log_sum) {
  fill(out, 0);
  fill(log_sum, -kInfinity);
  const double root = root_scale(q, options.scale);
  const size_t window = static_cast<size_t>(options.window), chunk = static_cast<size_t>(options.chunk);
  const int64_t kept = options.summaries / (options.window / options.chunk);  // windows
  for (const Sequence& sequence : sequences_of(options.layout, q.extent(0), q.extent(1), k.extent(1))) {
    for (int64_t h = 0; h < q.extent(2); ++h) {
      const Head head = head_of(q, k, v, sequence, h, root, options.layout);
      const std::vector<Summary> summaries = summarise(head, chunk, head.q.size());
      Samples past;
      for (size_t p = 0; p < head.q.size(); ++p) {
        const int64_t b = static_cast<int64_t>(p / window);
        const int64_t folded = options.summaries == 0 ? 0 : std::max<int64_t>(b - kept, 0);  // windows
        if (p % window == 0 && folded > 0) past = fold(head, summaries, folded, h / (q.extent(2) / k.extent(2)), options);
        if (!head.present[p]) continue;
        Softmax terms(head.v[0].size());
        add_keys(head, p, p / window * window, p + 1, terms);
        for (const Summary& summary : summaries) {
          const int64_t from = summary.first / options.window;
          if (from < b && from >= folded) add_summary(head, p, summary, terms);
        }
        add_folded(head, p, past, terms);
        const int64_t t = sequence.first_query + static_cast<int64_t>(p);
        store_row(terms.mean(), out, sequence.batch, t, h);
        if (!log_sum.absent()) log_sum.set(terms.log_sum(), sequence.batch, t, h);
      }
    }
  }
}

}  // namespace raffia::reference
