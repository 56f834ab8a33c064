// Hybrid attention: exact keys of two blocks and a gated state of all blocks before these, with one common normaliser.
//
//   y_t   = exp(a_t) phi(q_t)^T S,  S the gated state at the end of the block before the last, a_t = sum of log g from there to t
//   m_t   = max(log sum_j exp(s_tj), c),   s_tj the exact logits
//   out_t = (sum_j exp(s_tj - m_t) v_j + exp(c - m_t) y_t[0:V]) / (sum_j exp(s_tj - m_t) + exp(c - m_t) y_t[V])
//   y_t is dropped where y_t[V] <= 0
#include "raffia/reference_sampled.h"
#include "reference/recurrence.h"
#include "reference/rows.h"
#include "reference/terms.h"

namespace raffia::reference {

using namespace internal;
using namespace internal::twins;

namespace {

// phi(q)^T S: the output of the state before it is decayed, [V + 1].
std::vector<double> read_folded(const Memory& memory, int64_t g, std::span<const double> phi_q) {
  const std::span<const double> sums = memory.sums_at(0, g), normaliser = memory.normaliser_at(0, g);
  const size_t width = static_cast<size_t>(memory.shape.value_dim);
  std::vector<double> read(width + 1);
  for (size_t f = 0; f < phi_q.size(); ++f) {
    for (size_t e = 0; e < width; ++e) read[e] += phi_q[f] * sums[f * width + e];
    read[width] += phi_q[f] * normaliser[f];
  }
  return read;
}

// The exact part and, unless its denominator is not positive, the folded part: log_weight is c + a_t.
std::vector<double> combine(const Softmax& exact, std::span<const double> read, double log_weight, double c) {
  std::vector<double> out = exact.mean();
  if (read.back() <= 0) return out;
  const double m = std::max(exact.log_sum(), c);
  const double exact_weight = std::exp(exact.log_sum() - m), folded_weight = std::exp(log_weight - m);
  const double denominator = exact_weight + folded_weight * read.back();
  for (size_t e = 0; e < out.size(); ++e) out[e] = (exact_weight * out[e] + folded_weight * read[e]) / denominator;
  return out;
}

}  // namespace

Report hybrid_attention(const HybridInputs& inputs, const Map& map, MutView4 out, const HybridOptions& options) {
  fill(out, 0);
  Report report;
  const View4 q = inputs.q, k = inputs.k, v = inputs.v;
  const View4 q_far = inputs.q_far.absent() ? q : inputs.q_far, k_far = inputs.k_far.absent() ? k : inputs.k_far;
  const double root = root_scale(q, options.scale);
  const int64_t window = options.window;
  for (const Sequence& sequence : sequences_of(options.layout, q.extent(0), q.extent(1), k.extent(1))) {
    const int64_t n = sequence.batch, start = sequence.first_key;
    for (int64_t h = 0; h < q.extent(2); ++h) {
      const int64_t g = h / (q.extent(2) / k.extent(2));
      const double c = inputs.log_scale(h);
      Memory memory(StateShape{1, map.heads, map.features, v.extent(3)});
      double log_decay = 0;  // a_t
      for (int64_t p = 0; p < sequence.keys; ++p) {
        const int64_t t = start + p, first_seen = std::max<int64_t>(0, (p / window - 1) * window);
        if (p % window == 0 && p >= 2 * window) {  // block p / window - 2 is no longer seen exactly
          for (int64_t j : present_tokens(options.layout, n, start + first_seen - window, window)) {
            fold_token(memory, 0, g, gate_of(inputs.gate_logits, n, j, g), phi(map, g, row(k_far, n, j, g)), row(v, n, j, g));
          }
          log_decay = 0;
          for (int64_t j : present_tokens(options.layout, n, start + first_seen, window)) {
            log_decay += gate_of(inputs.gate_logits, n, j, g).log_g;
          }
        }
        if (!takes_part(options.layout, n, t)) continue;
        log_decay += gate_of(inputs.gate_logits, n, t, g).log_g;

        Softmax exact(static_cast<size_t>(v.extent(3)));
        for (int64_t j : present_tokens(options.layout, n, start + first_seen, p + 1 - first_seen)) {
          exact.add(dot(scaled_row(q, n, t, h, root), scaled_row(k, n, j, g, root)), row(v, n, j, g));
        }
        const std::vector<double> read = read_folded(memory, g, phi(map, g, row(q_far, n, t, h)));
        store_row(combine(exact, read, c + log_decay, c), out, n, t, h);
        report.rows += 1;
        report.clamped += read.back() <= 0 && memory.mass[memory.head_at(0, g)] > 0 ? 1 : 0;
      }
    }
  }
  return report;
}

}  // namespace raffia::reference
