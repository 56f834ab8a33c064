// One step of AdamW over many tensors at once, on torch's threads.
#ifndef RAFFIA_TORCH_OPS_ADAMW_H_
#define RAFFIA_TORCH_OPS_ADAMW_H_

#include <span>

#include "kernels/adamw.h"

namespace raffia::internal::ops {

struct AdamwTensor {
  AdamwRun run;
  AdamwFactors factors;
};

// The root of the sum of the squares of all gradients: the same bits for any number of threads.
double norm_of_gradients(std::span<const AdamwTensor> tensors);

// One pass over parameters, gradients and both means.
void adamw_step(std::span<const AdamwTensor> tensors);

}  // namespace raffia::internal::ops

#endif  // RAFFIA_TORCH_OPS_ADAMW_H_
