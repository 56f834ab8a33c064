// From logits to a token.
#ifndef RAFFIA_RUNTIME_SAMPLER_H_
#define RAFFIA_RUNTIME_SAMPLER_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "raffia/session.h"

namespace raffia::runtime {

// Throws Error where a logit is not finite, naming the function, the place ("token 7", "class 7") and the number. Everything that
// chooses by logits asks first: there is no order among what is not a number.
void require_finite(std::string_view function, std::string_view noun, std::span<const float> logits);

// Draw number `draw` of a session. `recent`: the tokens that repetition counts.
int32_t choose(std::span<const float> logits, std::span<const int32_t> recent, const SamplingOptions& options, uint64_t draw);

// log sum exp, in double. Throws Error where logits that are not finite make it so.
double log_sum(std::span<const float> logits);

// The `count` ids of the largest logits, largest first; the lower id of equals. NaN is below all numbers.
std::vector<int32_t> largest(std::span<const float> logits, int64_t count);

}  // namespace raffia::runtime

#endif  // RAFFIA_RUNTIME_SAMPLER_H_
