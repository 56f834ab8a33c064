// Gradients of linear attention, in the chunks of linear-inl.h.
//
// With dY the gradient of Y = phi(q)^T [S, z] (dO / den, and -(dO . o) / den for the denominator; the latter 0 where it was
// clamped) and dS that of the state after the chunk:
//
//   B       = (dY [V, 1]^T) o M                                  [16, 16]
//   dPhiQ^T = (S dY^T) diag(e) + PhiK^T B^T                      needs the state before the chunk: from left to right
//   dPhiK^T = (dS [V, 1]^T) diag(w) + PhiQ^T B                   needs dS: from right to left
//   dV      = diag(w) PhiK dS + A^T dY
//   dS     <- e_16 dS + PhiQ^T diag(e) dY
//
// A block of 128 tokens is done at once: left to right from the recorded state at its start (features, dPhiQ and B of its 8
// chunks, which stay in L2), then right to left. So features are computed once and neither they nor states are stored for the
// whole length.
//
// Outputs that the forward pass left in bf16 are rounded, and dO . o with them: an error of 2^-9 |dO| |o| in the gradient of the
// denominator, which is most of dPhiQ if few features are active and o hardly depends on q. The error can be measured: without
// clamping phi(q) . dphi(q) is 0, since o does not depend on the length of phi(q); with rounding it is the error times the
// denominator. So it is removed (remove_rounding); fold_gradient has no state to do so and needs outputs in fp32.
//
// Gate: with h_t = phi(q_t) . dphi(q_t) and r_t = phi(k_t) . dphi(k_t), the gradient of log g_t is sum_{s >= t} (h_s - r_s) up to
// the end of the block plus <S, dS> there; in double, and restarted in every block, so that nothing accumulates over the length.

#if defined(RAFFIA_KERNELS_LINEAR_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_LINEAR_BACKWARD_INL_H_
#undef RAFFIA_KERNELS_LINEAR_BACKWARD_INL_H_
#else
#define RAFFIA_KERNELS_LINEAR_BACKWARD_INL_H_
#endif

#include "kernels/linear-inl.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kBlockChunks = kBlock / kPanel;
constexpr size_t kSquare = kPanel * kPanel;

struct BackwardBuffers {
  BackwardBuffers(Arena& arena, const LinearProblem& problem)
      : features(problem.map.features),
        panels(problem.panels()),
        group(problem.group),
        chunk(arena, problem, group * kBlockChunks, kBlockChunks),
        x_k(arena.take(kBlockChunks * problem.map.dim * kPanel)),
        inverse_norm_k(arena.take(kBlockChunks * kPanel)),
        b(arena.take(kBlockChunks * group * kSquare)),
        b_transposed(arena.take(kSquare)),
        mix_transposed(arena.take(kSquare)),
        dden(arena.take(kBlockChunks * group * kPanel)),
        dphi(arena.take(features * kPanel)),
        share(arena.take(features * kPanel)),
        dx(arena.take((problem.map.dim + kPanel) * kPanel)),
        packed_x(arena.take(kSquare)),
        out(arena.take(panels * kSquare)),
        dy(arena.take(kBlockChunks * group * panels * kSquare)),
        dy_reach(arena.take(group * panels * kSquare)),
        dy_transposed(arena.take(panels * kSquare)),
        v_transposed(arena.take(panels * kSquare)),
        row_products(arena.take(kSquare)),
        rows(arena.take(kPanel * HWY_MAX(panels * kPanel, problem.map.dim + kPanel))) {}

  float* phi_q(size_t c, size_t g) const { return chunk.phi_q + (c * group + g) * features * kPanel; }
  float* phi_k(size_t c) const { return chunk.phi_k + c * features * kPanel; }
  float* dy_of(size_t c, size_t g) const { return dy + (c * group + g) * panels * kSquare; }

  size_t features, panels, group;
  ChunkBuffers chunk;     // phi_q for [8][group], phi_k for [8] chunks
  float* x_k;             // [8][d, 16]
  float* inverse_norm_k;  // [8][16]
  float* b;               // [8][group][16, 16]
  float* b_transposed;    // [16, 16]
  float* mix_transposed;  // [16, 16]
  float* dden;            // [8][group][16]: gradient of the denominator
  float* dphi;            // [F, 16]
  float* share;           // [F, 16]: what rounded outputs add to dphi
  float* dx;              // [d, 16], and a panel more to transpose from
  float* packed_x;        // [16, 16]
  float* out;             // [P][16, 16]
  float* dy;              // [8][group][P][16, 16]
  float* dy_reach;        // [group][P][16, 16]: dy of one chunk, rows times e
  float* dy_transposed;   // [16 P, 16]
  float* v_transposed;    // [16 P, 16]
  float* row_products;    // [16, 16]
  float* rows;            // [16, max(16 P, d + 16)] on their way out
};

// x^T [columns, 16] to rows of `out`. `x` has room for a panel more than `columns` rows.
inline HWY_NOINLINE void put_columns(const MutRows& out, size_t first, size_t count, const bool* valid, size_t columns,
                                     const float* x, float* rows) {
  const size_t blocks = (columns + kPanel - 1) / kPanel;
  float* direct = whole_rows(out, first, count, valid, columns);
  float* to = direct != nullptr ? direct : rows;
  const size_t ld = direct != nullptr ? static_cast<size_t>(out.row_stride) : blocks * kPanel;
  alignas(64) float square[kSquare];
  for (size_t p = 0; p < blocks; ++p) {
    transpose(block_rows(x + p * kSquare, kPanel), kPanel, square);
    for (size_t t = 0; t < kPanel; ++t) {
      Row row;
      row.load(square + t * kPanel);
      row.store(to + t * ld + p * kPanel);
    }
  }
  if (direct == nullptr) put_rows(out, first, count, valid, columns, rows, ld);
}

// Rows past `columns` up to the next panel.
HWY_INLINE void zero_last_rows(float* x, size_t columns) {
  std::fill_n(x + columns * kPanel, (kPanel - columns % kPanel) % kPanel * kPanel, 0.0f);
}

// dY of a chunk: `dy` [P][16, 16], and if wanted its transpose [16 P, 16] and the gradient of the denominators [16].
inline HWY_NOINLINE void load_output_gradient(const LinearProblem& problem, const QueryHead& head, size_t first, size_t count,
                                              const bool* valid, const BackwardBuffers& buffers, float* dy, float* dy_transposed,
                                              float* dden) {
  const Tag d;
  alignas(64) float inverse[kPanel], unclamped[kPanel];
  for (size_t t = 0; t < kPanel; ++t) {
    const float recorded = t < count ? head.forward_denominators[first + t] : 0.0f;
    inverse[t] = recorded == 0.0f ? 0.0f : 1.0f / std::abs(recorded);
    unclamped[t] = recorded > 0.0f ? -1.0f : 0.0f;
  }
  const size_t columns = problem.value_dim;
  const Chunk dout = gather(head.dout, first, valid, columns, buffers.chunk.zeros, buffers.chunk.value_staging);
  if (dy_transposed != nullptr) {
    transpose(dout, columns, dy_transposed);
    zero_last_rows(dy_transposed, columns);
    for_lanes([&](size_t lane) HWY_ATTR { scale_columns(dy_transposed, columns, lane, hn::LoadU(d, inverse + lane)); });
  }
  pack(dout, columns, dy);
  scale_panel_rows(dy, inverse, buffers.panels, dy);
  if (dden == nullptr) return;
  pack(gather(head.forward_out, first, valid, columns, buffers.chunk.zeros, buffers.chunk.value_staging), columns, buffers.out);
  for (size_t t = 0; t < kPanel; ++t) {
    for_lanes([&](size_t lane) HWY_ATTR {
      Vec sum = hn::Zero(d);
      for (size_t p = 0; p < buffers.panels; ++p) {
        const size_t at = p * kSquare + t * kPanel + lane;
        sum = hn::MulAdd(hn::LoadU(d, dy + at), hn::LoadU(d, buffers.out + at), sum);
      }
      hn::StoreU(sum, d, buffers.row_products + t * kPanel + lane);
    });
  }
  std::fill_n(dden, kPanel, 0.0f);
  row_dots(kPanel, buffers.row_products, kOnes, 0.0f, dden);
  for_lanes([&](size_t lane)
                HWY_ATTR { hn::StoreU(hn::Mul(hn::LoadU(d, dden + lane), hn::LoadU(d, unclamped + lane)), d, dden + lane); });
}

// The update of a state after it has been read: S <- decay S + sum over parts of phi [F, 16] weighted [16, V], panel by
// panel.
struct StateUpdate {
  float decay;
  size_t parts;
  const float* phi;       // [parts][F, 16]
  const float* weighted;  // [parts][P][16, 16]
};

// Rows m .. m + R of panels p .. p + P of S, updated. A tile of one panel has more rows than one of two.
template <size_t R, size_t P>
HWY_INLINE void update_rows(const PackedState& state, const StateUpdate& update, size_t features, size_t panels, size_t m,
                            size_t p, Ahead& ahead) {
  if constexpr (P > 1 && R > kPairRows) {
    update_rows<R / 2, P>(state, update, features, panels, m, p, ahead);
    update_rows<R - R / 2, P>(state, update, features, panels, m + R / 2, p, ahead);
  } else {
    float* sums = state.sums + (p * features + m) * kPanel;
    const size_t apart = features * kPanel;
    auto tile = TileShape<R, P>::wide_load(sums, apart, kPanel);
    tile.scale(hn::Set(Tag(), update.decay));
    for (size_t g = 0; g < update.parts; ++g) {
      tile.multiply(kPanel, update.phi + (g * features + m) * kPanel, PanelStride(), UnitStride(),
                    update.weighted + (g * panels + p) * kSquare, kSquare, kPanel);
    }
    tile.store(sums, apart, kPanel);
    ahead.ask();
  }
}

// Asks of feature_gradient without an update, and with one.
constexpr size_t asks_of_reading(size_t features) { return tiles_of(features); }
constexpr size_t asks_of_updating(size_t features, size_t panels) {
  return tiles_of(features) * (1 + (kHasPairs ? panels / 2 * tiles_of<2>(kRows) + panels % 2 : panels));
}

// dphi [F, 16] = ([S, z] [X; extra]) diag(lanes) + sum over parts of phi [F, 16] squares [16, 16]: the shape of both dPhiQ^T and
// dPhiK^T. With `update`, the rows of S just read are updated while they are in L1.
inline HWY_NOINLINE void feature_gradient(size_t features, size_t panels, const PackedState& state, const float* x,
                                          const float* extra, const float* lanes, size_t parts, const float* phi,
                                          const float* squares, const StateUpdate* update, Ahead& ahead,
                                          float* HWY_RESTRICT dphi) {
  Row extra_row, lane_row;
  extra_row.load(extra);
  lane_row.load(lanes);
  for_tiles(features, [&](size_t m, auto shape) HWY_ATTR {
    auto tile = shape.zero();
    for (size_t p = 0; p < panels; ++p) {
      tile.multiply(kPanel, state.sums + (p * features + m) * kPanel, PanelStride(), UnitStride(), x + p * kSquare, kPanel);
    }
    tile.add_outer(state.normaliser + m, UnitStride(), extra_row);
    tile.scale_columns(lane_row);
    for (size_t g = 0; g < parts; ++g) {
      tile.multiply(kPanel, phi + (g * features + m) * kPanel, PanelStride(), UnitStride(), squares + g * kSquare, kPanel);
    }
    tile.store(dphi + m * kPanel, kPanel);
    ahead.ask();
    if (update == nullptr) return;
    for_panels(panels, [&](size_t p, auto width) HWY_ATTR {
      update_rows<decltype(shape)::kHeight, decltype(width)::value>(state, *update, features, panels, m, p, ahead);
    });
  });
}

// Removes from `dphi`, `dden` and B^T what rounding of the outputs added to the gradient of the denominators. `phi_k` null: keys
// are only in the state, and there is no B.
inline HWY_NOINLINE void remove_rounding(const QueryHead& head, size_t first, size_t count, const float* phi_q,
                                         const float* phi_k, const PackedState& state, const float* reach,
                                         const BackwardBuffers& buffers, float* dden) {
  if (head.forward_out.dtype == DType::f32) return;
  const Tag d;
  alignas(64) float error[kPanel];
  for_lanes([&](size_t lane) HWY_ATTR { hn::StoreU(column_dots(phi_q, buffers.dphi, buffers.features, lane), d, error + lane); });
  for (size_t t = 0; t < kPanel; ++t) {
    const float denominator = t < count ? head.forward_denominators[first + t] : 0.0f;
    error[t] = denominator > 0.0f ? error[t] / denominator : 0.0f;
    dden[t] -= error[t];
  }
  Row error_row, reach_row;
  error_row.load(error);
  reach_row.load(reach);
  float* squares = buffers.packed_x;  // error_t M_ti, as B^T
  for (size_t i = 0; phi_k != nullptr && i < kPanel; ++i) {
    for_lanes([&](size_t lane) HWY_ATTR {
      const size_t at = i * kPanel + lane;
      const Vec share = hn::Mul(hn::LoadU(d, error + lane), hn::LoadU(d, buffers.mix_transposed + at));
      hn::StoreU(share, d, squares + at);
      hn::StoreU(hn::Sub(hn::LoadU(d, buffers.b_transposed + at), share), d, buffers.b_transposed + at);
    });
  }
  for_tiles(buffers.features, [&](size_t m, auto shape) HWY_ATTR {
    auto tile = shape.zero();
    tile.add_outer(state.normaliser + m, UnitStride(), error_row);
    tile.scale_columns(reach_row);
    if (phi_k != nullptr) tile.multiply(kPanel, phi_k + m * kPanel, PanelStride(), UnitStride(), squares, kPanel);
    tile.store(buffers.share + m * kPanel, kPanel);
  });
  for (size_t i = 0; i < buffers.features * kPanel; i += kLanes) {
    hn::StoreU(hn::Sub(hn::LoadU(d, buffers.dphi + i), hn::LoadU(d, buffers.share + i)), d, buffers.dphi + i);
  }
}

// <S, dS> of sums and normaliser, in double.
inline HWY_NOINLINE double inner_product(const LinearProblem& problem, const float* state, const PackedState& gradient) {
  const Tag d;
  const size_t floats = problem.state_floats() / kPanel * kPanel;
  double total = 0;
  // Sums of 16 lanes x 64 in fp32, then in double.
  for (size_t i = 0; i < floats; i += 64 * kPanel) {
    Vec sum = hn::Zero(d);
    const size_t end = HWY_MIN(floats, i + 64 * kPanel);
    for (size_t j = i; j < end; j += kLanes) sum = hn::MulAdd(hn::LoadU(d, state + j), hn::LoadU(d, gradient.sums + j), sum);
    alignas(64) float lanes[kPanel];
    hn::StoreU(sum, d, lanes);
    for (size_t j = 0; j < kLanes; ++j) total += static_cast<double>(lanes[j]);
  }
  for (size_t i = floats; i < problem.state_floats(); ++i) {
    total += static_cast<double>(state[i]) * static_cast<double>(gradient.sums[i]);
  }
  return total;
}

// The rows that a chunk of block_forward reads and writes.
HWY_INLINE void ask_for_gradient_chunk(const LinearProblem& problem, size_t first, size_t end, Ahead& ahead) {
  const size_t count = HWY_MIN(kPanel, end - first);
  ahead.add(problem.k, first, count, problem.map.dim);
  ahead.add(problem.v, first, count, problem.value_dim);
  for (size_t g = 0; g < problem.group; ++g) {
    const QueryHead& head = problem.heads[g];
    ahead.add(head.q, first, count, problem.map.dim);
    ahead.add(head.dout, first, count, problem.value_dim);
    ahead.add(head.forward_out, first, count, problem.value_dim);
    ahead.add(head.dq, first, count, problem.map.dim);
  }
}

// Left to right over a block: dq, and what the pass from right to left needs.
inline HWY_NOINLINE void block_forward(const LinearProblem& problem, size_t begin, size_t end, PackedState& state,
                                       const BackwardBuffers& buffers, Gates* gates, float* h) {
  const Tag d;
  const size_t features = buffers.features, panels = buffers.panels, dim = problem.map.dim;
  for (size_t c = 0; begin + c * kPanel < end; ++c) {
    const size_t first = begin + c * kPanel, count = HWY_MIN(kPanel, end - first);
    Gates& gate = gates[c];
    load_gates(problem, first, end, gate);
    float* phi_k = buffers.phi_k(c);
    chunk_features_of_two(
        problem.map, buffers.chunk, {problem.heads[0].q, first, gate.valid, buffers.chunk.panel(buffers.phi_q(c, 0))},
        {problem.k, first, gate.valid, {buffers.x_k + c * dim * kPanel, buffers.inverse_norm_k + c * kPanel, phi_k}});
    pack(gather(problem.v, first, gate.valid, problem.value_dim, buffers.chunk.zeros, buffers.chunk.value_staging),
         problem.value_dim, buffers.chunk.v);
    transpose(block_rows(gate.mix[0], kPanel), kPanel, buffers.mix_transposed);
    std::fill_n(h + c * kPanel, kPanel, 0.0f);
    scale_panel_rows(buffers.chunk.v, gate.weights(), panels, buffers.chunk.weighted_v);
    const StateUpdate update{gate.decay(), 1, phi_k, buffers.chunk.weighted_v};
    const bool more = first + kPanel < end;  // the state after the block is not needed
    Ahead ahead;
    if (more) {
      ask_for_gradient_chunk(problem, first + kPanel, end, ahead);
    } else {  // the pass from right to left begins here
      ahead.add(problem.dk, first, count, dim);
      ahead.add(problem.dv, first, count, problem.value_dim);
    }
    const size_t reading = asks_of_reading(features);
    ahead.spread(more ? (problem.group - 1) * reading + asks_of_updating(features, panels) : problem.group * reading);
    for (size_t g = 0; g < problem.group; ++g) {
      const QueryHead& head = problem.heads[g];
      float* phi_q = buffers.phi_q(c, g);
      float* dden = buffers.dden + (c * problem.group + g) * kPanel;
      if (g > 0) chunk_features(problem.map, buffers.chunk, {head.q, first, gate.valid, buffers.chunk.panel(phi_q)});
      load_output_gradient(problem, head, first, count, gate.valid, buffers, buffers.dy_of(c, g), buffers.dy_transposed, dden);
      // B^T [i, t] = (V_i . dY_t + dden_t) M_ti
      for_tiles(kPanel, [&](size_t m, auto shape) HWY_ATTR {
        auto tile = shape.load(dden, 0);
        for (size_t p = 0; p < panels; ++p) {
          tile.multiply(kPanel, buffers.chunk.v + p * kSquare + m * kPanel, PanelStride(), UnitStride(),
                        buffers.dy_transposed + p * kSquare, kPanel);
        }
        tile.multiply_elements(buffers.mix_transposed + m * kPanel, kPanel);
        tile.store(buffers.b_transposed + m * kPanel, kPanel);
      });
      const bool updates = more && g + 1 == problem.group;
      feature_gradient(features, panels, state, buffers.dy_transposed, dden, gate.reach, 1, phi_k, buffers.b_transposed,
                       updates ? &update : nullptr, ahead, buffers.dphi);
      remove_rounding(head, first, count, phi_q, phi_k, state, gate.reach, buffers, dden);
      transpose(block_rows(buffers.b_transposed, kPanel), kPanel, buffers.b + (c * problem.group + g) * kSquare);
      for_lanes([&](size_t lane) HWY_ATTR {
        float* sum = h + c * kPanel + lane;
        hn::StoreU(hn::Add(hn::LoadU(d, sum), column_dots(phi_q, buffers.dphi, features, lane)), d, sum);
      });
      map_features_backward(problem.map, buffers.chunk.x, buffers.chunk.inverse_norm, phi_q, buffers.dphi, problem.map_sums,
                            buffers.packed_x, buffers.dx);
      if (head.dq.data != nullptr) put_columns(head.dq, first, count, gate.valid, dim, buffers.dx, buffers.rows);
    }
    if (more) row_dots(features, phi_k, gate.weights(), gate.decay(), state.normaliser);
  }
}

// diag(e) dY of chunk c and every query head, into dy_reach.
HWY_INLINE void scale_by_reach(const BackwardBuffers& buffers, size_t c, const float* reach) {
  scale_panel_rows(buffers.dy_of(c, 0), reach, buffers.group * buffers.panels, buffers.dy_reach);
}

// dz <- decay dz + sum over g of PhiQ^T (e o dden).
inline HWY_NOINLINE void update_normaliser_gradient(const BackwardBuffers& buffers, size_t c, float decay, const float* reach,
                                                    PackedState& gradient) {
  const Tag d;
  for (size_t g = 0; g < buffers.group; ++g) {
    alignas(64) float weights[kPanel];
    const float* dden = buffers.dden + (c * buffers.group + g) * kPanel;
    for_lanes([&](size_t lane)
                  HWY_ATTR { hn::StoreU(hn::Mul(hn::LoadU(d, dden + lane), hn::LoadU(d, reach + lane)), d, weights + lane); });
    row_dots(buffers.features, buffers.phi_q(c, g), weights, g == 0 ? decay : 1.0f, gradient.normaliser);
  }
}

// dS <- decay dS + sum over g of PhiQ^T diag(e) dY, and dz likewise, for `dy` [group][P][16, 16] and `dden` of chunk c.
inline HWY_NOINLINE void update_gradient(const BackwardBuffers& buffers, size_t c, float decay, const float* reach,
                                         PackedState& gradient, Ahead& ahead) {
  scale_by_reach(buffers, c, reach);
  for_panels(buffers.panels, [&](size_t p, auto width) HWY_ATTR {
    update_panels<decltype(width)::value>(buffers.features, decay, buffers.group, buffers.phi_q(c, 0),
                                          buffers.dy_reach + p * kSquare, buffers.panels * kSquare,
                                          gradient.sums + p * buffers.features * kPanel, ahead);
  });
  update_normaliser_gradient(buffers, c, decay, reach, gradient);
}

// dv rows of chunk c: diag(w) PhiK dS + sum over g of A_g^T dY_g. `scores` [group][16, 16], null for none.
inline HWY_NOINLINE void value_gradient(const LinearProblem& problem, size_t c, size_t first, size_t count, const bool* valid,
                                        const float* weights, const PackedState& gradient, const float* scores,
                                        const BackwardBuffers& buffers) {
  const float* phi_k = buffers.phi_k(c);
  float* direct = whole_rows(problem.dv, first, count, valid, problem.value_dim);
  float* rows = direct != nullptr ? direct : buffers.rows;
  const size_t ld = direct != nullptr ? static_cast<size_t>(problem.dv.row_stride) : buffers.panels * kPanel;
  for_panels(buffers.panels, [&](size_t p, auto width) HWY_ATTR {
    for_tiles<decltype(width)::value>(kPanel, [&](size_t m, auto shape) HWY_ATTR {
      auto tile = shape.wide_zero();
      tile.multiply(buffers.features, phi_k + m, UnitStride(), PanelStride(), gradient.sums + p * buffers.features * kPanel,
                    buffers.features * kPanel, kPanel);
      tile.scale_rows(weights + m);
      for (size_t g = 0; scores != nullptr && g < buffers.group; ++g) {  // row i of A^T begins at t = i
        tile.multiply(kPanel - m, scores + g * kSquare + m * kPanel + m, UnitStride(), PanelStride(),
                      buffers.dy_of(c, g) + p * kSquare + m * kPanel, kSquare, kPanel);
      }
      tile.store(rows + p * kPanel + m * ld, kPanel, ld);
    });
  });
  if (direct == nullptr) put_rows(problem.dv, first, count, valid, problem.value_dim, buffers.rows, ld);
}

// Right to left over a block: dk, dv, dgate and dS. `suffix` is the gradient of log g summed so far, <S, dS> at the end of the
// block first. `upcoming`: its state is the record.
inline HWY_NOINLINE void block_backward(const LinearProblem& problem, size_t begin, size_t end, PackedState& gradient,
                                        const BackwardBuffers& buffers, const Gates* gates, const float* h, double suffix,
                                        const Upcoming& upcoming) {
  const Tag d;
  const size_t features = buffers.features, panels = buffers.panels, dim = problem.map.dim;
  const size_t chunks = (end - begin + kPanel - 1) / kPanel;
  // Each chunk asks for its part of the state that comes next.
  const size_t upcoming_floats = upcoming.state == nullptr ? 0 : upcoming.problem->state_floats();
  for (size_t c = chunks; c-- > 0;) {
    const size_t first = begin + c * kPanel, count = HWY_MIN(kPanel, end - first);
    const Gates& gate = gates[c];
    const float* phi_k = buffers.phi_k(c);
    transpose(gather(problem.v, first, gate.valid, problem.value_dim, buffers.chunk.zeros, buffers.chunk.value_staging),
              problem.value_dim, buffers.v_transposed);
    zero_last_rows(buffers.v_transposed, problem.value_dim);
    if (problem.dv.data != nullptr) {
      for (size_t g = 0; g < problem.group; ++g) {
        chunk_scores(features, buffers.phi_q(c, g), phi_k, gate, buffers.chunk.scores + g * kSquare);
      }
      value_gradient(problem, c, first, count, gate.valid, gate.weights(), gradient, buffers.chunk.scores, buffers);
    }
    Ahead ahead;
    if (c > 0) {
      ahead.add(problem.dk, first - kPanel, kPanel, dim);
      ahead.add(problem.dv, first - kPanel, kPanel, problem.value_dim);
    } else if (upcoming.problem != nullptr) {
      ask_for_gradient_chunk(*upcoming.problem, upcoming.begin, upcoming.problem->length, ahead);
    }
    if (upcoming_floats > 0) ahead.add_floats(upcoming.state + c * upcoming_floats / chunks, upcoming_floats / chunks);
    ahead.spread(asks_of_updating(features, panels));
    scale_by_reach(buffers, c, gate.reach);
    const StateUpdate update{gate.decay(), problem.group, buffers.phi_q(c, 0), buffers.dy_reach};
    feature_gradient(features, panels, gradient, buffers.v_transposed, kOnes, gate.weights(), problem.group, buffers.phi_q(c, 0),
                     buffers.b + c * problem.group * kSquare, &update, ahead, buffers.dphi);
    update_normaliser_gradient(buffers, c, gate.decay(), gate.reach, gradient);
    alignas(64) float r[kPanel];
    for_lanes([&](size_t lane) HWY_ATTR { hn::StoreU(column_dots(phi_k, buffers.dphi, features, lane), d, r + lane); });
    map_features_backward(problem.map, buffers.x_k + c * dim * kPanel, buffers.inverse_norm_k + c * kPanel, phi_k, buffers.dphi,
                          problem.map_sums, buffers.packed_x, buffers.dx);
    if (problem.dk.data != nullptr) put_columns(problem.dk, first, count, gate.valid, dim, buffers.dx, buffers.rows);
    if (problem.dgate.data != nullptr) {
      for (size_t t = count; t-- > 0;) {
        float dgate = 0.0f;
        if (gate.valid[t]) {
          suffix += static_cast<double>(h[c * kPanel + t]) - static_cast<double>(r[t]);
          dgate = static_cast<float>(static_cast<double>(gate.write[t]) * suffix -
                                     static_cast<double>(gate.keep[t]) * static_cast<double>(r[t]));
        }
        problem.dgate.set(first + t, 0, dgate);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
