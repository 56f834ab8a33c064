#include "core/dispatch.h"
#include "kernels/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear_backward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off: foreach_target.h comes first
#include "kernels/linear_backward-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {

void causal_backward(const LinearProblem& problem, size_t begin, size_t end, const float* record, const Upcoming& upcoming,
                     PackedState& gradient, float* scratch) {
  Arena arena(scratch);
  const BackwardBuffers buffers(arena, problem);
  PackedState state(arena.take(problem.state_floats()), problem);
  Gates gates[kBlockChunks];
  alignas(64) float h[kBlock];
  for (size_t block = (end - begin + kBlock - 1) / kBlock; block-- > 0;) {
    const float* before = record + block * problem.state_floats();
    const float* after = before + problem.state_floats();
    const size_t first = begin + block * kBlock, last = HWY_MIN(first + kBlock, end);
    const double suffix = problem.dgate.data == nullptr ? 0.0 : inner_product(problem, after, gradient);
    std::copy_n(before, problem.state_floats(), state.sums);
    block_forward(problem, first, last, state, buffers, gates, h);
    const Upcoming next = block == 0 ? upcoming : Upcoming{&problem, first - kBlock, before - problem.state_floats()};
    block_backward(problem, first, last, gradient, buffers, gates, h, suffix, next);
  }
}

void fold_gradient(const LinearProblem& problem, size_t begin, size_t end, PackedState& gradient, float* scratch) {
  Arena arena(scratch);
  const BackwardBuffers buffers(arena, problem);
  for (size_t c = (end - begin + kPanel - 1) / kPanel; c-- > 0;) {
    const size_t first = begin + c * kPanel, count = HWY_MIN(kPanel, end - first);
    Gates gate;
    load_gates(problem, first, end, gate);
    for (size_t g = 0; g < problem.group; ++g) {
      const QueryHead& head = problem.heads[g];
      chunk_features(problem.map, buffers.chunk, {head.q, first, gate.valid, buffers.chunk.panel(buffers.phi_q(0, g))});
      load_output_gradient(problem, head, first, count, gate.valid, buffers, buffers.dy + g * buffers.panels * kSquare, nullptr,
                           buffers.dden + g * kPanel);
    }
    Ahead ahead;
    if (c > 0) {
      for (size_t g = 0; g < problem.group; ++g) {
        ahead.add(problem.heads[g].q, first - kPanel, kPanel, problem.map.dim);
        ahead.add(problem.heads[g].dout, first - kPanel, kPanel, problem.value_dim);
      }
    }
    ahead.spread(tiles_of_panels(buffers.features, buffers.panels));
    update_gradient(buffers, 0, gate.decay(), gate.reach, gradient, ahead);
    gradient.log_decay += gate.log_decay;
  }
}

void read_backward(const LinearProblem& problem, size_t begin, size_t end, const PackedState& state, PackedState& gradient,
                   float* scratch) {
  Arena arena(scratch);
  const BackwardBuffers buffers(arena, problem);
  for (size_t first = begin; first < end; first += kPanel) {
    const size_t count = HWY_MIN(kPanel, end - first);
    bool valid[kPanel];
    for (size_t t = 0; t < kPanel; ++t) valid[t] = t < count;
    Ahead ahead;
    const size_t next = HWY_MIN(first + kPanel, end), next_count = HWY_MIN(kPanel, end - next);
    for (size_t g = 0; g < problem.group; ++g) {
      ahead.add(problem.heads[g].q, next, next_count, problem.map.dim);
      ahead.add(problem.heads[g].dout, next, next_count, problem.value_dim);
      ahead.add(problem.heads[g].forward_out, next, next_count, problem.value_dim);
    }
    ahead.spread(problem.group * asks_of_reading(buffers.features) + tiles_of_panels(buffers.features, buffers.panels));
    for (size_t g = 0; g < problem.group; ++g) {
      const QueryHead& head = problem.heads[g];
      float* dden = buffers.dden + g * kPanel;
      chunk_features(problem.map, buffers.chunk, {head.q, first, valid, buffers.chunk.panel(buffers.phi_q(0, g))});
      load_output_gradient(problem, head, first, count, valid, buffers, buffers.dy + g * buffers.panels * kSquare,
                           buffers.dy_transposed, dden);
      feature_gradient(buffers.features, buffers.panels, state, buffers.dy_transposed, dden, kOnes, 0, nullptr, nullptr, nullptr,
                       ahead, buffers.dphi);
      remove_rounding(head, first, count, buffers.phi_q(0, g), nullptr, state, kOnes, buffers, dden);
      map_features_backward(problem.map, buffers.chunk.x, buffers.chunk.inverse_norm, buffers.phi_q(0, g), buffers.dphi,
                            problem.map_sums, buffers.packed_x, buffers.dx);
      if (head.dq.data != nullptr) put_columns(head.dq, first, count, valid, problem.map.dim, buffers.dx, buffers.rows);
    }
    update_gradient(buffers, 0, 1.0f, kOnes, gradient, ahead);
  }
}

void fold_backward(const LinearProblem& problem, size_t begin, size_t end, const PackedState& gradient, float* scratch) {
  Arena arena(scratch);
  const BackwardBuffers buffers(arena, problem);
  for (size_t first = begin; first < end; first += kPanel) {
    const size_t count = HWY_MIN(kPanel, end - first);
    bool valid[kPanel];
    load_valid(problem, first, end, valid);
    alignas(64) float weights[kPanel];
    for (size_t t = 0; t < kPanel; ++t) weights[t] = valid[t] ? 1.0f : 0.0f;
    float* phi_k = buffers.phi_k(0);
    chunk_features(problem.map, buffers.chunk, {problem.k, first, valid, buffers.chunk.panel(phi_k)});
    transpose(gather(problem.v, first, valid, problem.value_dim, buffers.chunk.zeros, buffers.chunk.value_staging),
              problem.value_dim, buffers.v_transposed);
    zero_last_rows(buffers.v_transposed, problem.value_dim);
    if (problem.dv.data != nullptr) {
      value_gradient(problem, 0, first, count, valid, weights, gradient, nullptr, buffers);
    }
    Ahead ahead;
    const size_t next = HWY_MIN(first + kPanel, end), next_count = HWY_MIN(kPanel, end - next);
    ahead.add(problem.k, next, next_count, problem.map.dim);
    ahead.add(problem.v, next, next_count, problem.value_dim);
    ahead.spread(asks_of_reading(buffers.features));
    feature_gradient(buffers.features, buffers.panels, gradient, buffers.v_transposed, kOnes, weights, 0, nullptr, nullptr,
                     nullptr, ahead, buffers.dphi);
    map_features_backward(problem.map, buffers.chunk.x, buffers.chunk.inverse_norm, phi_k, buffers.dphi, problem.map_sums,
                          buffers.packed_x, buffers.dx);
    if (problem.dk.data != nullptr) put_columns(problem.dk, first, count, valid, problem.map.dim, buffers.dx, buffers.rows);
  }
}

size_t backward_scratch_floats(const LinearProblem& problem) {
  Arena arena(nullptr);
  const BackwardBuffers buffers(arena, problem);
  arena.take(problem.state_floats());
  return arena.used();
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace raffia::internal {

HWY_EXPORT(backward_scratch_floats);
HWY_EXPORT(causal_backward);
HWY_EXPORT(fold_gradient);
HWY_EXPORT(read_backward);
HWY_EXPORT(fold_backward);

size_t linear_backward_scratch_floats(const LinearProblem& problem) {
  return chosen(KernelOp::linear_backward, HWY_DISPATCH_TABLE(backward_scratch_floats))(problem);
}

void causal_backward(const LinearProblem& problem, size_t begin, size_t end, const float* record, const Upcoming& upcoming,
                     PackedState& gradient, float* scratch) {
  chosen(KernelOp::linear_backward, HWY_DISPATCH_TABLE(causal_backward))(problem, begin, end, record, upcoming, gradient,
                                                                         scratch);
}

void fold_gradient(const LinearProblem& problem, size_t begin, size_t end, PackedState& gradient, float* scratch) {
  chosen(KernelOp::linear_backward, HWY_DISPATCH_TABLE(fold_gradient))(problem, begin, end, gradient, scratch);
}

void read_backward(const LinearProblem& problem, size_t begin, size_t end, const PackedState& state, PackedState& gradient,
                   float* scratch) {
  chosen(KernelOp::linear_backward, HWY_DISPATCH_TABLE(read_backward))(problem, begin, end, state, gradient, scratch);
}

void fold_backward(const LinearProblem& problem, size_t begin, size_t end, const PackedState& gradient, float* scratch) {
  chosen(KernelOp::linear_backward, HWY_DISPATCH_TABLE(fold_backward))(problem, begin, end, gradient, scratch);
}

}  // namespace raffia::internal
#endif  // HWY_ONCE
