// The widest ISA that each kernel uses.
//
// A wider ISA is not always faster: a CPU may lower its clock or split its vectors, and some kernels have no work for wide lanes.
// An op that `raffia bench isa` shows to be slower with a wider ISA gets the narrower one here, with the measurement beside it.
// There is none at present: with AVX-512 (Zen 5) no op is slower than with AVX2 by more than 2%, see
// docs/performance-avx512.md#instruction-sets-avx512. RAFFIA_MAX_ISA=OP=ISA replaces a row for one process.
#ifndef RAFFIA_CORE_ISA_LIMITS_H_
#define RAFFIA_CORE_ISA_LIMITS_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "raffia/isa.h"

namespace raffia::internal {

// What has a row of its own: a kernel file, or the part of one that is measured alone. `probe` is what measures the machine.
enum class KernelOp : uint8_t {
  adamw,
  cross_entropy,
  features,
  hybrid,
  integer_product,
  layer_ops,
  linear,
  linear_backward,
  linear_step,
  noise,
  norm_backward,
  probe,
  product,
  sample_merge,
  samples,
  softmax,
  softmax_backward,
  softmax_step,
};

struct IsaLimit {
  std::string_view name;
  KernelOp op;
  Isa widest = Isa::avx512;
};

constexpr IsaLimit kIsaLimits[] = {
    {"adamw", KernelOp::adamw},     {"cross_entropy", KernelOp::cross_entropy},       {"features", KernelOp::features},
    {"hybrid", KernelOp::hybrid},   {"integer_product", KernelOp::integer_product},   {"layer_ops", KernelOp::layer_ops},
    {"linear", KernelOp::linear},   {"linear_backward", KernelOp::linear_backward},   {"linear_step", KernelOp::linear_step},
    {"noise", KernelOp::noise},     {"norm_backward", KernelOp::norm_backward},       {"probe", KernelOp::probe},
    {"product", KernelOp::product}, {"sample_merge", KernelOp::sample_merge},         {"samples", KernelOp::samples},
    {"softmax", KernelOp::softmax}, {"softmax_backward", KernelOp::softmax_backward}, {"softmax_step", KernelOp::softmax_step},
};
constexpr size_t kKernelOps = std::size(kIsaLimits);

constexpr bool rows_are_in_order() {
  for (size_t i = 0; i < kKernelOps; ++i) {
    if (kIsaLimits[i].op != static_cast<KernelOp>(i)) return false;
  }
  return true;
}
static_assert(rows_are_in_order(), "a row is found by its number");

}  // namespace raffia::internal

#endif  // RAFFIA_CORE_ISA_LIMITS_H_
