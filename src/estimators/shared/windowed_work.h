// What one token meets in causal attention with windows: half of its own window, and what stands for the windows before.
#ifndef RAFFIA_ESTIMATORS_SHARED_WINDOWED_WORK_H_
#define RAFFIA_ESTIMATORS_SHARED_WINDOWED_WORK_H_

#include <cstdint>

#include "estimators/registry.h"

namespace raffia::internal {

// keys_before(n): what stands for n windows. On the mean over a sequence of `length` tokens.
template <class KeysBefore>
TokenWork windowed_work(int64_t window, int64_t length, const KeysBefore& keys_before) {
  const int64_t windows = (length + window - 1) / window;
  double sum = 0;
  for (int64_t n = 0; n < windows; ++n) sum += keys_before(n);
  return {.keys = 0.5 * static_cast<double>(window) + sum / static_cast<double>(windows)};
}

template <class KeysBefore>
TokenWork windowed_step_work(int64_t window, int64_t depth, const KeysBefore& keys_before) {
  return {.keys = 0.5 * static_cast<double>(window) + keys_before(depth / window)};
}

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_SHARED_WINDOWED_WORK_H_
