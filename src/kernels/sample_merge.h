// Merges of samples over a past that grows window by window: estimators/shared/sample_states.h.
#ifndef RAFFIA_KERNELS_SAMPLE_MERGE_H_
#define RAFFIA_KERNELS_SAMPLE_MERGE_H_

#include <cstddef>

namespace raffia::internal {

// With a = log_weights + log_decay and b = added - mixture (mixture null: 0), for each of `count` samples:
//   log_weights <- l = log(exp(a) + exp(b)),   values <- exp(a - l) values + exp(b - l) added_values
// Values are rows [count, value_dim]; samples of a state lie apart, with other heads between them. A weight of -inf is none: what
// has none adds nothing, if its values are finite.
struct SampleMerge {
  size_t count = 0, value_dim = 0;
  float log_decay = 0;
  float* log_weights = nullptr;
  float* values = nullptr;
  size_t weight_stride = 1;  // floats from one of log_weights to the next ..
  size_t value_stride = 0;   // .. and from one row of `values` to the next; 0: value_dim
  const float* added = nullptr;
  const float* mixture = nullptr;
  const float* added_values = nullptr;
};

void merge_samples(const SampleMerge& merge);

}  // namespace raffia::internal

#endif  // RAFFIA_KERNELS_SAMPLE_MERGE_H_
