// One token of one session and key/value head: the state is updated and read in one pass over it.
#ifndef RAFFIA_KERNELS_STEP_H_
#define RAFFIA_KERNELS_STEP_H_

#include "kernels/linear.h"

namespace raffia::internal {

struct LinearStep {
  MapParams map;
  size_t value_dim = 0;
  size_t group = 1;  // query heads
  float eps = 0;
  Rows q;  // [group, d]
  Rows k;  // [1, d]
  Rows v;  // [1, V]
  bool gated = false;
  float gate_logit = 0;
  MutRows out;                  // [group, V]
  float* sums = nullptr;        // [F, V], as in State
  float* normaliser = nullptr;  // [F]
  float* mass = nullptr;
  float* log_decay = nullptr;
};

size_t step_scratch_floats(const LinearStep& task);
void linear_step(const LinearStep& task, float* scratch, ClampCount& clamps);

}  // namespace raffia::internal

#endif  // RAFFIA_KERNELS_STEP_H_
