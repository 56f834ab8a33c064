#include "core/dispatch.h"
#include "kernels/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear_backward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off: foreach_target.h comes first
#include "kernels/linear_backward-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace raffia {
namespace HWY_NAMESPACE {

size_t backward_scratch_floats(const LinearProblem& problem) {
  Arena arena(nullptr);
  const BackwardBuffers buffers(arena, problem);
  arena.take(problem.state_floats());
  return arena.used();
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace raffia {

HWY_EXPORT(backward_scratch_floats);
HWY_EXPORT(causal_backward);
HWY_EXPORT(fold_gradient);
HWY_EXPORT(read_backward);
HWY_EXPORT(fold_backward);

size_t linear_backward_scratch_floats(const LinearProblem& problem) {
  return chosen(HWY_DISPATCH_TABLE(backward_scratch_floats))(problem);
}

void causal_backward(const LinearProblem& problem, size_t begin, size_t end, const float* record, PackedState& gradient,
                     float* scratch) {
  chosen(HWY_DISPATCH_TABLE(causal_backward))(problem, begin, end, record, gradient, scratch);
}

void fold_gradient(const LinearProblem& problem, size_t begin, size_t end, PackedState& gradient, float* scratch) {
  chosen(HWY_DISPATCH_TABLE(fold_gradient))(problem, begin, end, gradient, scratch);
}

void read_backward(const LinearProblem& problem, size_t begin, size_t end, const PackedState& state, PackedState& gradient,
                   float* scratch) {
  chosen(HWY_DISPATCH_TABLE(read_backward))(problem, begin, end, state, gradient, scratch);
}

void fold_backward(const LinearProblem& problem, size_t begin, size_t end, const PackedState& gradient, float* scratch) {
  chosen(HWY_DISPATCH_TABLE(fold_backward))(problem, begin, end, gradient, scratch);
}

}  // namespace raffia
#endif  // HWY_ONCE
