// From logits to a token.
#ifndef RAFFIA_RUNTIME_SAMPLER_H_
#define RAFFIA_RUNTIME_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "raffia/session.h"

namespace raffia::runtime {

// Draw number `draw` of a session. `recent`: the tokens that repetition counts.
int32_t choose(std::span<const float> logits, std::span<const int32_t> recent, const SamplingOptions& options, uint64_t draw);

// log sum exp, in double.
double log_sum(std::span<const float> logits);

// The `count` ids of the largest logits, largest first; the lower id of equals.
std::vector<int32_t> largest(std::span<const float> logits, int64_t count);

}  // namespace raffia::runtime

#endif  // RAFFIA_RUNTIME_SAMPLER_H_
