// Linear attention, token by token.
#include "raffia/reference.h"
#include "reference/recurrence.h"
#include "reference/rows.h"

namespace raffia::reference {

using namespace internal;
using namespace internal::twins;

namespace {

void count(const Reading& reading, Report& report) {
  report.rows += 1;
  report.clamped += reading.clamped ? 1 : 0;
}

void fold_sequence(View4 k, View4 v, View3 gate_logits, const Map& map, Memory& memory, int64_t entry, const Sequence& sequence,
                   const Layout& layout) {
  for (int64_t t = sequence.first_key; t < sequence.first_key + sequence.keys; ++t) {
    if (!takes_part(layout, sequence.batch, t)) continue;
    for (int64_t g = 0; g < k.extent(2); ++g) {
      fold_token(memory, entry, g, gate_of(gate_logits, sequence.batch, t, g), phi(map, g, row(k, sequence.batch, t, g)),
                 row(v, sequence.batch, t, g));
    }
  }
}

void read_sequence(View4 q, const Map& map, const Memory& memory, int64_t entry, const Sequence& sequence, MutView4 out,
                   double eps, Report& report) {
  const int64_t group = q.extent(2) / map.heads;
  for (int64_t t = sequence.first_query; t < sequence.first_query + sequence.queries; ++t) {
    for (int64_t h = 0; h < q.extent(2); ++h) {
      const Reading reading = read_token(memory, entry, h / group, eps, phi(map, h / group, row(q, sequence.batch, t, h)));
      store_row(reading.out, out, sequence.batch, t, h);
      count(reading, report);
    }
  }
}

// Each token is folded, then read by its own query: gate_logits may be absent.
Report fold_and_read(View4 q, View4 k, View4 v, View3 gate_logits, const Map& map, Memory& memory, MutView4 out,
                     const AttentionOptions& options) {
  fill(out, 0);
  Report report;
  const std::vector<Sequence> sequences = sequences_of(options.layout, q.extent(0), q.extent(1), k.extent(1));
  for (size_t n = 0; n < sequences.size(); ++n) {
    for (int64_t i = 0; i < sequences[n].keys; ++i) {
      const Sequence token{sequences[n].batch, sequences[n].first_query + i, 1, sequences[n].first_key + i, 1};
      if (!takes_part(options.layout, token.batch, token.first_key)) continue;
      fold_sequence(k, v, gate_logits, map, memory, static_cast<int64_t>(n), token, options.layout);
      read_sequence(q, map, memory, static_cast<int64_t>(n), token, out, eps_of(map, options), report);
    }
  }
  return report;
}

}  // namespace

Memory::Memory(const StateShape& of) : shape(of) {
  const size_t all_heads = static_cast<size_t>(shape.batch * shape.heads);
  sums.resize(all_heads * static_cast<size_t>(shape.features * shape.value_dim));
  normaliser.resize(all_heads * static_cast<size_t>(shape.features));
  mass.resize(all_heads);
  log_decay.resize(all_heads);
}

Memory::Memory(const State& state) : Memory(state.shape()) {
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      std::copy(state.sums(b, h).begin(), state.sums(b, h).end(), sums_at(b, h).begin());
      std::copy(state.normaliser(b, h).begin(), state.normaliser(b, h).end(), normaliser_at(b, h).begin());
      mass[head_at(b, h)] = state.mass(b, h);
      log_decay[head_at(b, h)] = state.log_decay(b, h);
    }
  }
}

State Memory::to_state() const {
  State state(shape);
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      std::copy(sums_at(b, h).begin(), sums_at(b, h).end(), state.sums(b, h).begin());
      std::copy(normaliser_at(b, h).begin(), normaliser_at(b, h).end(), state.normaliser(b, h).begin());
      state.mass(b, h) = static_cast<float>(mass[head_at(b, h)]);
      state.log_decay(b, h) = static_cast<float>(log_decay[head_at(b, h)]);
    }
  }
  return state;
}

std::span<double> Memory::sums_at(int64_t b, int64_t h) {
  const size_t size = static_cast<size_t>(shape.features * shape.value_dim);
  return std::span(sums).subspan(head_at(b, h) * size, size);
}

std::span<const double> Memory::sums_at(int64_t b, int64_t h) const {
  const size_t size = static_cast<size_t>(shape.features * shape.value_dim);
  return std::span(sums).subspan(head_at(b, h) * size, size);
}

std::span<double> Memory::normaliser_at(int64_t b, int64_t h) {
  const size_t size = static_cast<size_t>(shape.features);
  return std::span(normaliser).subspan(head_at(b, h) * size, size);
}

std::span<const double> Memory::normaliser_at(int64_t b, int64_t h) const {
  const size_t size = static_cast<size_t>(shape.features);
  return std::span(normaliser).subspan(head_at(b, h) * size, size);
}

// S = sum_i phi(k_i) v_i^T, z = sum_i phi(k_i), then out_t = S^T phi(q_t) / z . phi(q_t)
Report rfa_attention(View4 q, View4 k, View4 v, const Map& map, MutView4 out, const AttentionOptions& options) {
  fill(out, 0);
  Report report;
  for (const Sequence& sequence : sequences_of(options.layout, q.extent(0), q.extent(1), k.extent(1))) {
    Memory memory(StateShape{1, map.heads, map.features, v.extent(3)});
    fold_sequence(k, v, {}, map, memory, 0, sequence, options.layout);
    read_sequence(q, map, memory, 0, sequence, out, eps_of(map, options), report);
  }
  return report;
}

Report causal_attention(View4 q, View4 k, View4 v, const Map& map, Memory& memory, MutView4 out,
                        const AttentionOptions& options) {
  return fold_and_read(q, k, v, {}, map, memory, out, options);
}

Report gated_attention(View4 q, View4 k, View4 v, View3 gate_logits, const Map& map, Memory& memory, MutView4 out,
                       const AttentionOptions& options) {
  return fold_and_read(q, k, v, gate_logits, map, memory, out, options);
}

void fold_keys(View4 k, View4 v, const Map& map, Memory& memory, const AttentionOptions& options) {
  fold_keys(k, v, {}, map, memory, options);
}

void fold_keys(View4 k, View4 v, View3 gate_logits, const Map& map, Memory& memory, const AttentionOptions& options) {
  const std::vector<Sequence> sequences = sequences_of(options.layout, k.extent(0), k.extent(1), k.extent(1));
  for (size_t n = 0; n < sequences.size(); ++n) {
    fold_sequence(k, v, gate_logits, map, memory, static_cast<int64_t>(n), sequences[n], options.layout);
  }
}

Report read_state(View4 q, const Map& map, const Memory& memory, MutView4 out, const AttentionOptions& options) {
  fill(out, 0);
  Report report;
  const std::vector<Sequence> sequences = sequences_of(options.layout, q.extent(0), q.extent(1), q.extent(1));
  for (size_t n = 0; n < sequences.size(); ++n) {
    read_sequence(q, map, memory, static_cast<int64_t>(n), sequences[n], out, eps_of(map, options), report);
  }
  return report;
}

}  // namespace raffia::reference
