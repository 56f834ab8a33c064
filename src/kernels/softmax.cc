#include "kernels/softmax.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/softmax.cc"
#include "hwy/foreach_target.h"
// Highway wants its own headers after foreach_target.h.
#include "core/dispatch.h"
#include "kernels/softmax-inl.h"

#if HWY_ONCE
namespace raffia {

HWY_EXPORT(pack_block);
HWY_EXPORT(forward_block);

void pack_keys(const PackTask& task, float* scratch) { chosen(HWY_DISPATCH_TABLE(pack_block))(task, scratch); }

void softmax_forward(const ForwardTask& task, float* scratch) { chosen(HWY_DISPATCH_TABLE(forward_block))(task, scratch); }

}  // namespace raffia
#endif
