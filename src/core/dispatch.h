// How a kernel file calls the variant of its function for the active ISA:
//
//   HWY_EXPORT(fold_chunks);
//   void fold(...) { chosen(HWY_DISPATCH_TABLE(fold_chunks))(...); }
//
// The choice lives in an object of ours. Highway's own is shared by everything in the process that uses Highway (LibTorch does),
// so a cap of ours must not reach it.
#ifndef RAFFIA_CORE_DISPATCH_H_
#define RAFFIA_CORE_DISPATCH_H_

#include <hwy/targets.h>

#include <cstddef>

namespace raffia {

// Throws InvalidArgument where RAFFIA_MAX_ISA holds a name that is none.
const hwy::ChosenTarget& chosen_target();

template <typename Function, size_t kTargets>
Function* chosen(Function* const (&table)[kTargets]) {
  if constexpr (kTargets == 1) {  // compiled for one target alone
    return table[0];
  } else {
    return table[chosen_target().GetIndex()];
  }
}

}  // namespace raffia

#endif  // RAFFIA_CORE_DISPATCH_H_
