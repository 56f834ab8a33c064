#include "kernels/linear.h"

#include <algorithm>
#include <cmath>

#include "core/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off: foreach_target.h comes first
#include "kernels/linear-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {

// The rows that a chunk of the causal forward reads and writes.
HWY_INLINE void ask_for_chunk(const LinearProblem& problem, size_t first, size_t end, Ahead& ahead) {
  const size_t count = HWY_MIN(kPanel, end - first);
  ahead.add(problem.k, first, count, problem.map.dim);
  ahead.add(problem.v, first, count, problem.value_dim);
  for (size_t g = 0; g < problem.group; ++g) {
    ahead.add(problem.heads[g].q, first, count, problem.map.dim);
    ahead.add(problem.heads[g].out, first, count, problem.value_dim);
  }
}

void causal_forward(const LinearProblem& problem, size_t begin, size_t end, const Upcoming& upcoming, PackedState& state,
                    float* record, float* scratch, ClampCount& clamps) {
  const Tag d;
  Arena arena(scratch);
  const ChunkBuffers buffers(arena, problem, problem.group, 1);
  const size_t features = buffers.features, panels = buffers.panels;
  const size_t panel_floats = features * kPanel;
  if (record != nullptr) std::copy_n(state.sums, problem.state_floats(), record);

  for (size_t first = begin; first < end; first += kPanel) {
    const size_t count = HWY_MIN(kPanel, end - first);
    Gates gates;
    load_gates(problem, first, end, gates);
    chunk_features_of_two(problem.map, buffers, {problem.heads[0].q, first, gates.valid, buffers.panel(buffers.phi_q)},
                          {problem.k, first, gates.valid, buffers.panel(buffers.phi_k, 1)});
    const Chunk values = gather(problem.v, first, gates.valid, problem.value_dim, buffers.zeros, buffers.value_staging);
    pack(values, problem.value_dim, buffers.v);
    scale_panel_rows(buffers.v, gates.weights(), panels, buffers.weighted_v);

    alignas(64) float mass[kPanel];
    for (size_t t = 0; t < kPanel; ++t) {
      state.mass = static_cast<double>(gates.keep[t]) * state.mass + static_cast<double>(gates.write[t]);
      mass[t] = static_cast<float>(state.mass);
    }
    state.log_decay += gates.log_decay;

    for (size_t g = 0; g < problem.group; ++g) {
      const QueryHead& head = problem.heads[g];
      float* phi_q = buffers.phi_q + g * panel_floats;
      float* scores = buffers.scores + g * kPanel * kPanel;
      if (g > 0) chunk_features(problem.map, buffers, {head.q, first, gates.valid, buffers.panel(phi_q)});
      chunk_scores(features, phi_q, buffers.phi_k, gates, scores);
      alignas(64) float den[kPanel];
      for_lanes([&](size_t lane) HWY_ATTR {
        const Vec past = weighted_rows(features, state.normaliser, phi_q, lane);
        hn::StoreU(hn::Mul(past, hn::LoadU(d, gates.reach + lane)), d, den + lane);
      });
      row_dots(kPanel, scores, kOnes, 1.0f, den);
      settle_denominators(problem, den, mass, gates.valid, count, buffers.inverse_den + g * kPanel,
                          head.denominators == nullptr ? nullptr : head.denominators + first, clamps);
    }

    Ahead ahead;
    if (first + kPanel < end) {
      ask_for_chunk(problem, first + kPanel, end, ahead);
    } else if (upcoming.problem != nullptr) {
      ask_for_chunk(*upcoming.problem, upcoming.begin, upcoming.problem->length, ahead);
      ahead.add_floats(upcoming.state, upcoming.problem->state_floats());
    }
    ahead.spread(problem.group * tiles_of_panels(kPanel, panels) + tiles_of_panels(features, panels));
    for_panels(panels, [&](size_t p, auto width) HWY_ATTR {
      constexpr size_t kWidth = decltype(width)::value;
      float* sums = state.sums + p * panel_floats;
      const float* values_p = buffers.v + p * kPanel * kPanel;
      for (size_t g = 0; g < problem.group; ++g) {
        const QueryHead& head = problem.heads[g];
        const float* phi_q = buffers.phi_q + g * panel_floats;
        const float* scores = buffers.scores + g * kPanel * kPanel;
        const float* inverse_den = buffers.inverse_den + g * kPanel;
        float* direct = whole_rows(head.out, first, count, gates.valid, problem.value_dim);
        float* y = direct != nullptr ? direct + p * kPanel : buffers.y;
        const size_t ld = direct != nullptr ? static_cast<size_t>(head.out.row_stride) : kWidth * kPanel;
        for_tiles<kWidth>(kPanel, [&](size_t m, auto shape) HWY_ATTR {
          auto tile = shape.wide_zero();
          tile.multiply(features, phi_q + m, UnitStride(), PanelStride(), sums, panel_floats, kPanel);
          tile.scale_rows(gates.reach + m);
          tile.multiply(m + shape.kHeight, scores + m * kPanel, PanelStride(), UnitStride(), values_p, kPanel * kPanel, kPanel);
          tile.scale_rows(inverse_den + m);
          tile.store(y + m * ld, kPanel, ld);
          ahead.ask();
        });
        if (direct == nullptr) {
          put_rows(head.out.columns_from(p * kPanel), first, count, gates.valid,
                   HWY_MIN(kWidth * kPanel, problem.value_dim - p * kPanel), buffers.y, ld);
        }
      }
      update_panels<kWidth>(features, gates.decay(), 1, buffers.phi_k, buffers.weighted_v + p * kPanel * kPanel, 0, sums, ahead);
    });
    ahead.ask_for_all();
    row_dots(features, buffers.phi_k, gates.weights(), gates.decay(), state.normaliser);
  }
}

// Several chunks are folded per pass over S: loads and stores of S are shared by 64 tokens.
void fold(const LinearProblem& problem, size_t begin, size_t end, PackedState& state, float* scratch) {
  Arena arena(scratch);
  const ChunkBuffers buffers(arena, problem, 0, kFoldChunks);
  const size_t features = buffers.features, panels = buffers.panels;
  const size_t chunk_values = panels * kPanel * kPanel;

  for (size_t first = begin; first < end; first += kFoldChunks * kPanel) {
    const size_t chunks = HWY_MIN(kFoldChunks, (end - first + kPanel - 1) / kPanel);
    Gates gates[kFoldChunks];
    for (size_t c = 0; c < chunks; ++c) {
      const size_t at = first + c * kPanel;
      load_gates(problem, at, end, gates[c]);
      const auto of_keys = [&](size_t i, size_t which) -> MappedChunk {
        return {problem.k, first + i * kPanel, gates[i].valid, buffers.panel(buffers.phi_k + i * features * kPanel, which)};
      };
      if (c % 2 == 1) {
        chunk_features_of_two(problem.map, buffers, of_keys(c - 1, 0), of_keys(c, 1));
      } else if (c + 1 == chunks) {
        chunk_features(problem.map, buffers, of_keys(c, 0));
      }
      pack(gather(problem.v, at, gates[c].valid, problem.value_dim, buffers.zeros, buffers.value_staging), problem.value_dim,
           buffers.v + c * chunk_values);
      for (size_t t = 0; t < kPanel; ++t) {
        state.mass = static_cast<double>(gates[c].keep[t]) * state.mass + static_cast<double>(gates[c].write[t]);
      }
      state.log_decay += gates[c].log_decay;
    }
    // What later chunks of this pass decay earlier ones by.
    float decay = 1.0f;
    alignas(64) float weights[kFoldChunks][kPanel];
    for (size_t c = chunks; c-- > 0;) {
      for (size_t t = 0; t < kPanel; ++t) weights[c][t] = gates[c].weights()[t] * decay;
      decay *= gates[c].decay();
      scale_panel_rows(buffers.v + c * chunk_values, weights[c], panels, buffers.weighted_v + c * chunk_values);
    }
    Ahead ahead;
    const size_t next = HWY_MIN(first + kFoldChunks * kPanel, end), next_count = HWY_MIN(kFoldChunks * kPanel, end - next);
    ahead.add(problem.k, next, next_count, problem.map.dim);
    ahead.add(problem.v, next, next_count, problem.value_dim);
    ahead.spread(tiles_of_panels(features, panels));
    for_panels(panels, [&](size_t p, auto width) HWY_ATTR {
      update_panels<decltype(width)::value>(features, decay, chunks, buffers.phi_k, buffers.weighted_v + p * kPanel * kPanel,
                                            chunk_values, state.sums + p * features * kPanel, ahead);
    });
    ahead.ask_for_all();
    for (size_t c = 0; c < chunks; ++c) {
      row_dots(features, buffers.phi_k + c * features * kPanel, weights[c], c == 0 ? decay : 1.0f, state.normaliser);
    }
  }
}

void read(const LinearProblem& problem, size_t begin, size_t end, const PackedState& state, float* scratch, ClampCount& clamps) {
  const Tag d;
  Arena arena(scratch);
  const ChunkBuffers buffers(arena, problem, 1, 0);
  const size_t features = buffers.features, panels = buffers.panels;
  alignas(64) float mass[kPanel];
  std::fill_n(mass, kPanel, static_cast<float>(state.mass));

  for (size_t first = begin; first < end; first += kPanel) {
    const size_t count = HWY_MIN(kPanel, end - first);
    bool valid[kPanel];
    for (size_t t = 0; t < kPanel; ++t) valid[t] = first + t < end;
    for (size_t g = 0; g < problem.group; ++g) {
      const QueryHead& head = problem.heads[g];
      Ahead ahead;
      const size_t next = HWY_MIN(first + kPanel, end), next_count = HWY_MIN(kPanel, end - next);
      ahead.add(head.q, next, next_count, problem.map.dim);
      ahead.add(head.out, next, next_count, problem.value_dim);
      ahead.spread(tiles_of_panels(kPanel, panels));
      chunk_features(problem.map, buffers, {head.q, first, valid, buffers.panel(buffers.phi_q)});
      alignas(64) float den[kPanel];
      for_lanes([&](size_t lane)
                    HWY_ATTR { hn::StoreU(weighted_rows(features, state.normaliser, buffers.phi_q, lane), d, den + lane); });
      settle_denominators(problem, den, mass, valid, count, buffers.inverse_den,
                          head.denominators == nullptr ? nullptr : head.denominators + first, clamps);
      const size_t ld = panels * kPanel;
      for_panels(panels, [&](size_t p, auto width) HWY_ATTR {
        constexpr size_t kWidth = decltype(width)::value;
        for_tiles<kWidth>(kPanel, [&](size_t m, auto shape) HWY_ATTR {
          auto tile = shape.wide_zero();
          tile.multiply(features, buffers.phi_q + m, UnitStride(), PanelStride(), state.sums + p * features * kPanel,
                        features * kPanel, kPanel);
          tile.scale_rows(buffers.inverse_den + m);
          tile.store(buffers.y + p * kPanel + m * ld, kPanel, ld);
          ahead.ask();
        });
      });
      ahead.ask_for_all();
      put_rows(head.out, first, count, valid, problem.value_dim, buffers.y, ld);
    }
  }
}

size_t scratch_floats(const LinearProblem& problem) {
  Arena forward(nullptr), folding(nullptr);
  const ChunkBuffers for_forward(forward, problem, problem.group, 1);
  const ChunkBuffers for_fold(folding, problem, 0, kFoldChunks);
  return std::max(forward.used(), folding.used());
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace raffia::internal {

HWY_EXPORT(causal_forward);
HWY_EXPORT(fold);
HWY_EXPORT(read);
HWY_EXPORT(scratch_floats);

MapParams::MapParams(const FeatureMap& map, int64_t head)
    : kind(map.kind()),
      dim(static_cast<size_t>(map.dim())),
      rows(static_cast<size_t>(map.rows())),
      features(static_cast<size_t>(map.features())),
      weights(map.weights(head).data()),
      draws(map.draws(head).data()),
      sigma(map.sigma(head).data()),
      bias(map.bias(head).data()),
      input_scale(map.input_scale()),
      output_scale(map.output_scale()) {}

void pack_state(const float* sums, const float* normaliser, const LinearProblem& problem, const PackedState& packed) {
  const size_t features = problem.map.features, columns = problem.value_dim;
  for (size_t p = 0; p < problem.panels(); ++p) {
    const size_t count = std::min(kChunk, columns - p * kChunk);
    for (size_t f = 0; f < features; ++f) {
      float* row = packed.sums + (p * features + f) * kChunk;
      std::fill(std::copy_n(sums + f * columns + p * kChunk, count, row), row + kChunk, 0.0f);
    }
  }
  std::copy_n(normaliser, features, packed.normaliser);
}

void unpack_state(const PackedState& packed, const LinearProblem& problem, float* sums, float* normaliser) {
  const size_t features = problem.map.features, columns = problem.value_dim;
  for (size_t p = 0; p < problem.panels(); ++p) {
    const size_t count = std::min(kChunk, columns - p * kChunk);
    for (size_t f = 0; f < features; ++f) {
      std::copy_n(packed.sums + (p * features + f) * kChunk, count, sums + f * columns + p * kChunk);
    }
  }
  std::copy_n(packed.normaliser, features, normaliser);
}

void clear_state(const LinearProblem& problem, PackedState& packed) {
  std::fill_n(packed.sums, problem.map.features * problem.panels() * kChunk, 0.0f);
  std::fill_n(packed.normaliser, problem.map.features, 0.0f);
  packed.mass = 0;
  packed.log_decay = 0;
}

void copy_state(const LinearProblem& problem, const PackedState& from, PackedState& to) {
  std::copy_n(from.sums, problem.state_floats(), to.sums);
  to.mass = from.mass;
  to.log_decay = from.log_decay;
}

void compose_states(const LinearProblem& problem, const PackedState& earlier, PackedState& later) {
  const double decay = std::exp(later.log_decay);
  const float factor = static_cast<float>(decay);
  const size_t sums = problem.map.features * problem.panels() * kChunk;
  for (size_t i = 0; i < sums; ++i) later.sums[i] += factor * earlier.sums[i];
  for (size_t f = 0; f < problem.map.features; ++f) later.normaliser[f] += factor * earlier.normaliser[f];
  later.mass += decay * earlier.mass;
  later.log_decay += earlier.log_decay;
}

size_t linear_scratch_floats(const LinearProblem& problem) {
  return chosen(KernelOp::linear, HWY_DISPATCH_TABLE(scratch_floats))(problem);
}

void causal_forward(const LinearProblem& problem, size_t begin, size_t end, const Upcoming& upcoming, PackedState& state,
                    float* record, float* scratch, ClampCount& clamps) {
  chosen(KernelOp::linear, HWY_DISPATCH_TABLE(causal_forward))(problem, begin, end, upcoming, state, record, scratch, clamps);
}

void fold(const LinearProblem& problem, size_t begin, size_t end, PackedState& state, float* scratch) {
  chosen(KernelOp::linear, HWY_DISPATCH_TABLE(fold))(problem, begin, end, state, scratch);
}

void read(const LinearProblem& problem, size_t begin, size_t end, const PackedState& state, float* scratch, ClampCount& clamps) {
  chosen(KernelOp::linear, HWY_DISPATCH_TABLE(read))(problem, begin, end, state, scratch, clamps);
}

}  // namespace raffia::internal
#endif  // HWY_ONCE
