// Gradients of linear attention: the adjoint of the recurrence, token by token from the last to the first.
//
// A query reads y_t = S_t^T phi(q_t), n_t = z_t . phi(q_t), out_t = y_t / n_t. Going back, with dS and dz the gradients of S_t,
// z_t:
//
//   dy      = dout / n,   dn = -(dout . out) / n, 0 where clamped
//   dphi(q) = S_t dy + z_t dn,          dS += phi(q) dy^T,   dz += phi(q) dn
//   dphi(k) = u (dS v + dz),            dv  = u dS^T phi(k)
//   du      = phi(k) . (dS v + dz),     dlog g = g (<S_{t-1}, dS> + z_{t-1} . dz)
//   dx      = u dlog g - g u du         since dlog g/dx = 1 - g = u and du/dx = -g u
//   then dS and dz of S_{t-1}, z_{t-1} are g dS and g dz
#include <vector>

#include "raffia/reference.h"
#include "reference/recurrence.h"
#include "reference/rows.h"

namespace raffia::reference {

using namespace internal;
using namespace internal::twins;

namespace {

// Gradient of one query. `dmemory` holds dS and dz and is added to.
void read_backward(View4 q, const Map& map, const Memory& memory, double eps, int64_t b, int64_t t, int64_t h, View4 dout,
                   const Gradients& gradients, Memory& dmemory) {
  const int64_t g = h / (q.extent(2) / map.heads);
  const std::vector<double> q_t = row(q, b, t, h), do_t = row(dout, b, t, h);
  const std::vector<double> phi_q = phi(map, g, q_t);
  const Reading reading = read_token(memory, 0, g, eps, phi_q);
  if (reading.denominator == 0) return;
  std::vector<double> dy = do_t;
  for (double& value : dy) value /= reading.denominator;
  const double dn = reading.clamped ? 0 : -dot(do_t, reading.out) / reading.denominator;

  const std::span<const double> sums = memory.sums_at(0, g), normaliser = memory.normaliser_at(0, g);
  const std::span<double> dsums = dmemory.sums_at(0, g), dnormaliser = dmemory.normaliser_at(0, g);
  std::vector<double> dphi_q(phi_q.size());
  for (size_t f = 0; f < phi_q.size(); ++f) {
    dphi_q[f] = dot(sums.subspan(f * dy.size(), dy.size()), dy) + normaliser[f] * dn;
    for (size_t e = 0; e < dy.size(); ++e) dsums[f * dy.size() + e] += phi_q[f] * dy[e];
    dnormaliser[f] += phi_q[f] * dn;
  }
  std::vector<double> dq(q_t.size());
  phi_backward(map, g, q_t, dphi_q, dq, gradients.map);
  if (!gradients.q.absent()) store_row(dq, gradients.q, b, t, h);
}

// Gradient of one key, which `memory` was folded into to give the memory that `dmemory` is the gradient of.
// Leaves in `dmemory` the gradient of `memory`.
void fold_backward(View4 k, View4 v, View3 gate_logits, const Map& map, const Memory& memory, int64_t b, int64_t t, int64_t g,
                   const Gradients& gradients, Memory& dmemory) {
  const Gate gate = gate_of(gate_logits, b, t, g);
  const std::vector<double> k_t = row(k, b, t, g), v_t = row(v, b, t, g);
  const std::vector<double> phi_k = phi(map, g, k_t);
  const std::span<double> dsums = dmemory.sums_at(0, g), dnormaliser = dmemory.normaliser_at(0, g);

  std::vector<double> dphi_k(phi_k.size()), dv(v_t.size());
  double du = 0;
  for (size_t f = 0; f < phi_k.size(); ++f) {
    const double read = dot(dsums.subspan(f * v_t.size(), v_t.size()), v_t) + dnormaliser[f];  // (dS v + dz)_f
    dphi_k[f] = gate.u * read;
    du += phi_k[f] * read;
    for (size_t e = 0; e < v_t.size(); ++e) dv[e] += gate.u * dsums[f * v_t.size() + e] * phi_k[f];
  }
  std::vector<double> dk(k_t.size());
  phi_backward(map, g, k_t, dphi_k, dk, gradients.map);
  if (!gradients.k.absent()) store_row(dk, gradients.k, b, t, g);
  if (!gradients.v.absent()) store_row(dv, gradients.v, b, t, g);

  if (!gradients.gate_logits.absent()) {
    double dlog_g = gate.g * (dot(memory.sums_at(0, g), dsums) + dot(memory.normaliser_at(0, g), dnormaliser));
    if (gate.log_g == kMinLogGate) dlog_g = 0;
    gradients.gate_logits.set(gate.u * dlog_g - gate.g * gate.u * du, b, t, g);
  }
  for (double& value : dsums) value *= gate.g;
  for (double& value : dnormaliser) value *= gate.g;
}

void clear(const Gradients& gradients) {
  fill(gradients.q, 0);
  fill(gradients.k, 0);
  fill(gradients.v, 0);
  fill(gradients.gate_logits, 0);
}

// Entry n of `from` as a memory of one entry, and back.
Memory entry_of(const Memory& from, int64_t n) {
  Memory entry(StateShape{1, from.shape.heads, from.shape.features, from.shape.value_dim});
  for (int64_t g = 0; g < from.shape.heads; ++g) {
    std::copy(from.sums_at(n, g).begin(), from.sums_at(n, g).end(), entry.sums_at(0, g).begin());
    std::copy(from.normaliser_at(n, g).begin(), from.normaliser_at(n, g).end(), entry.normaliser_at(0, g).begin());
    entry.mass[entry.head_at(0, g)] = from.mass[from.head_at(n, g)];
  }
  return entry;
}

void store_entry(const Memory& entry, Memory& to, int64_t n) {
  for (int64_t g = 0; g < to.shape.heads; ++g) {
    std::copy(entry.sums_at(0, g).begin(), entry.sums_at(0, g).end(), to.sums_at(n, g).begin());
    std::copy(entry.normaliser_at(0, g).begin(), entry.normaliser_at(0, g).end(), to.normaliser_at(n, g).begin());
  }
}

void fold_and_read_backward(View4 q, View4 k, View4 v, View3 gate_logits, const Map& map, const Memory& initial, View4 dout,
                            const Gradients& gradients, const AttentionOptions& options) {
  clear(gradients);
  const std::vector<Sequence> sequences = sequences_of(options.layout, q.extent(0), q.extent(1), k.extent(1));
  for (size_t n = 0; n < sequences.size(); ++n) {
    const int64_t entry = static_cast<int64_t>(n), b = sequences[n].batch;
    std::vector<int64_t> tokens;
    for (int64_t t = sequences[n].first_key; t < sequences[n].first_key + sequences[n].keys; ++t) {
      if (takes_part(options.layout, b, t)) tokens.push_back(t);
    }
    std::vector<Memory> memories{entry_of(initial, entry)};  // memories[i]: before tokens[i]
    for (int64_t t : tokens) {
      memories.push_back(memories.back());
      for (int64_t g = 0; g < map.heads; ++g) {
        fold_token(memories.back(), 0, g, gate_of(gate_logits, b, t, g), phi(map, g, row(k, b, t, g)), row(v, b, t, g));
      }
    }
    Memory dmemory = gradients.memory == nullptr ? Memory(memories[0].shape) : entry_of(*gradients.memory, entry);
    for (size_t i = tokens.size(); i-- > 0;) {
      for (int64_t h = 0; h < q.extent(2); ++h) {
        read_backward(q, map, memories[i + 1], eps_of(map, options), b, tokens[i], h, dout, gradients, dmemory);
      }
      for (int64_t g = 0; g < map.heads; ++g)
        fold_backward(k, v, gate_logits, map, memories[i], b, tokens[i], g, gradients, dmemory);
    }
    if (gradients.memory != nullptr) store_entry(dmemory, *gradients.memory, entry);
  }
}

}  // namespace

void rfa_attention_backward(View4 q, View4 k, View4 v, const Map& map, View4 dout, const Gradients& gradients,
                            const AttentionOptions& options) {
  clear(gradients);
  for (const Sequence& sequence : sequences_of(options.layout, q.extent(0), q.extent(1), k.extent(1))) {
    const int64_t b = sequence.batch, end = sequence.first_key + sequence.keys;
    Memory memory(StateShape{1, map.heads, map.features, v.extent(3)});
    for (int64_t t = sequence.first_key; t < end; ++t) {
      if (!takes_part(options.layout, b, t)) continue;
      for (int64_t g = 0; g < map.heads; ++g) fold_token(memory, 0, g, {}, phi(map, g, row(k, b, t, g)), row(v, b, t, g));
    }
    Memory dmemory(memory.shape);
    for (int64_t t = sequence.first_query; t < sequence.first_query + sequence.queries; ++t) {
      for (int64_t h = 0; h < q.extent(2); ++h) {
        read_backward(q, map, memory, eps_of(map, options), b, t, h, dout, gradients, dmemory);
      }
    }
    // Without a gate every key sees the same dS and dz: their order, and the memory before them, do not matter.
    for (int64_t t = sequence.first_key; t < end; ++t) {
      if (!takes_part(options.layout, b, t)) continue;
      for (int64_t g = 0; g < map.heads; ++g) fold_backward(k, v, {}, map, memory, b, t, g, gradients, dmemory);
    }
  }
}

void causal_attention_backward(View4 q, View4 k, View4 v, const Map& map, const Memory& initial, View4 dout,
                               const Gradients& gradients, const AttentionOptions& options) {
  fold_and_read_backward(q, k, v, {}, map, initial, dout, gradients, options);
}

void gated_attention_backward(View4 q, View4 k, View4 v, View3 gate_logits, const Map& map, const Memory& initial, View4 dout,
                              const Gradients& gradients, const AttentionOptions& options) {
  fold_and_read_backward(q, k, v, gate_logits, map, initial, dout, gradients, options);
}

}  // namespace raffia::reference
