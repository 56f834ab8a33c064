// Exact attention over all pairs: softmax, and the Gaussian kernel that the trig map estimates.
#include <algorithm>
#include <cmath>
#include <limits>

#include "raffia/reference.h"
#include "reference/rows.h"

namespace raffia::reference {

using namespace internal;
using namespace internal::twins;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double scale_of(View4 q, const SoftmaxOptions& options) {
  return options.scale ? *options.scale : 1 / std::sqrt(static_cast<double>(q.extent(3)));
}

// The keys of `sequence` that its query number i sees.
std::vector<int64_t> visible_keys(const Sequence& sequence, int64_t i, const SoftmaxOptions& options) {
  const int64_t end = options.causal ? std::min(i + sequence.keys - sequence.queries + 1, sequence.keys) : sequence.keys;
  const int64_t window = options.window > 0 ? i / options.window : 0;
  std::vector<int64_t> visible;
  for (int64_t j = sequence.first_key; j < sequence.first_key + end; ++j) {
    const int64_t windows_back = options.window > 0 ? window - (j - sequence.first_key) / options.window : 0;
    if (windows_back < 0 || windows_back > options.before) continue;
    if (takes_part(options.layout, sequence.batch, j)) visible.push_back(j);
  }
  return visible;
}

double key_bias(const SoftmaxOptions& options, int64_t b, int64_t j, int64_t g) {
  return options.key_bias.absent() ? 0 : options.key_bias(b, j, g);
}

// logits -> probabilities exp(logit - L) with L = log sum exp(logit), which is returned; all 0 and -inf if no logit is finite.
double softmax(std::vector<double>& logits) {
  double greatest = -kInfinity;
  for (double logit : logits) greatest = std::max(greatest, logit);
  double sum = 0;
  for (double& logit : logits) {
    logit = greatest == -kInfinity ? 0 : std::exp(logit - greatest);
    sum += logit;
  }
  if (greatest == -kInfinity) return -kInfinity;
  for (double& probability : logits) probability /= sum;
  return greatest + std::log(sum);
}

// out_t = sum_j softmax_j(logit(q_t, k_j, g) + key_bias_j) v_j
template <typename Logit>
void attend(View4 q, View4 k, View4 v, MutView4 out, const SoftmaxOptions& options, MutView3 logsumexp, const Logit& logit) {
  fill(out, 0);
  fill(logsumexp, -kInfinity);
  const int64_t group = q.extent(2) / k.extent(2);
  for (const Sequence& sequence : sequences_of(options.layout, q.extent(0), q.extent(1), k.extent(1))) {
    const int64_t b = sequence.batch;
    for (int64_t i = 0; i < sequence.queries; ++i) {
      const int64_t t = sequence.first_query + i;
      const std::vector<int64_t> visible = visible_keys(sequence, i, options);
      for (int64_t h = 0; h < q.extent(2); ++h) {
        const int64_t g = h / group;
        const std::vector<double> q_t = row(q, b, t, h);
        std::vector<double> p;
        for (int64_t j : visible) p.push_back(logit(q_t, row(k, b, j, g), g) + key_bias(options, b, j, g));
        const double log_sum = softmax(p);
        if (!logsumexp.absent()) logsumexp.set(log_sum, b, t, h);
        std::vector<double> o(static_cast<size_t>(v.extent(3)));
        for (size_t n = 0; n < visible.size(); ++n) {
          for (size_t e = 0; e < o.size(); ++e) o[e] += p[n] * v(b, visible[n], g, static_cast<int64_t>(e));
        }
        store_row(o, out, b, t, h);
      }
    }
  }
}

}  // namespace

void softmax_attention(View4 q, View4 k, View4 v, MutView4 out, const SoftmaxOptions& options, MutView3 logsumexp) {
  const double scale = scale_of(q, options);
  attend(q, k, v, out, options, logsumexp,
         [&](const std::vector<double>& q_t, const std::vector<double>& k_j, int64_t) { return scale * dot(q_t, k_j); });
}

// With p_tj the probabilities:  dv_j = sum_t p_tj dout_t,  dlogit_tj = p_tj (dout_t . v_j - dout_t . out_t),
//   dq_t = scale sum_j dlogit_tj k_j,  dk_j = scale sum_t dlogit_tj q_t,  dkey_bias_j = sum_t dlogit_tj
void softmax_attention_backward(View4 q, View4 k, View4 v, View4 dout, const SoftmaxGradients& gradients,
                                const SoftmaxOptions& options) {
  fill(gradients.q, 0);
  fill(gradients.k, 0);
  fill(gradients.v, 0);
  fill(gradients.key_bias, 0);
  const double scale = scale_of(q, options);
  const int64_t group = q.extent(2) / k.extent(2);
  for (const Sequence& sequence : sequences_of(options.layout, q.extent(0), q.extent(1), k.extent(1))) {
    const int64_t b = sequence.batch;
    for (int64_t g = 0; g < k.extent(2); ++g) {
      const size_t keys = static_cast<size_t>(sequence.keys);
      std::vector<std::vector<double>> dk(keys, std::vector<double>(static_cast<size_t>(k.extent(3))));
      std::vector<std::vector<double>> dv(keys, std::vector<double>(static_cast<size_t>(v.extent(3))));
      std::vector<double> dbias(keys);
      for (int64_t i = 0; i < sequence.queries; ++i) {
        const int64_t t = sequence.first_query + i;
        const std::vector<int64_t> visible = visible_keys(sequence, i, options);
        for (int64_t h = g * group; h < (g + 1) * group; ++h) {
          const std::vector<double> q_t = row(q, b, t, h), do_t = row(dout, b, t, h);
          std::vector<double> p;
          for (int64_t j : visible) p.push_back(scale * dot(q_t, row(k, b, j, g)) + key_bias(options, b, j, g));
          softmax(p);
          std::vector<double> dp;  // dout_t . v_j
          for (int64_t j : visible) dp.push_back(dot(do_t, row(v, b, j, g)));
          const double mean = dot(p, dp);  // dout_t . out_t
          std::vector<double> dq(q_t.size());
          for (size_t n = 0; n < visible.size(); ++n) {
            const double dlogit = p[n] * (dp[n] - mean);
            const std::vector<double> k_j = row(k, b, visible[n], g);
            const size_t j = static_cast<size_t>(visible[n] - sequence.first_key);
            for (size_t e = 0; e < q_t.size(); ++e) {
              dq[e] += scale * dlogit * k_j[e];
              dk[j][e] += scale * dlogit * q_t[e];
            }
            for (size_t e = 0; e < do_t.size(); ++e) dv[j][e] += p[n] * do_t[e];
            dbias[j] += dlogit;
          }
          if (!gradients.q.absent()) store_row(dq, gradients.q, b, t, h);
        }
      }
      for (size_t j = 0; j < keys; ++j) {
        const int64_t t = sequence.first_key + static_cast<int64_t>(j);
        if (!gradients.k.absent()) store_row(dk[j], gradients.k, b, t, g);
        if (!gradients.v.absent()) store_row(dv[j], gradients.v, b, t, g);
        if (!gradients.key_bias.absent()) gradients.key_bias.set(dbias[j], b, t, g);
      }
    }
  }
}

void gaussian_attention(View4 q, View4 k, View4 v, View2 sigma, MutView4 out, const SoftmaxOptions& options, MutView3 logsumexp) {
  attend(q, k, v, out, options, logsumexp, [&](const std::vector<double>& q_t, const std::vector<double>& k_j, int64_t g) {
    const double q_norm = std::max(std::sqrt(dot(q_t, q_t)), 1e-6), k_norm = std::max(std::sqrt(dot(k_j, k_j)), 1e-6);
    double distance = 0;  // |sigma o (q^ - k^)|^2
    for (size_t i = 0; i < q_t.size(); ++i) {
      const double difference = sigma(g, static_cast<int64_t>(i)) * (q_t[i] / q_norm - k_j[i] / k_norm);
      distance += difference * difference;
    }
    return -distance / 2;
  });
}

}  // namespace raffia::reference
