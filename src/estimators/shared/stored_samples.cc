#include "estimators/shared/stored_samples.h"

#include <algorithm>

#include "kernels/sample_merge.h"

namespace raffia::internal {

size_t add_keys_scratch_floats(const StoredSamples& samples) {
  return round_up(samples.count, 16) + round_up(samples.count * samples.value_dim, 16) +
         forward_scratch(samples.dim, samples.value_dim);
}

void add_keys(const KeySource& keys, size_t count, float scale, float log_decay, const float* mixture,
              const StoredSamples& samples, float* scratch) {
  const size_t value_dim = samples.value_dim;
  float* values = scratch;
  float* log_weights = values + round_up(samples.count * value_dim, 16);
  scratch = log_weights + round_up(samples.count, 16);
  ForwardTask task{.keys = {.count = count, .dim = samples.dim, .value_dim = value_dim},
                   .unpacked = &keys,
                   .masked = true,
                   .visible = Visibility::all(samples.count, count),
                   .scale = scale,
                   .q = samples.w,
                   .out = {values, DType::f32, static_cast<int64_t>(value_dim), 1},
                   .logsumexp = {log_weights, DType::f32, 1, 1}};
  for (; task.first < samples.count; task.first += task.count) {
    task.count = std::min(kQueryBlock, samples.count - task.first);
    softmax_forward(task, scratch);
  }
  merge_samples({.count = samples.count,
                 .value_dim = value_dim,
                 .log_decay = log_decay,
                 .log_weights = samples.log_weights.direct_row(0),
                 .values = samples.values.direct_row(0),
                 .weight_stride = static_cast<size_t>(samples.log_weights.row_stride),
                 .value_stride = static_cast<size_t>(samples.values.row_stride),
                 .added = log_weights,
                 .mixture = mixture,
                 .added_values = values});
}

}  // namespace raffia::internal
