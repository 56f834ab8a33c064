// Gradients of a map's parameters: each task sums its own, then they are added in the order of the tasks, so that the result has
// the same bits for any number of threads.
#ifndef RAFFIA_ESTIMATORS_SHARED_MAP_SUMS_H_
#define RAFFIA_ESTIMATORS_SHARED_MAP_SUMS_H_

#include <vector>

#include "kernels/linear.h"
#include "raffia/features.h"

namespace raffia::internal {

class MapSumSlots {
 public:
  // Checks the shapes of the requested gradients.
  MapSumSlots(const char* function, const FeatureMap& map, const MapGradients& wanted, size_t tasks);

  MapSums of(size_t task);

  // Adds what `task` summed to the gradients of `head`.
  void add(size_t task, int64_t head);

 private:
  const FeatureMap& map_;
  const MapGradients& wanted_;
  size_t sigma_floats_, weight_floats_, bias_floats_;
  std::vector<float> floats_;
};

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_SHARED_MAP_SUMS_H_
