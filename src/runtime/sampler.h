// Chooses a token from logits.
#ifndef RAFFIA_RUNTIME_SAMPLER_H_
#define RAFFIA_RUNTIME_SAMPLER_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "raffia/session.h"

namespace raffia::internal::runtime {

// Throws Error if a logit is not finite, with the name of the function, the index ("token 7", "class 7") and the value. Called
// before every choice by logits: NaN has no order.
void require_finite(std::string_view function, std::string_view noun, std::span<const float> logits);

// Draw number `draw` of a session. `recent`: the tokens that the repetition penalty applies to.
int32_t choose(std::span<const float> logits, std::span<const int32_t> recent, const SamplingOptions& options, uint64_t draw);

// log sum exp, in double. Throws Error if it is not finite because of the logits.
double log_sum(std::span<const float> logits);

// The `count` ids with the largest logits, largest first; among equals the lower id. NaN is below all numbers.
std::vector<int32_t> largest(std::span<const float> logits, int64_t count);

}  // namespace raffia::internal::runtime

#endif  // RAFFIA_RUNTIME_SAMPLER_H_
