// Models with random weights, for benchmarks and tests where only sizes matter.
#ifndef RAFFIA_RUNTIME_RANDOM_WEIGHTS_H_
#define RAFFIA_RUNTIME_RANDOM_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/weight_matrix.h"
#include "raffia/model_config.h"

namespace raffia::internal::runtime {

// The bytes of a weight file with every tensor of `config`, matrices as `type`. Activations keep their order of magnitude from
// layer to layer. Cheap to make: tensors repeat the same numbers.
std::vector<std::byte> random_weights(const ModelConfig& config, WeightType type, uint64_t seed);

}  // namespace raffia::internal::runtime

#endif  // RAFFIA_RUNTIME_RANDOM_WEIGHTS_H_
