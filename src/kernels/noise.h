// The normals of Randomized Attention, many at once.
#ifndef RAFFIA_KERNELS_NOISE_H_
#define RAFFIA_KERNELS_NOISE_H_

#include <cstdint>
#include <span>

#include "raffia/random.h"

namespace raffia::internal {

// The noise of randomized_draw(), its twin, bit for bit and on every ISA.
void randomized_noise(const StreamKey& key, int64_t query, int64_t draws, int64_t draw, std::span<float> noise);

}  // namespace raffia::internal

#endif  // RAFFIA_KERNELS_NOISE_H_
