#include "kernels/softmax.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/softmax.cc"
#include "hwy/foreach_target.h"
// Highway wants its own headers after foreach_target.h.
#include "core/dispatch.h"
#include "kernels/softmax-inl.h"
#include "kernels/softmax_backward-inl.h"
#include "kernels/softmax_draw-inl.h"
#include "kernels/softmax_step-inl.h"

#if HWY_ONCE
namespace raffia::internal {

HWY_EXPORT(pack_block);
HWY_EXPORT(forward_block);
HWY_EXPORT(draw_block);
HWY_EXPORT(pack_query_rows);
HWY_EXPORT(backward_head);
HWY_EXPORT(step_stretch);
HWY_EXPORT(step_combine);

void pack_keys(const PackTask& task, float* scratch) { chosen(KernelOp::softmax, HWY_DISPATCH_TABLE(pack_block))(task, scratch); }

void softmax_forward(const ForwardTask& task, float* scratch) {
  chosen(KernelOp::softmax, HWY_DISPATCH_TABLE(forward_block))(task, scratch);
}

void softmax_draw(const DrawTask& task, float* scratch) {
  chosen(KernelOp::softmax, HWY_DISPATCH_TABLE(draw_block))(task, scratch);
}

void pack_queries(const PackQueriesTask& task, float*) { chosen(KernelOp::softmax, HWY_DISPATCH_TABLE(pack_query_rows))(task); }

void softmax_backward(const BackwardTask& task, float* scratch) {
  chosen(KernelOp::softmax_backward, HWY_DISPATCH_TABLE(backward_head))(task, scratch);
}

void softmax_step_stretch(const StepTask& task, float* scratch) {
  chosen(KernelOp::softmax_step, HWY_DISPATCH_TABLE(step_stretch))(task, scratch);
}

void softmax_step_combine(const CombineTask& task, float* scratch) {
  chosen(KernelOp::softmax_step, HWY_DISPATCH_TABLE(step_combine))(task, scratch);
}

}  // namespace raffia::internal
#endif
