#include "kernels/step.h"

#include "core/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/step.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off: foreach_target.h comes first
#include "kernels/step-inl.h"
// clang-format on

#if HWY_ONCE
namespace raffia {

HWY_EXPORT(step);

// x, two padded projections, two feature rows, v and y, each rounded up to a panel.
size_t step_scratch_floats(const StepTask& task) {
  return 3 * (std::max(task.map.rows, task.map.dim) + kChunk) + 2 * (task.map.features + kChunk) + 2 * (task.value_dim + kChunk);
}

void linear_step(const StepTask& task, float* scratch, ClampCount& clamps) {
  chosen(HWY_DISPATCH_TABLE(step))(task, scratch, clamps);
}

}  // namespace raffia
#endif  // HWY_ONCE
