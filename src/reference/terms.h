// Common to the twins of sampling and windows: scaled rows, one softmax over terms of several kinds, samples over keys.
//
// x' = sqrt(tau) x for queries and keys, so that logits are q' . k'.
#ifndef RAFFIA_REFERENCE_TERMS_H_
#define RAFFIA_REFERENCE_TERMS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "raffia/random.h"
#include "raffia/views.h"
#include "reference/rows.h"

namespace raffia::internal::twins {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Rows = std::vector<std::vector<double>>;

// sqrt(tau)
inline double root_scale(View4 q, std::optional<float> scale) {
  return std::sqrt(scale ? static_cast<double>(*scale) : 1 / std::sqrt(static_cast<double>(q.extent(3))));
}

inline std::vector<double> scaled_row(View4 x, int64_t b, int64_t t, int64_t h, double factor) {
  std::vector<double> values = row(x, b, t, h);
  for (double& value : values) value *= factor;
  return values;
}

// The rows of head h at `tokens`.
inline Rows scaled_rows(View4 x, int64_t b, std::span<const int64_t> tokens, int64_t h, double factor = 1) {
  Rows rows;
  for (int64_t t : tokens) rows.push_back(scaled_row(x, b, t, h, factor));
  return rows;
}

// Those of the `count` tokens from `first` on that take part.
inline std::vector<int64_t> present_tokens(const Layout& layout, int64_t b, int64_t first, int64_t count) {
  std::vector<int64_t> tokens;
  for (int64_t t = first; t < first + count; ++t) {
    if (takes_part(layout, b, t)) tokens.push_back(t);
  }
  return tokens;
}

// Whether each token has a query and a key, which are masked together; else all queries take part.
inline bool is_self_attention(View4 q, View4 k, const Layout& layout) {
  return layout.cu_seqlens.empty() ? q.extent(1) == k.extent(1) : layout.cu_seqlens_k.empty();
}

// One query head of a self-attending sequence, and the key head that it reads.
struct Head {
  Rows q, k, v;               // [T, ..], q and k scaled; rows of absent tokens are never read
  std::vector<bool> present;  // [T]
};

inline Head head_of(View4 q, View4 k, View4 v, const Sequence& sequence, int64_t h, double root, const Layout& layout) {
  const int64_t g = h / (q.extent(2) / k.extent(2));
  const std::vector<int64_t> tokens = present_tokens({}, sequence.batch, sequence.first_key, sequence.keys);
  Head head{scaled_rows(q, sequence.batch, tokens, h, root),
            scaled_rows(k, sequence.batch, tokens, g, root),
            scaled_rows(v, sequence.batch, tokens, g),
            {}};
  for (int64_t t : tokens) head.present.push_back(takes_part(layout, sequence.batch, t));
  return head;
}

// Its tokens that are present at positions [begin, end), as a separate head.
inline Head present_part(const Head& head, size_t begin, size_t end) {
  Head part;
  for (size_t p = begin; p < end; ++p) {
    if (!head.present[p]) continue;
    part.q.push_back(head.q[p]);
    part.k.push_back(head.k[p]);
    part.v.push_back(head.v[p]);
    part.present.push_back(true);
  }
  return part;
}

// log xi(x, w) = w . x - |x|^2 / 2
inline double log_xi(std::span<const double> x, std::span<const double> w) { return dot(w, x) - dot(x, x) / 2; }

inline std::vector<double> plus(std::vector<double> a, std::span<const double> b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

inline std::vector<double> mean_of(const Rows& rows) {
  std::vector<double> mean(rows[0].size());
  for (const std::vector<double>& x : rows) mean = plus(mean, x);
  for (double& value : mean) value /= static_cast<double>(rows.size());
  return mean;
}

// One softmax over everything that is added to it.
//   log_sum = log sum_j exp(logit_j),   mean = sum_j exp(logit_j - log_sum) value_j
class Softmax {
 public:
  explicit Softmax(size_t width) : width_(width) {}

  // A logit of -inf adds nothing.
  void add(double logit, std::span<const double> value = {}) {
    if (logit == -kInfinity) return;
    logits_.push_back(logit);
    values_.emplace_back(value.begin(), value.end());
  }

  double log_sum() const {
    if (logits_.empty()) return -kInfinity;
    const double greatest = *std::ranges::max_element(logits_);
    double sum = 0;
    for (double logit : logits_) sum += std::exp(logit - greatest);
    return greatest + std::log(sum);
  }

  // 0 if nothing was added.
  std::vector<double> mean() const {
    std::vector<double> mean(width_);
    const double total = log_sum();
    for (size_t j = 0; j < logits_.size(); ++j) {
      const double probability = std::exp(logits_[j] - total);
      for (size_t e = 0; e < width_; ++e) mean[e] += probability * values_[j][e];
    }
    return mean;
  }

 private:
  size_t width_;
  std::vector<double> logits_;
  Rows values_;
};

inline double log_sum_exp(std::span<const double> logits) {
  Softmax terms(0);
  for (double logit : logits) terms.add(logit);
  return terms.log_sum();
}

// e [count, dim], shared by all batch entries and by the query heads of key head g.
template <typename Options>
Rows draw_rows(const Options& options, int64_t g, int64_t count, int64_t dim) {
  std::vector<float> entries(static_cast<size_t>(count * dim));
  draw_projection({options.seed, options.layer, static_cast<uint32_t>(g), options.draw}, options.draws, count, dim, entries);
  Rows rows;
  for (auto at = entries.begin(); at != entries.end(); at += dim) rows.emplace_back(at, at + dim);
  return rows;
}

// Samples w_s over keys:  f(w) = sum_m xi(k_m, w) v_m / z(w),  z(w) = sum_m xi(k_m, w)
struct Samples {
  Rows w;                     // [S, D]
  std::vector<double> log_z;  // [S]
  Rows f;                     // [S, V]
};

// Pass 1: samples over keys.
inline Samples read_keys(const Rows& w, const Rows& k, const Rows& v) {
  Samples samples{w, {}, {}};
  for (const std::vector<double>& w_s : w) {
    Softmax over_keys(v[0].size());
    for (size_t m = 0; m < k.size(); ++m) over_keys.add(log_xi(k[m], w_s), v[m]);
    samples.log_z.push_back(over_keys.log_sum());
    samples.f.push_back(over_keys.mean());
  }
  return samples;
}

// Pass 2: one query over samples; log a_s is the log weight of sample s for this query.
//   out = sum_s softmax_s(log xi(q, w_s) + log z_s + log a_s) f_s
inline Softmax read_samples(const Samples& samples, std::span<const double> q, std::span<const double> log_a) {
  Softmax over_samples(samples.f[0].size());
  for (size_t s = 0; s < samples.w.size(); ++s) {
    over_samples.add(log_xi(q, samples.w[s]) + samples.log_z[s] + log_a[s], samples.f[s]);
  }
  return over_samples;
}

}  // namespace raffia::internal::twins

#endif  // RAFFIA_REFERENCE_TERMS_H_
