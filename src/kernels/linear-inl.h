// Causal linear attention, gated or not, in chunks of 16 tokens.
//
// With S the state before the chunk, M_ti = u_i g_{i+1} .. g_t for i <= t (else 0) and e_t = g_1 .. g_t:
//
//   A = (PhiQ PhiK^T) o M                                      [16, 16]
//   Y = diag(e) PhiQ S + A V,   den = e o (PhiQ z) + A 1        [16, V], [16]
//   S <- e_16 S + PhiK^T diag(w) V,   w = last row of M         [F, V]
//
// M comes from running products, row t = g_t times row t-1, so there is neither exp nor a difference of logarithms: hard resets
// and gates of 1 are exact. Everything is a product with a panel of 16 columns (panel-inl.h): PhiQ^T and PhiK^T are panels of
// tokens, S is kept as panels [V/16][F][16] of 8 KiB (F = 128). One S panel is read and then updated before the next is touched:
// with both feature panels it fits a 32 KiB L1, so that S streams from L2 once per chunk. Where panels go in pairs (AVX-512), all
// that is a little more than 32 KiB, the L1 of Zen 4; Ice Lake and Zen 5 have 48.

#if defined(RAFFIA_KERNELS_LINEAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_LINEAR_INL_H_
#undef RAFFIA_KERNELS_LINEAR_INL_H_
#else
#define RAFFIA_KERNELS_LINEAR_INL_H_
#endif

#include <limits>

#include "kernels/chunk-inl.h"
#include "kernels/features-inl.h"
#include "kernels/linear.h"
#include "kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

static_assert(kChunk == kPanel);

// A row of ones: sums across lanes are dot products with it.
alignas(64) inline constexpr float kOnes[kPanel] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// Allocates from scratch. Without memory it only counts.
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
HWY_NOINLINE void row_dots(size_t rows, const float* HWY_RESTRICT matrix, const float* HWY_RESTRICT weights, float scale,
                           float* HWY_RESTRICT out) {
  size_t r = 0;
#if HWY_TARGET != HWY_SCALAR
  const D d;
  constexpr size_t kSide = hn::MaxLanes(D());
  const hn::CappedTag<float, 4> d4;
  const auto folded = [&](size_t row) HWY_ATTR {
    auto sum = hn::Mul(hn::LoadU(d, matrix + row * kPanel), hn::LoadU(d, weights));
    for (size_t j = kSide; j < kPanel; j += kSide) {
      sum = hn::MulAdd(hn::LoadU(d, matrix + row * kPanel + j), hn::LoadU(d, weights + j), sum);
    }
    return sum;
  };
  for (; r < rows / 4 * 4; r += 4) {  // r + 4 could wrap around, GCC warns on Arm
    const auto total = sums_of_four(d, folded(r), folded(r + 1), folded(r + 2), folded(r + 3));
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
  alignas(64) float keep[kPanel];         // g
  alignas(64) float write[kPanel];        // u; 0 where a token does not take part
  alignas(64) float reach[kPanel];        // e_t = g_1 .. g_t
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

inline HWY_NOINLINE void load_gates(const LinearProblem& problem, size_t first, size_t end, Gates& gates) {
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
      : dim(problem.map.dim),
        features(problem.map.features),
        panels(problem.panels()),
        zeros(arena.take(HWY_MAX(problem.map.dim, problem.value_dim))),
        staging(arena.take(kPanel * HWY_MAX(problem.map.dim, problem.value_dim))),
        value_staging(arena.take(kPanel * problem.value_dim)),
        x(arena.take(2 * problem.map.dim * kPanel)),
        inverse_norm(arena.take(2 * kPanel)),
        phi_q(arena.take(group * features * kPanel)),
        phi_k(arena.take(chunks * features * kPanel)),
        v(arena.take(chunks * panels * kPanel * kPanel)),
        weighted_v(arena.take(chunks * panels * kPanel * kPanel)),
        scores(arena.take(group * kPanel * kPanel)),
        inverse_den(arena.take(group * kPanel)),
        y(arena.take(panels * kPanel * kPanel)) {
    if (zeros != nullptr) std::fill_n(zeros, HWY_MAX(problem.map.dim, problem.value_dim), 0.0f);
  }

  // Through x and inverse_norm of either of two panels.
  MapPanel panel(float* phi, size_t which = 0) const { return {x + which * dim * kPanel, inverse_norm + which * kPanel, phi}; }

  size_t dim, features, panels;
  float* zeros;
  float* staging;        // [16, max(d, V)]
  float* value_staging;  // [16, V]
  float* x;              // [2][d, 16]
  float* inverse_norm;   // [2][16]
  float* phi_q;          // [group][F, 16]
  float* phi_k;          // [chunks][F, 16]
  float* v;              // [chunks][P][16, 16]
  float* weighted_v;     // the same, rows times w
  float* scores;         // [group][16, 16]: A
  float* inverse_den;    // [group][16]
  float* y;              // [16, 16 P], rows on their way out
};

// A chunk of rows, and what it becomes.
struct MappedChunk {
  const Rows& rows;
  size_t first;
  const bool* valid;
  MapPanel panel;
};

// x^T of a chunk, where the map takes it: phi if x are the features already.
HWY_INLINE void load_panel(const MapParams& map, const ChunkBuffers& buffers, const MappedChunk& chunk) {
  transpose(gather(chunk.rows, chunk.first, chunk.valid, map.dim, buffers.zeros, buffers.staging), map.dim,
            map.kind == MapKind::identity ? chunk.panel.phi : chunk.panel.x);
}

// phi^T [F, 16] of a chunk.
inline HWY_NOINLINE void chunk_features(const MapParams& map, const ChunkBuffers& buffers, const MappedChunk& chunk) {
  load_panel(map, buffers, chunk);
  if (map.kind != MapKind::identity) map_features(map, chunk.panel);
}

// Of two chunks, the panel of the second one behind that of the first one in memory.
inline HWY_NOINLINE void chunk_features_of_two(const MapParams& map, const ChunkBuffers& buffers, const MappedChunk& chunk,
                                               const MappedChunk& second) {
  load_panel(map, buffers, chunk);
  load_panel(map, buffers, second);
  if (map.kind != MapKind::identity) map_two(map, chunk.panel, second.panel);
}

// Writes rows of y [16, ld] to `out`; rows that do not take part become 0, rows at or past `count` are not changed.
inline HWY_NOINLINE void put_rows(const MutRows& out, size_t first, size_t count, const bool* valid, size_t columns,
                                  const float* y, size_t ld) {
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

// Where rows of a whole chunk may be stored without a detour: whole panels of them, all taking part. Null: put_rows has to do it.
HWY_INLINE float* whole_rows(const MutRows& out, size_t first, size_t count, const bool* valid, size_t columns) {
  bool whole = count == kPanel && columns % kPanel == 0 && out.direct() && out.row_stride > 0;
  for (size_t t = 0; t < kPanel; ++t) whole = whole && valid[t];
  return whole ? out.direct_row(first) : nullptr;
}

// What a row is divided by: its denominator, or the floor if that is larger. A divisor too small to invert gives 0.
struct Divisor {
  Divisor(float den, float floor)
      : clamped(den < std::max(floor, std::numeric_limits<float>::min())),
        value(clamped ? (floor < std::numeric_limits<float>::min() ? 0.0f : floor) : den),
        inverse(value == 0.0f ? 0.0f : 1.0f / value) {}

  bool clamped;  // false for NaN, which is not hidden
  float value, inverse;
};

// inverse_den = 1 / max(den, eps m), and what the backward pass and the report need of it. With `den` <= 0 and no floor the
// output is 0.
inline HWY_NOINLINE void settle_denominators(const LinearProblem& problem, const float* den, const float* mass, const bool* valid,
                                             size_t count, float* inverse_den, float* record, ClampCount& clamps) {
  for (size_t t = 0; t < kPanel; ++t) {
    inverse_den[t] = 0.0f;
    if (t >= count) continue;
    float recorded = 0.0f;
    if (valid[t]) {
      const Divisor divisor(den[t], problem.eps * mass[t]);
      inverse_den[t] = divisor.inverse;
      recorded = divisor.clamped ? -divisor.value : divisor.value;
      ++clamps.rows;
      clamps.clamped += divisor.clamped ? 1 : 0;
    }
    if (record != nullptr) record[t] = recorded;
  }
}

// S_p <- decay S_p + sum over chunks of PhiK^T (w o V)_p, for P panels.
template <size_t P>
HWY_NOINLINE void update_panels(size_t features, float decay, size_t chunks, const float* phi, const float* weighted,
                                size_t chunk_step, float* HWY_RESTRICT sums, Ahead& ahead) {
  const Vec factor = hn::Set(Tag(), decay);
  const size_t apart = features * kPanel;
  for_tiles<P>(features, [&](size_t m, auto shape) HWY_ATTR {
    auto tile = shape.wide_load(sums + m * kPanel, apart, kPanel);
    if (decay != 1.0f) tile.scale(factor);
    for (size_t c = 0; c < chunks; ++c) {
      tile.multiply(kPanel, phi + (c * features + m) * kPanel, PanelStride(), UnitStride(), weighted + c * chunk_step,
                    kPanel * kPanel, kPanel);
    }
    tile.store(sums + m * kPanel, apart, kPanel);
    ahead.ask();
  });
}

// A = (PhiQ PhiK^T) o M
inline HWY_NOINLINE void chunk_scores(size_t features, const float* phi_q, const float* phi_k, const Gates& gates,
                                      float* HWY_RESTRICT scores) {
  for_tiles(kPanel, [&](size_t m, auto shape) HWY_ATTR {
    auto tile = shape.zero();
    tile.multiply(features, phi_q + m, UnitStride(), PanelStride(), phi_k, kPanel);
    tile.multiply_elements(gates.mix[m], kPanel);
    tile.store(scores + m * kPanel, kPanel);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
