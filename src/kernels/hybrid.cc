// Queries read in groups of 64: the state does not change within a block, so that a panel of it serves them all from L1.
#include "kernels/hybrid.h"

#include <algorithm>
#include <cmath>

#include "core/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/hybrid.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off: foreach_target.h comes first
#include "kernels/linear_backward-inl.h"
#include "kernels/step-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {

constexpr size_t kReadChunks = 4;

// How a row combines its parts: out = exact * o + far * y.
struct Merge {
  Merge(float logsumexp, float c, float y, ClampCount& clamps, bool holds_something) {
    ++clamps.rows;
    if (y <= 0.0f) {  // a NaN is not hidden
      clamps.clamped += holds_something ? 1 : 0;
      total = logsumexp;
      return;
    }
    const float greatest = std::max(logsumexp, c);
    const float weight = std::exp(logsumexp - greatest), far_weight = std::exp(c - greatest);
    const float sum = weight + far_weight * y;
    exact = weight / sum;
    far = far_weight / sum;
    total = greatest + std::log(sum);
    denominator = std::exp(total - c);
  }

  float exact = 1, far = 0;
  float total;            // logsumexp of the whole
  float denominator = 0;  // exp(total - c)
};

void far_read(const LinearProblem& problem, const FarHead* far, size_t begin, size_t end, const float* reach,
              const AfterRead& after, const PackedState& state, float* scratch, ClampCount& clamps) {
  const Tag d;
  Arena arena(scratch);
  const ChunkBuffers buffers(arena, problem, problem.group * kReadChunks, 0);
  const size_t features = buffers.features, panels = buffers.panels;
  const bool whole_panels = problem.value_dim % kPanel == 0;
  const bool holds_something = state.mass > 0;

  for (size_t first = begin; first < end; first += kReadChunks * kPanel) {
    const size_t chunks = HWY_MIN(kReadChunks, (end - first + kPanel - 1) / kPanel);
    bool valid[kReadChunks][kPanel];
    bool all_valid[kReadChunks];
    for (size_t c = 0; c < chunks; ++c) {
      load_valid(problem, first + c * kPanel, end, valid[c]);
      all_valid[c] = std::all_of(valid[c], valid[c] + kPanel, [](bool v) { return v; });
    }
    for (size_t g = 0; g < problem.group; ++g) {
      const QueryHead& head = problem.heads[g];
      alignas(64) float exact[kReadChunks][kPanel];
      float* phi = buffers.phi_q + g * kReadChunks * features * kPanel;
      const auto of_queries = [&](size_t c, size_t which) -> MappedChunk {
        return {head.q, first + c * kPanel, valid[c], buffers.panel(phi + c * features * kPanel, which)};
      };
      for (size_t c = 0; holds_something && c < chunks; c += 2) {
        if (c + 1 < chunks) {
          chunk_features_of_two(problem.map, buffers, of_queries(c, 0), of_queries(c + 1, 1));
        } else {
          chunk_features(problem.map, buffers, of_queries(c, 0));
        }
      }
      for (size_t c = 0; c < chunks; ++c) {
        const size_t at = first + c * kPanel, count = HWY_MIN(kPanel, end - at);
        alignas(64) float y[kPanel], weight[kPanel];
        float* phi_q = phi + c * features * kPanel;
        std::fill_n(y, kPanel, 0.0f);
        if (holds_something) {
          for_lanes([&](size_t lane)
                        HWY_ATTR { hn::StoreU(weighted_rows(features, state.normaliser, phi_q, lane), d, y + lane); });
        }
        for (size_t t = 0; t < kPanel; ++t) {
          exact[c][t] = weight[t] = 0.0f;
          if (t >= count) continue;
          float denominator = 0.0f;
          if (valid[c][t]) {
            const Merge merge(far[g].logsumexp.readable().at(at + t, 0), far[g].log_scale, y[t] * reach[at + t], clamps,
                              holds_something);
            exact[c][t] = merge.exact;
            weight[t] = merge.far * reach[at + t];
            denominator = merge.denominator;
            far[g].logsumexp.set(at + t, 0, merge.total);
          }
          if (head.denominators != nullptr) head.denominators[at + t] = denominator;
        }
        if (!holds_something) {
          for (size_t t = 0; t < count; ++t) {
            for (size_t i = 0; !valid[c][t] && i < problem.value_dim; ++i) head.out.set(at + t, i, 0.0f);
          }
          continue;
        }
        for_lanes([&](size_t lane) HWY_ATTR { scale_columns(phi_q, features, lane, hn::LoadU(d, weight + lane)); });
      }
      if (!holds_something) continue;
      Ahead ahead;
      const size_t next = first + kReadChunks * kPanel;
      if (next < end) {
        ahead.add(head.q, next, HWY_MIN(kReadChunks * kPanel, end - next), problem.map.dim);
        ahead.add(head.out, next, HWY_MIN(kReadChunks * kPanel, end - next), problem.value_dim);
      } else {
        if (g == 0) ahead.add(problem.k, after.keys_begin, after.keys_end - after.keys_begin, problem.map.dim);
        if (g == 0) ahead.add(problem.v, after.keys_begin, after.keys_end - after.keys_begin, problem.value_dim);
        ahead.add(head.q, after.queries_begin, after.queries_end - after.queries_begin, problem.map.dim);
        ahead.add(head.out, after.queries_begin, after.queries_end - after.queries_begin, problem.value_dim);
      }
      ahead.spread(chunks * tiles_of_panels(kPanel, panels));
      for_panels(panels, [&](size_t p, auto width) HWY_ATTR {
        constexpr size_t kWidth = decltype(width)::value;
        const size_t left = problem.value_dim - p * kPanel;
        const MutRows columns = head.out.columns_from(p * kPanel);
        for (size_t c = 0; c < chunks; ++c) {
          const size_t at = first + c * kPanel, count = HWY_MIN(kPanel, end - at);
          const bool direct = whole_panels && all_valid[c] && head.out.direct() && head.out.row_stride > 0;
          float* y = direct ? columns.direct_row(at) : buffers.y;  // [kWidth][16, 16]
          const size_t ld = direct ? static_cast<size_t>(columns.row_stride) : kPanel;
          const size_t apart = direct ? kPanel : kPanel * kPanel;
          if (!direct) {
            const size_t taken = HWY_MIN(kWidth * kPanel, left);
            pack(gather(columns.readable(), at, valid[c], taken, buffers.zeros, buffers.value_staging), taken, y);
          }
          for_tiles<kWidth>(kPanel, [&](size_t m, auto shape) HWY_ATTR {
            auto tile = shape.wide_load(y + m * ld, apart, ld);
            tile.scale_rows(exact[c] + m);
            tile.multiply(features, phi + c * features * kPanel + m, UnitStride(), PanelStride(),
                          state.sums + p * features * kPanel, features * kPanel, kPanel);
            tile.store(y + m * ld, apart, ld);
            ahead.ask();
          });
          for (size_t w = 0; w < kWidth && !direct; ++w) {
            put_rows(head.out.columns_from((p + w) * kPanel), at, count, valid[c], HWY_MIN(kPanel, left - w * kPanel),
                     y + w * apart, kPanel);
          }
        }
      });
      ahead.ask_for_all();
    }
  }
}

void far_read_backward(const LinearProblem& problem, size_t begin, size_t end, const float* reach, const PackedState& state,
                       float* h, double* dlog_scale, float* scratch) {
  const Tag d;
  Arena arena(scratch);
  const BackwardBuffers buffers(arena, problem);
  for (size_t first = begin; first < end; first += kPanel) {
    const size_t count = HWY_MIN(kPanel, end - first);
    bool valid[kPanel];
    load_valid(problem, first, end, valid);
    alignas(64) float lanes[kPanel], sum[kPanel];
    for (size_t t = 0; t < kPanel; ++t) lanes[t] = t < count ? reach[first + t] : 0.0f;
    std::fill_n(sum, kPanel, 0.0f);
    Ahead ahead;
    const size_t next = HWY_MIN(first + kPanel, end), next_count = HWY_MIN(kPanel, end - next);
    for (size_t g = 0; g < problem.group; ++g) {
      ahead.add(problem.heads[g].q, next, next_count, problem.map.dim);
      ahead.add(problem.heads[g].dout, next, next_count, problem.value_dim);
      ahead.add(problem.heads[g].forward_out, next, next_count, problem.value_dim);
    }
    ahead.spread(problem.group * asks_of_reading(buffers.features));
    for (size_t g = 0; g < problem.group; ++g) {
      const QueryHead& head = problem.heads[g];
      float* dden = buffers.dden + g * kPanel;
      chunk_features(problem.map, buffers.chunk, {head.q, first, valid, buffers.chunk.panel(buffers.phi_q(0, g))});
      load_output_gradient(problem, head, first, count, valid, buffers, buffers.dy, buffers.dy_transposed, dden);
      feature_gradient(buffers.features, buffers.panels, state, buffers.dy_transposed, dden, lanes, 0, nullptr, nullptr, nullptr,
                       ahead, buffers.dphi);
      alignas(64) float dots[kPanel];
      for_lanes([&](size_t lane) HWY_ATTR {
        hn::StoreU(column_dots(buffers.phi_q(0, g), buffers.dphi, buffers.features, lane), d, dots + lane);
      });
      for (size_t t = 0; t < kPanel; ++t) {
        sum[t] += dots[t];
        dlog_scale[g] += static_cast<double>(dots[t]);
      }
      map_features_backward(problem.map, buffers.chunk.x, buffers.chunk.inverse_norm, buffers.phi_q(0, g), buffers.dphi,
                            problem.map_sums, buffers.packed_x, buffers.dx);
      if (head.dq.data != nullptr) put_columns(head.dq, first, count, valid, problem.map.dim, buffers.dx, buffers.rows);
    }
    for (size_t t = 0; t < count; ++t) h[first + t] = valid[t] ? sum[t] : 0.0f;
  }
}

void far_read_gradient(const LinearProblem& problem, size_t begin, size_t end, const float* reach, float decay,
                       PackedState& gradient, float* scratch) {
  Arena arena(scratch);
  const BackwardBuffers buffers(arena, problem);
  for (size_t first = begin; first < end; first += kPanel) {
    const size_t count = HWY_MIN(kPanel, end - first);
    bool valid[kPanel];
    load_valid(problem, first, end, valid);
    alignas(64) float rows[kPanel];
    for (size_t t = 0; t < kPanel; ++t) rows[t] = t < count ? reach[first + t] : 0.0f;
    for (size_t g = 0; g < problem.group; ++g) {
      const QueryHead& head = problem.heads[g];
      chunk_features(problem.map, buffers.chunk, {head.q, first, valid, buffers.chunk.panel(buffers.phi_q(0, g))});
      load_output_gradient(problem, head, first, count, valid, buffers, buffers.dy + g * buffers.panels * kSquare, nullptr,
                           buffers.dden + g * kPanel);
    }
    Ahead ahead;
    update_gradient(buffers, 0, first == begin ? decay : 1.0f, rows, gradient, ahead);
  }
}

void far_fold_backward(const LinearProblem& problem, size_t begin, size_t end, const PackedState& gradient, float& decay,
                       float* r, float* scratch) {
  const Tag d;
  Arena arena(scratch);
  const BackwardBuffers buffers(arena, problem);
  for (size_t chunk = (end - begin + kPanel - 1) / kPanel; chunk-- > 0;) {
    const size_t first = begin + chunk * kPanel, count = HWY_MIN(kPanel, end - first);
    Gates gates;
    load_gates(problem, first, end, gates);
    alignas(64) float weights[kPanel], sum[kPanel];
    for (size_t t = 0; t < kPanel; ++t) weights[t] = gates.weights()[t] * decay;
    float* phi_k = buffers.phi_k(0);
    chunk_features(problem.map, buffers.chunk, {problem.k, first, gates.valid, buffers.chunk.panel(phi_k)});
    transpose(gather(problem.v, first, gates.valid, problem.value_dim, buffers.chunk.zeros, buffers.chunk.value_staging),
              problem.value_dim, buffers.v_transposed);
    zero_last_rows(buffers.v_transposed, problem.value_dim);
    if (problem.dv.data != nullptr) {
      value_gradient(problem, 0, first, count, gates.valid, weights, gradient, nullptr, buffers);
    }
    Ahead ahead;
    if (chunk > 0) {
      ahead.add(problem.k, first - kPanel, kPanel, problem.map.dim);
      ahead.add(problem.v, first - kPanel, kPanel, problem.value_dim);
    }
    ahead.spread(asks_of_reading(buffers.features));
    feature_gradient(buffers.features, buffers.panels, gradient, buffers.v_transposed, kOnes, weights, 0, nullptr, nullptr,
                     nullptr, ahead, buffers.dphi);
    for_lanes([&](size_t lane) HWY_ATTR { hn::StoreU(column_dots(phi_k, buffers.dphi, buffers.features, lane), d, sum + lane); });
    for (size_t t = 0; t < count; ++t) r[first + t] = gates.valid[t] ? sum[t] : 0.0f;
    map_features_backward(problem.map, buffers.chunk.x, buffers.chunk.inverse_norm, phi_k, buffers.dphi, problem.map_sums,
                          buffers.packed_x, buffers.dx);
    if (problem.dk.data != nullptr) put_columns(problem.dk, first, count, gates.valid, problem.map.dim, buffers.dx, buffers.rows);
    decay *= gates.decay();
  }
}

size_t far_scratch(const LinearProblem& problem) {
  Arena arena(nullptr);
  const ChunkBuffers buffers(arena, problem, problem.group * kReadChunks, 0);
  return arena.used();
}

size_t far_backward_scratch(const LinearProblem& problem) {
  Arena arena(nullptr);
  const BackwardBuffers buffers(arena, problem);
  return arena.used();
}

// y [N vectors] = phi^T S, in two sums: the state comes from L2, which is faster than one multiply-add waits for another.
template <size_t N, class D>
HWY_INLINE void read_columns(D d, size_t features, size_t ld, const float* phi, const float* sums, float* y) {
  using Columns = PanelRow<N, D>;
  Columns even, odd, row;
  even.zero();
  odd.zero();
  size_t f = 0;
  for (; f + 2 <= features; f += 2) {
    row.load(sums + f * ld);
    even.add_product(hn::Set(d, phi[f]), row);
    row.load(sums + (f + 1) * ld);
    odd.add_product(hn::Set(d, phi[f + 1]), row);
  }
  if (f < features) {
    row.load(sums + f * ld);
    even.add_product(hn::Set(d, phi[f]), row);
  }
  even.add(odd);
  even.store(y);
}

void gate_products(const float* logits, size_t heads, const float* present, size_t begin, size_t end, float* reach,
                   float* gates) {
  const Tag d;
  const size_t count = (end - begin) * heads;
  const float* first = logits + begin * heads;
  for (size_t i = 0; i < count; i += kLanes) {
    Vec keep, write, log_keep;
    gate_of(d, load_some(first + i, count - i), keep, write, log_keep);
    store_some(keep, gates + i, count - i);
  }
  for (size_t t = begin; t < end; ++t, gates += heads) {
    if (present[t] == 0.0f) continue;
    for (size_t g = 0; g < heads; g += kLanes) {
      const size_t left = heads - g;
      store_some(hn::Mul(load_some(reach + g, left), load_some(gates + g, left)), reach + g, left);
    }
  }
}

void far_step(const FarStep& task, float* scratch, ClampCount& clamps) {
  const size_t features = task.map.features, columns = task.value_dim, dim = task.map.dim;
  const size_t padded_rows = (HWY_MAX(task.map.rows, dim) + kPanel - 1) / kPanel * kPanel;
  Arena arena(scratch);
  float* x = arena.take(dim);
  float* projected = arena.take(padded_rows);
  float* second = arena.take(padded_rows);
  float* phi = arena.take(features);
  float* y = arena.take(columns);

  for (size_t g = 0; g < task.group; ++g) {
    const float* phi_q = row_pointer(task.q, g, dim, x);
    if (task.map.kind != MapKind::identity) {
      if (phi_q != x) std::copy_n(phi_q, dim, x);
      prepare_row(task.map, x);
      if (has_projection(task.map.kind)) multiply_vectors<1>(task.map.weights, task.map.rows, dim, {x}, {projected});
      map_row(task.map, x, projected, second, phi);
      phi_q = phi;
    }
    const Merge merge(task.logsumexp[g], task.log_scale[g], task.reach * row_dot(phi_q, task.normaliser, features), clamps, true);
    if (merge.far == 0.0f) continue;
    size_t c = for_columns(columns, [&](size_t at, auto width, auto lanes) HWY_ATTR {
      read_columns<decltype(width)::value>(lanes, features, columns, phi_q, task.sums + at, y + at);
    });
    for (; c < columns; ++c) {
      y[c] = 0.0f;
      for (size_t f = 0; f < features; ++f) y[c] += phi_q[f] * task.sums[f * columns + c];
    }
    const float far = merge.far * task.reach;
    float* out = task.out.direct_row(g);
    for (size_t i = 0; i < columns; ++i) out[i] = merge.exact * out[i] + far * y[i];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace raffia::internal {

HWY_EXPORT(far_read);
HWY_EXPORT(far_read_backward);
HWY_EXPORT(far_read_gradient);
HWY_EXPORT(far_fold_backward);
HWY_EXPORT(far_scratch);
HWY_EXPORT(far_backward_scratch);
HWY_EXPORT(gate_products);
HWY_EXPORT(far_step);

void far_read(const LinearProblem& problem, const FarHead* far, size_t begin, size_t end, const float* reach,
              const AfterRead& after, const PackedState& state, float* scratch, ClampCount& clamps) {
  chosen(KernelOp::hybrid, HWY_DISPATCH_TABLE(far_read))(problem, far, begin, end, reach, after, state, scratch, clamps);
}

void far_read_backward(const LinearProblem& problem, size_t begin, size_t end, const float* reach, const PackedState& state,
                       float* h, double* dlog_scale, float* scratch) {
  chosen(KernelOp::hybrid, HWY_DISPATCH_TABLE(far_read_backward))(problem, begin, end, reach, state, h, dlog_scale, scratch);
}

void far_read_gradient(const LinearProblem& problem, size_t begin, size_t end, const float* reach, float decay,
                       PackedState& gradient, float* scratch) {
  chosen(KernelOp::hybrid, HWY_DISPATCH_TABLE(far_read_gradient))(problem, begin, end, reach, decay, gradient, scratch);
}

void far_fold_backward(const LinearProblem& problem, size_t begin, size_t end, const PackedState& gradient, float& decay,
                       float* r, float* scratch) {
  chosen(KernelOp::hybrid, HWY_DISPATCH_TABLE(far_fold_backward))(problem, begin, end, gradient, decay, r, scratch);
}

size_t far_scratch_floats(const LinearProblem& problem) {
  return chosen(KernelOp::hybrid, HWY_DISPATCH_TABLE(far_scratch))(problem);
}

size_t far_backward_scratch_floats(const LinearProblem& problem) {
  return chosen(KernelOp::hybrid, HWY_DISPATCH_TABLE(far_backward_scratch))(problem);
}

void multiply_gates(const float* logits, size_t heads, const float* present, size_t begin, size_t end, float* reach,
                    float* scratch) {
  chosen(KernelOp::hybrid, HWY_DISPATCH_TABLE(gate_products))(logits, heads, present, begin, end, reach, scratch);
}

size_t far_step_scratch_floats(const FarStep& task) {
  return 3 * (std::max(task.map.rows, task.map.dim) + 2 * kChunk) + task.map.features + task.value_dim + 2 * kChunk;
}

void far_step(const FarStep& task, float* scratch, ClampCount& clamps) {
  chosen(KernelOp::hybrid, HWY_DISPATCH_TABLE(far_step))(task, scratch, clamps);
}

}  // namespace raffia::internal
#endif  // HWY_ONCE
