// How a kernel file calls the variant of its function for the active ISA:
//
//   HWY_EXPORT(fold_chunks);
//   void fold(...) { chosen(HWY_DISPATCH_TABLE(fold_chunks))(...); }
//
// The choice is kept in an object of this library. Highway's own is shared by everything in the process that uses Highway
// (LibTorch does), so RAFFIA_MAX_ISA must not change it.
#ifndef RAFFIA_CORE_DISPATCH_H_
#define RAFFIA_CORE_DISPATCH_H_

#include <hwy/targets.h>

#include <cstddef>

namespace raffia::internal {

// Throws InvalidArgument if RAFFIA_MAX_ISA is not the name of an instruction set.
const hwy::ChosenTarget& chosen_target();

template <typename Function, size_t kTargets>
Function* chosen(Function* const (&table)[kTargets]) {
  if constexpr (kTargets == 1) {  // compiled for a single target
    return table[0];
  } else {
    return table[chosen_target().GetIndex()];
  }
}

// Whether the CPU has VNNI of AVX-512 (products of bytes) and the active ISA is avx512. Kernels have variants with and without
// it.
bool vnni_is_active();
void allow_vnni(bool allowed);  // for tests of the variants without

}  // namespace raffia::internal

#endif  // RAFFIA_CORE_DISPATCH_H_
