// The recurrence of linear attention, one token of one head at a time.
//
//   S_t = g_t S_{t-1} + u_t phi(k_t) v_t^T,   z_t = g_t z_{t-1} + u_t phi(k_t),   m_t = g_t m_{t-1} + u_t
#ifndef RAFFIA_REFERENCE_RECURRENCE_H_
#define RAFFIA_REFERENCE_RECURRENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "raffia/reference.h"

namespace raffia::internal::twins {

using raffia::reference::Map, raffia::reference::Memory;

// Decay g = exp(log_g) of what is remembered and weight u of the new token. Without a gate: 1 and 1.
struct Gate {
  double log_g = 0, g = 1, u = 1;
};

inline constexpr double kMinLogGate = -60;

// g = sigmoid(x), u = sigmoid(-x); log g = -softplus(-x), in the form whose exponent is never positive, and at least -60.
inline Gate gate_of(View3 logits, int64_t b, int64_t t, int64_t h) {
  if (logits.absent()) return {};
  const double x = logits(b, t, h);
  const double log_g = std::max(std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))), kMinLogGate);
  return {log_g, std::exp(log_g), 1 / (1 + std::exp(x))};
}

inline void fold_token(Memory& memory, int64_t entry, int64_t head, const Gate& gate, std::span<const double> phi_k,
                       std::span<const double> v) {
  const std::span<double> sums = memory.sums_at(entry, head), normaliser = memory.normaliser_at(entry, head);
  for (size_t f = 0; f < phi_k.size(); ++f) {
    for (size_t e = 0; e < v.size(); ++e) sums[f * v.size() + e] = gate.g * sums[f * v.size() + e] + gate.u * phi_k[f] * v[e];
    normaliser[f] = gate.g * normaliser[f] + gate.u * phi_k[f];
  }
  double& mass = memory.mass[memory.head_at(entry, head)];
  mass = gate.g * mass + gate.u;
  memory.log_decay[memory.head_at(entry, head)] += gate.log_g;
}

inline double eps_of(const Map& map, const AttentionOptions& options) { return options.eps ? *options.eps : map.eps; }

// What a query reads: out = S^T phi(q) / max(z . phi(q), eps m).
struct Reading {
  std::vector<double> out;
  double denominator;  // after the clamp
  bool clamped;
};

inline Reading read_token(const Memory& memory, int64_t entry, int64_t head, double eps, std::span<const double> phi_q) {
  const std::span<const double> sums = memory.sums_at(entry, head), normaliser = memory.normaliser_at(entry, head);
  Reading reading{std::vector<double>(static_cast<size_t>(memory.shape.value_dim)), 0, false};
  for (size_t f = 0; f < phi_q.size(); ++f) {
    for (size_t e = 0; e < reading.out.size(); ++e) reading.out[e] += phi_q[f] * sums[f * reading.out.size() + e];
    reading.denominator += phi_q[f] * normaliser[f];
  }
  const double floor = eps * memory.mass[memory.head_at(entry, head)];
  reading.clamped = reading.denominator < floor || reading.denominator <= 0;
  if (reading.clamped) reading.denominator = std::max(floor, 0.0);
  for (double& value : reading.out) value = reading.denominator == 0 ? 0 : value / reading.denominator;
  return reading;
}

}  // namespace raffia::internal::twins

#endif  // RAFFIA_REFERENCE_RECURRENCE_H_
