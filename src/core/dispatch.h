// How a kernel file calls the variant of its function for the active ISA:
//
//   HWY_EXPORT(fold_chunks);
//   void fold(...) { chosen(KernelOp::linear, HWY_DISPATCH_TABLE(fold_chunks))(...); }
//
// That is the widest ISA that the table in isa_limits.h lets the op use. Data that kernels exchange (panels, packed keys, states)
// have the same layout on every ISA, so each op may run on its own.
//
// The choice is kept in an object of this library. Highway's own is shared by everything in the process that uses Highway
// (LibTorch does), so RAFFIA_MAX_ISA must not change it.
#ifndef RAFFIA_CORE_DISPATCH_H_
#define RAFFIA_CORE_DISPATCH_H_

#include <hwy/targets.h>

#include <cstddef>
#include <string_view>
#include <vector>

#include "core/isa_limits.h"
#include "raffia/isa.h"

namespace raffia::internal {

// Throws InvalidArgument if RAFFIA_MAX_ISA is not understood.
const hwy::ChosenTarget& chosen_target(KernelOp op);

template <typename Function, size_t kTargets>
Function* chosen(KernelOp op, Function* const (&table)[kTargets]) {
  if constexpr (kTargets == 1) {  // compiled for a single target
    return table[0];
  } else {
    return table[chosen_target(op).GetIndex()];
  }
}

// An op that uses a narrower ISA than active_isa().
struct IsaException {
  std::string_view op;
  Isa isa;
};
std::vector<IsaException> isa_exceptions();

// While one exists, every op uses the active ISA, whatever its limit: how `raffia bench isa` measures an op above its limit. Must
// not be made or destroyed while an op runs.
class WithoutIsaLimits {
 public:
  WithoutIsaLimits();
  ~WithoutIsaLimits();
  WithoutIsaLimits(const WithoutIsaLimits&) = delete;
  WithoutIsaLimits& operator=(const WithoutIsaLimits&) = delete;
};

// Whether the CPU has VNNI of AVX-512 (products of bytes) and integer products run on avx512. Kernels have variants with and
// without it.
bool vnni_is_active();
void allow_vnni(bool allowed);  // for tests of the variants without

}  // namespace raffia::internal

#endif  // RAFFIA_CORE_DISPATCH_H_
