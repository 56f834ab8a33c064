// Checks of the sampling options. They are here because session files contain them.
#include <cmath>

#include "core/check.h"
#include "raffia/session.h"

namespace raffia {

using namespace internal;

void SamplingOptions::check(std::string_view where) const {
  require(repetition_penalty > 0 && std::isfinite(repetition_penalty), "{}: repetition_penalty is {}, expected above 0", where,
          repetition_penalty);
  require(repetition_window >= 0 && repetition_window <= kMaxRepetitionWindow, "{}: repetition_window is {}, expected 0 to {}",
          where, repetition_window, int64_t{kMaxRepetitionWindow});
  require(temperature >= 0 && std::isfinite(temperature), "{}: temperature is {}, expected 0 or more", where, temperature);
  require(top_k >= 0, "{}: top_k is {}, expected 0 or more", where, top_k);
  require(top_p > 0 && top_p <= 1, "{}: top_p is {}, expected above 0 and at most 1", where, top_p);
  require(min_p >= 0 && min_p <= 1, "{}: min_p is {}, expected 0 to 1", where, min_p);
}

}  // namespace raffia
