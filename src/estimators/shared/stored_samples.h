// Samples over the past, updated in place in a state: at the end of a window, a step adds the keys of that window to them.
#ifndef RAFFIA_ESTIMATORS_SHARED_STORED_SAMPLES_H_
#define RAFFIA_ESTIMATORS_SHARED_STORED_SAMPLES_H_

#include <cstddef>

#include "kernels/softmax.h"

namespace raffia::internal {

// The samples of one head: rows of fp32 with any distance between them.
struct StoredSamples {
  size_t count = 0, dim = 0, value_dim = 0;
  Rows w;               // [count, dim]
  MutRows log_weights;  // [count, 1]
  MutRows values;       // [count, value_dim]
};

// The softmax of `keys`, `count` of them, read by each w, is merged into what the samples hold, whose log weights are moved by
// `log_decay` before. `mixture` [samples] is subtracted from the logsumexp of the keys; null: nothing.
void add_keys(const KeySource& keys, size_t count, float scale, float log_decay, const float* mixture,
              const StoredSamples& samples, float* scratch);
size_t add_keys_scratch_floats(const StoredSamples& samples);

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_SHARED_STORED_SAMPLES_H_
