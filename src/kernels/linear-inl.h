// Causal linear attention, gated or not, in chunks of 16 tokens.
//
// With S the state before the chunk, M_ti = u_i g_{i+1} .. g_t for i <= t (else 0) and e_t = g_1 .. g_t:
//
//   A = (PhiQ PhiK^T) o M                                      [16, 16]
//   Y = diag(e) PhiQ S + A V,   den = e o (PhiQ z) + A 1        [16, V], [16]
//   S <- e_16 S + PhiK^T diag(w) V,   w = last row of M         [F, V]
//
// M comes from running products, row t = g_t times row t-1, so there is neither exp nor a difference of logarithms: hard resets and
// gates of 1 are exact. Everything is a product with a panel of 16 columns (panel-inl.h): PhiQ^T and PhiK^T are panels of tokens, S is
// kept as panels [V/16][F][16] of 8 KiB (F = 128). One S panel is read and then updated before the next is touched: with both
// feature panels it fits a 32 KiB L1, so that S streams from L2 once per chunk.

#if defined(RAFFIA_KERNELS_LINEAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_LINEAR_INL_H_
#undef RAFFIA_KERNELS_LINEAR_INL_H_
#else
#define RAFFIA_KERNELS_LINEAR_INL_H_
#endif

#include "kernels/features-inl.h"
#include "kernels/linear.h"
#include "kernels/math-inl.h"
#include "kernels/panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace raffia {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

static_assert(kChunk == kPanel);

// Hands out scratch. Without memory behind it, it only counts.
class Arena {
 public:
  explicit Arena(float* base) : base_(base) {}
  float* take(size_t floats) {
    float* p = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (floats + kPanel - 1) / kPanel * kPanel;
    return p;
  }
  size_t used() const { return used_; }

 private:
  float* base_;
  size_t used_ = 0;
};

// out[r] = scale * out[r] + sum_t matrix[r][t] weights[t] for [rows, 16]: four rows are summed across lanes at once.
template <class D = hn::CappedTag<float, 8>>
HWY_INLINE void row_dots(size_t rows, const float* HWY_RESTRICT matrix, const float* HWY_RESTRICT weights, float scale,
                         float* HWY_RESTRICT out) {
  size_t r = 0;
#if HWY_TARGET != HWY_SCALAR
  const D d;
  constexpr size_t kSide = hn::MaxLanes(D());
  const hn::RepartitionToWide<D> dw;
  const hn::CappedTag<float, 4> d4;
  const auto folded = [&](size_t row) HWY_ATTR {
    auto sum = hn::Mul(hn::LoadU(d, matrix + row * kPanel), hn::LoadU(d, weights));
    for (size_t j = kSide; j < kPanel; j += kSide) {
      sum = hn::MulAdd(hn::LoadU(d, matrix + row * kPanel + j), hn::LoadU(d, weights + j), sum);
    }
    return sum;
  };
  for (; r + 4 <= rows; r += 4) {
    const auto a = folded(r), b = folded(r + 1), c = folded(r + 2), e = folded(r + 3);
    const auto ab = hn::BitCast(dw, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
    const auto ce = hn::BitCast(dw, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
    const auto sums =
        hn::Add(hn::BitCast(d, hn::InterleaveLower(dw, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(dw, ab, ce)));
    hn::Vec<decltype(d4)> total;
    if constexpr (kSide == 8) {
      total = hn::Add(hn::LowerHalf(d4, sums), hn::UpperHalf(d4, sums));
    } else {
      total = sums;
    }
    hn::StoreU(hn::MulAdd(hn::Set(d4, scale), hn::LoadU(d4, out + r), total), d4, out + r);
  }
#endif
  for (; r < rows; ++r) {
    float sum = 0;
    for (size_t t = 0; t < kPanel; ++t) sum += matrix[r * kPanel + t] * weights[t];
    out[r] = scale * out[r] + sum;
  }
}

// sum_r factors[r] matrix[r][lane] for [rows, 16], in four chains to hide the latency of FMA.
HWY_INLINE Vec weighted_rows(size_t rows, const float* HWY_RESTRICT factors, const float* HWY_RESTRICT matrix, size_t lane) {
  const Tag d;
  Vec s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  size_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const float* p = matrix + r * kPanel + lane;
    s0 = hn::MulAdd(hn::Set(d, factors[r]), hn::LoadU(d, p), s0);
    s1 = hn::MulAdd(hn::Set(d, factors[r + 1]), hn::LoadU(d, p + kPanel), s1);
    s2 = hn::MulAdd(hn::Set(d, factors[r + 2]), hn::LoadU(d, p + 2 * kPanel), s2);
    s3 = hn::MulAdd(hn::Set(d, factors[r + 3]), hn::LoadU(d, p + 3 * kPanel), s3);
  }
  for (; r < rows; ++r) s0 = hn::MulAdd(hn::Set(d, factors[r]), hn::LoadU(d, matrix + r * kPanel + lane), s0);
  return hn::Add(hn::Add(s0, s1), hn::Add(s2, s3));
}

// The gates of one chunk.
struct Gates {
  alignas(64) float keep[kPanel];   // g
  alignas(64) float write[kPanel];  // u; 0 where a token does not take part
  alignas(64) float reach[kPanel];  // e_t = g_1 .. g_t
  alignas(64) float mix[kPanel][kPanel];  // M
  bool valid[kPanel];
  double log_decay;

  const float* weights() const { return mix[kPanel - 1]; }  // w
  float decay() const { return reach[kPanel - 1]; }
};

HWY_INLINE void load_valid(const LinearProblem& problem, size_t first, size_t end, bool* valid) {
  for (size_t t = 0; t < kPanel; ++t) {
    valid[t] = first + t < end &&
               (problem.valid == nullptr || problem.valid[static_cast<int64_t>(first + t) * problem.valid_stride] != 0);
  }
}

HWY_INLINE void load_gates(const LinearProblem& problem, size_t first, size_t end, Gates& gates) {
  const Tag d;
  load_valid(problem, first, end, gates.valid);
  gates.log_decay = 0;
  if (problem.gate.data == nullptr) {
    for (size_t t = 0; t < kPanel; ++t) {
      gates.keep[t] = 1.0f;
      gates.write[t] = gates.valid[t] ? 1.0f : 0.0f;
    }
  } else {
    alignas(64) float logits[kPanel], log_keep[kPanel];
    for (size_t t = 0; t < kPanel; ++t) logits[t] = gates.valid[t] ? problem.gate.at(first + t, 0) : 0.0f;
    for_lanes([&](size_t lane) HWY_ATTR {
      Vec keep, write, log;
      gate_of(d, hn::LoadU(d, logits + lane), keep, write, log);
      hn::StoreU(keep, d, gates.keep + lane);
      hn::StoreU(write, d, gates.write + lane);
      hn::StoreU(log, d, log_keep + lane);
    });
    for (size_t t = 0; t < kPanel; ++t) {
      if (gates.valid[t]) {
        gates.log_decay += static_cast<double>(log_keep[t]);
      } else {
        gates.keep[t] = 1.0f;
        gates.write[t] = 0.0f;
      }
    }
  }
  // Row t of M is g_t times row t-1 plus u_t at column t.
  Row row;
  row.zero();
  float reach = 1.0f;
  alignas(64) static constexpr float kOneHot[2 * kPanel] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  for (size_t t = 0; t < kPanel; ++t) {
    reach *= gates.keep[t];
    gates.reach[t] = reach;
    Row unit;
    unit.load(kOneHot + kPanel - t);
    row.scale(hn::Set(d, gates.keep[t]));
    row.add_product(hn::Set(d, gates.write[t]), unit);
    row.store(gates.mix[t]);
  }
}

// Everything a chunk needs beside the state. `chunks` of keys side by side, `group` query heads.
struct ChunkBuffers {
  ChunkBuffers(Arena& arena, const LinearProblem& problem, size_t group, size_t chunks)
      : features(problem.map.features),
        panels(problem.panels()),
        zeros(arena.take(HWY_MAX(problem.map.dim, problem.value_dim))),
        staging(arena.take(kPanel * HWY_MAX(problem.map.dim, problem.value_dim))),
        value_staging(arena.take(kPanel * problem.value_dim)),
        x(arena.take(problem.map.dim * kPanel)),
        inverse_norm(arena.take(kPanel)),
        phi_q(arena.take(group * features * kPanel)),
        phi_k(arena.take(chunks * features * kPanel)),
        v(arena.take(chunks * panels * kPanel * kPanel)),
        weighted_v(arena.take(chunks * panels * kPanel * kPanel)),
        scores(arena.take(group * kPanel * kPanel)),
        inverse_den(arena.take(group * kPanel)),
        y(arena.take(panels * kPanel * kPanel)) {
    if (zeros != nullptr) std::fill_n(zeros, HWY_MAX(problem.map.dim, problem.value_dim), 0.0f);
  }

  size_t features, panels;
  float* zeros;
  float* staging;        // [16, max(d, V)]
  float* value_staging;  // [16, V]
  float* x;              // [d, 16]
  float* inverse_norm;   // [16]
  float* phi_q;          // [group][F, 16]
  float* phi_k;          // [chunks][F, 16]
  float* v;              // [chunks][P][16, 16]
  float* weighted_v;     // the same, rows times w
  float* scores;         // [group][16, 16]: A
  float* inverse_den;    // [group][16]
  float* y;              // [16, 16 P], rows on their way out
};

// phi^T [F, 16] of the chunk of `rows` from `first`.
HWY_INLINE void chunk_features(const MapParams& map, const Rows& rows, size_t first, const bool* valid, const ChunkBuffers& buffers,
                               float* x, float* inverse_norm, float* phi) {
  const Chunk chunk = gather(rows, first, valid, map.dim, buffers.zeros, buffers.staging);
  if (map.kind == MapKind::identity) {
    transpose(chunk, map.dim, phi);
  } else {
    transpose(chunk, map.dim, x);
    map_features(map, x, inverse_norm, phi);
  }
}

// Writes rows of y [16, ld] to `out`; rows that do not take part become 0, rows at or past `count` are left alone.
HWY_INLINE void put_rows(const MutRows& out, size_t first, size_t count, const bool* valid, size_t columns, const float* y, size_t ld) {
  for (size_t t = 0; t < count; ++t) {
    if (out.direct()) {
      float* p = out.direct_row(first + t);
      if (valid[t]) {
        std::copy_n(y + t * ld, columns, p);
      } else {
        std::fill_n(p, columns, 0.0f);
      }
    } else {
      for (size_t c = 0; c < columns; ++c) out.set(first + t, c, valid[t] ? y[t * ld + c] : 0.0f);
    }
  }
}

// inverse_den = 1 / max(den, eps m), and what the backward pass and the report want to know about it. With `den` <= 0 and no floor the
// output is 0.
HWY_INLINE void settle_denominators(const LinearProblem& problem, const float* den, const float* mass, const bool* valid, size_t count,
                                    float* inverse_den, float* record, ClampCount& clamps) {
  for (size_t t = 0; t < kPanel; ++t) {
    inverse_den[t] = 0.0f;
    if (t >= count) continue;
    float recorded = 0.0f;
    if (valid[t]) {
      const float floor = problem.eps * mass[t];
      const bool clamped = !(den[t] > 0.0f && den[t] >= floor);
      const float divisor = clamped ? floor : den[t];
      inverse_den[t] = divisor > 0.0f ? 1.0f / divisor : 0.0f;
      recorded = clamped ? -divisor : divisor;
      ++clamps.rows;
      clamps.clamped += clamped ? 1 : 0;
    }
    if (record != nullptr) record[t] = recorded;
  }
}

// S_p <- decay S_p + sum over chunks of PhiK^T (w o V)_p, and z likewise.
HWY_INLINE void update_panel(size_t features, float decay, size_t chunks, const float* phi, const float* weighted, size_t chunk_step,
                             float* HWY_RESTRICT sums) {
  const Vec factor = hn::Set(Tag(), decay);
  for_tiles(features, [&](size_t m, auto shape) HWY_ATTR {
    auto tile = shape.load(sums + m * kPanel, kPanel);
    tile.scale(factor);
    for (size_t c = 0; c < chunks; ++c) {
      tile.multiply(kPanel, phi + (c * features + m) * kPanel, PanelStride(), UnitStride(), weighted + c * chunk_step, kPanel);
    }
    tile.store(sums + m * kPanel, kPanel);
  });
}

// A = (PhiQ PhiK^T) o M
HWY_INLINE void chunk_scores(size_t features, const float* phi_q, const float* phi_k, const Gates& gates, float* HWY_RESTRICT scores) {
  for_tiles(kPanel, [&](size_t m, auto shape) HWY_ATTR {
    auto tile = shape.zero();
    tile.multiply(features, phi_q + m, UnitStride(), PanelStride(), phi_k, kPanel);
    tile.multiply_elements(gates.mix[m], kPanel);
    tile.store(scores + m * kPanel, kPanel);
  });
}

HWY_NOINLINE void causal_forward(const LinearProblem& problem, size_t begin, size_t end, PackedState& state, float* record,
                                 float* scratch, ClampCount& clamps) {
  const Tag d;
  Arena arena(scratch);
  const ChunkBuffers buffers(arena, problem, problem.group, 1);
  const size_t features = buffers.features, panels = buffers.panels;
  const size_t panel_floats = features * kPanel;
  alignas(64) static constexpr float kOnes[kPanel] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const bool store_directly = problem.value_dim % kPanel == 0;

  for (size_t first = begin; first < end; first += kPanel) {
    const size_t count = HWY_MIN(kPanel, end - first);
    if (record != nullptr && (first - begin) % kBlock == 0) {
      float* at = record + (first - begin) / kBlock * problem.state_floats();
      std::copy_n(state.sums, panels * panel_floats, at);
      std::copy_n(state.normaliser, features, at + panels * panel_floats);
    }
    Gates gates;
    load_gates(problem, first, end, gates);
    chunk_features(problem.map, problem.k, first, gates.valid, buffers, buffers.x, buffers.inverse_norm, buffers.phi_k);
    const Chunk values = gather(problem.v, first, gates.valid, problem.value_dim, buffers.zeros, buffers.value_staging);
    pack(values, problem.value_dim, buffers.v);
    scale_panel_rows(buffers.v, gates.weights(), panels, buffers.weighted_v);

    alignas(64) float mass[kPanel];
    for (size_t t = 0; t < kPanel; ++t) {
      state.mass = static_cast<double>(gates.keep[t]) * state.mass + static_cast<double>(gates.write[t]);
      mass[t] = static_cast<float>(state.mass);
    }
    state.log_decay += gates.log_decay;

    bool all_valid = count == kPanel;
    for (size_t t = 0; t < kPanel; ++t) all_valid = all_valid && gates.valid[t];

    for (size_t g = 0; g < problem.group; ++g) {
      const QueryHead& head = problem.heads[g];
      float* phi_q = buffers.phi_q + g * panel_floats;
      float* scores = buffers.scores + g * kPanel * kPanel;
      chunk_features(problem.map, head.q, first, gates.valid, buffers, buffers.x, buffers.inverse_norm, phi_q);
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

    // Two chunks ahead, a slice with every panel.
    const size_t ahead = HWY_MIN(first + 2 * kPanel, end), ahead_count = HWY_MIN(kPanel, end - ahead);
    for (size_t p = 0; p < panels; ++p) {
      float* sums = state.sums + p * panel_floats;
      const size_t slice = ahead + ahead_count * p / panels, slice_end = ahead + ahead_count * (p + 1) / panels;
      prefetch(problem.k, slice, slice_end, problem.map.dim);
      prefetch(problem.v, slice, slice_end, problem.value_dim);
      for (size_t g = 0; g < problem.group; ++g) {
        const QueryHead& head = problem.heads[g];
        prefetch(head.q, slice, slice_end, problem.map.dim);
        const float* phi_q = buffers.phi_q + g * panel_floats;
        const float* scores = buffers.scores + g * kPanel * kPanel;
        const float* inverse_den = buffers.inverse_den + g * kPanel;
        const bool direct = store_directly && all_valid && head.out.direct();
        float* y = direct ? head.out.direct_row(first) + p * kPanel : buffers.y;
        const size_t ld = direct ? static_cast<size_t>(head.out.row_stride) : kPanel;
        for_tiles(kPanel, [&](size_t m, auto shape) HWY_ATTR {
          auto tile = shape.zero();
          tile.multiply(features, phi_q + m, UnitStride(), PanelStride(), sums, kPanel);
          tile.scale_rows(gates.reach + m);
          tile.multiply(m + shape.kHeight, scores + m * kPanel, PanelStride(), UnitStride(), buffers.v + p * kPanel * kPanel, kPanel);
          tile.scale_rows(inverse_den + m);
          tile.store(y + m * ld, ld);
        });
        if (!direct) {
          MutRows columns = head.out;
          columns.data = static_cast<std::byte*>(columns.data) +
                         static_cast<int64_t>(p * kPanel * size_of(columns.dtype)) * columns.col_stride;
          put_rows(columns, first, count, gates.valid, HWY_MIN(kPanel, problem.value_dim - p * kPanel), buffers.y, kPanel);
        }
      }
      update_panel(features, gates.decay(), 1, buffers.phi_k, buffers.weighted_v + p * kPanel * kPanel, 0, sums);
    }
    row_dots(features, buffers.phi_k, gates.weights(), gates.decay(), state.normaliser);
  }
}

// Several chunks are folded per pass over S: loads and stores of S are shared by 64 tokens.
HWY_NOINLINE void fold(const LinearProblem& problem, size_t begin, size_t end, PackedState& state, float* scratch) {
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
      chunk_features(problem.map, problem.k, at, gates[c].valid, buffers, buffers.x, buffers.inverse_norm,
                     buffers.phi_k + c * features * kPanel);
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
    const size_t ahead = HWY_MIN(first + kFoldChunks * kPanel, end), ahead_count = HWY_MIN(kFoldChunks * kPanel, end - ahead);
    for (size_t p = 0; p < panels; ++p) {
      const size_t slice = ahead + ahead_count * p / panels, slice_end = ahead + ahead_count * (p + 1) / panels;
      prefetch(problem.k, slice, slice_end, problem.map.dim);
      prefetch(problem.v, slice, slice_end, problem.value_dim);
      update_panel(features, decay, chunks, buffers.phi_k, buffers.weighted_v + p * kPanel * kPanel, chunk_values,
                   state.sums + p * features * kPanel);
    }
    for (size_t c = 0; c < chunks; ++c) {
      row_dots(features, buffers.phi_k + c * features * kPanel, weights[c], c == 0 ? decay : 1.0f, state.normaliser);
    }
  }
}

HWY_NOINLINE void read(const LinearProblem& problem, size_t begin, size_t end, const PackedState& state, float* scratch,
                       ClampCount& clamps) {
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
      prefetch(head.q, HWY_MIN(first + kPanel, end), HWY_MIN(first + 2 * kPanel, end), problem.map.dim);
      chunk_features(problem.map, head.q, first, valid, buffers, buffers.x, buffers.inverse_norm, buffers.phi_q);
      alignas(64) float den[kPanel];
      for_lanes([&](size_t lane) HWY_ATTR {
        hn::StoreU(weighted_rows(features, state.normaliser, buffers.phi_q, lane), d, den + lane);
      });
      settle_denominators(problem, den, mass, valid, count, buffers.inverse_den,
                          head.denominators == nullptr ? nullptr : head.denominators + first, clamps);
      const size_t ld = panels * kPanel;
      for (size_t p = 0; p < panels; ++p) {
        for_tiles(kPanel, [&](size_t m, auto shape) HWY_ATTR {
          auto tile = shape.zero();
          tile.multiply(features, buffers.phi_q + m, UnitStride(), PanelStride(), state.sums + p * features * kPanel, kPanel);
          tile.scale_rows(buffers.inverse_den + m);
          tile.store(buffers.y + p * kPanel + m * ld, ld);
        });
      }
      put_rows(head.out, first, count, valid, problem.value_dim, buffers.y, ld);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia
HWY_AFTER_NAMESPACE();

#endif
