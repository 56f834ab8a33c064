#include "kernels/samples.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/samples.cc"
#include "hwy/foreach_target.h"
// Highway wants its own headers after foreach_target.h.
#include "core/dispatch.h"
#include "kernels/samples-inl.h"
#include "kernels/samples_backward-inl.h"

#if HWY_ONCE
namespace raffia::internal {

HWY_EXPORT(norms_of_rows);
HWY_EXPORT(add_keys);
HWY_EXPORT(read_backward);
HWY_EXPORT(add_queries);
HWY_EXPORT(add_keys_backward);
HWY_EXPORT(rescale);

size_t sample_add_scratch(size_t dim, size_t value_dim) {
  return kSampleTokens * (round_up(dim, 16) + round_up(value_dim, 16) + kKeyBlock + 1) + kKeyBlock;
}

size_t sample_backward_scratch(size_t dim, size_t value_dim) {
  return kSampleTokens * (2 * round_up(dim, 16) + 2 * round_up(value_dim, 16) + 2 * kKeyBlock + 2) +
         kKeyBlock * round_up(value_dim, 16);
}

void half_norms(const HalfNorms& task) { chosen(KernelOp::samples, HWY_DISPATCH_TABLE(norms_of_rows))(task); }

void add_to_samples(const SampleAdd& task, float* scratch) {
  chosen(KernelOp::samples, HWY_DISPATCH_TABLE(add_keys))(task, scratch);
}

void read_samples_backward(const SampleGradients& gradients, const SampleQueries& queries, float* scratch) {
  chosen(KernelOp::samples, HWY_DISPATCH_TABLE(read_backward))(gradients, queries, scratch);
}

void gather_queries(const SampleGradients& gradients, const SampleQueries& queries, float* scratch) {
  chosen(KernelOp::samples, HWY_DISPATCH_TABLE(add_queries))(gradients, queries, scratch);
}

void add_to_samples_backward(const SampleGradients& gradients, const SampleKeys& keys, float* scratch) {
  chosen(KernelOp::samples, HWY_DISPATCH_TABLE(add_keys_backward))(gradients, keys, scratch);
}

void rescale_gathered(const SampleGradients& gradients, size_t present, const float* before, float log_decay,
                      const float* after) {
  chosen(KernelOp::samples, HWY_DISPATCH_TABLE(rescale))(gradients, present, before, log_decay, after);
}

}  // namespace raffia::internal
#endif
