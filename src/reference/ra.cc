// Randomized Attention: every query draws from its own exact distribution.
//
//   m ~ softmax_m(q_n . k_m),   w = q_n + k_m + e,   e ~ N(0, I),   out_n = f(w), averaged over draws
#include "raffia/reference_sampled.h"
#include "reference/rows.h"
#include "reference/terms.h"

namespace raffia::reference {

using namespace internal;
using namespace internal::twins;

namespace {

// Calls visit(sequence, i, h, visible) for every query number i of every sequence and head; visible: the keys it sees.
template <typename Visit>
void for_each_query(View4 q, View4 k, const RaOptions& options, const Visit& visit) {
  for (const Sequence& sequence : sequences_of(options.layout, q.extent(0), q.extent(1), k.extent(1))) {
    for (int64_t i = 0; i < sequence.queries; ++i) {
      const int64_t end =
          options.causal ? std::clamp<int64_t>(i + sequence.keys - sequence.queries + 1, 0, sequence.keys) : sequence.keys;
      const std::vector<int64_t> visible = present_tokens(options.layout, sequence.batch, sequence.first_key, end);
      for (int64_t h = 0; h < q.extent(2); ++h) visit(sequence, i, h, visible);
    }
  }
}

struct Noise {
  double uniform;
  std::vector<float> normal;  // e
};

Noise noise_of(const RaOptions& options, int64_t h, int64_t i, int64_t draw, int64_t dim) {
  Noise noise{0, std::vector<float>(static_cast<size_t>(dim))};
  const StreamKey key{options.seed, options.layer, static_cast<uint32_t>(h), options.draw};
  noise.uniform = randomized_draw(key, options.first_query + i, options.draws, draw, noise.normal);
  return noise;
}

size_t place_of(View4 q, const RaOptions& options, int64_t b, int64_t t, int64_t h, int64_t draw) {
  return static_cast<size_t>(((b * q.extent(1) + t) * q.extent(2) + h) * options.draws + draw);
}

}  // namespace

// m: the first key at which the sum of probabilities exceeds the uniform; the last one where rounding leaves none.
std::vector<int64_t> ra_keys(View4 q, View4 k, const RaOptions& options) {
  const double root = root_scale(q, options.scale);
  std::vector<int64_t> drawn(static_cast<size_t>(q.extent(0) * q.extent(1) * q.extent(2) * options.draws), -1);
  for_each_query(q, k, options, [&](const Sequence& sequence, int64_t i, int64_t h, const std::vector<int64_t>& visible) {
    if (visible.empty()) return;
    const int64_t b = sequence.batch, t = sequence.first_query + i, g = h / (q.extent(2) / k.extent(2));
    std::vector<double> logits;
    for (int64_t m : visible) logits.push_back(dot(scaled_row(q, b, t, h, root), scaled_row(k, b, m, g, root)));
    const double log_sum = log_sum_exp(logits);
    for (int64_t draw = 0; draw < options.draws; ++draw) {
      const double uniform = noise_of(options, h, i, draw, q.extent(3)).uniform;
      size_t at = 0;
      double cumulative = std::exp(logits[0] - log_sum);
      while (cumulative <= uniform && at + 1 < visible.size()) cumulative += std::exp(logits[++at] - log_sum);
      drawn[place_of(q, options, b, t, h, draw)] = visible[at];
    }
  });
  return drawn;
}

void ra_attention(View4 q, View4 k, View4 v, std::span<const int64_t> keys, MutView4 out, const RaOptions& options) {
  fill(out, 0);
  const double root = root_scale(q, options.scale);
  const bool skips_absent = options.causal && is_self_attention(q, k, options.layout);
  for_each_query(q, k, options, [&](const Sequence& sequence, int64_t i, int64_t h, const std::vector<int64_t>& visible) {
    if (visible.empty()) return;
    if (skips_absent && !takes_part(options.layout, sequence.batch, sequence.first_key + i)) return;
    const int64_t b = sequence.batch, t = sequence.first_query + i, g = h / (q.extent(2) / k.extent(2));
    Rows w;
    for (int64_t draw = 0; draw < options.draws; ++draw) {
      const int64_t m = keys[place_of(q, options, b, t, h, draw)];
      const std::vector<float> normal = noise_of(options, h, i, draw, q.extent(3)).normal;
      w.push_back(plus(scaled_row(q, b, t, h, root), scaled_row(k, b, m, g, root)));
      for (size_t j = 0; j < normal.size(); ++j) w.back()[j] += static_cast<double>(normal[j]);
    }
    const Samples samples = read_keys(w, scaled_rows(k, b, visible, g, root), scaled_rows(v, b, visible, g));
    store_row(mean_of(samples.f), out, b, t, h);
  });
}

void ra_attention(View4 q, View4 k, View4 v, MutView4 out, const RaOptions& options) {
  raffia::reference::ra_attention(q, k, v, ra_keys(q, k, options), out, options);
}

}  // namespace raffia::reference
