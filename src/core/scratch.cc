#include "core/scratch.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "core/check.h"

namespace raffia::internal {
namespace {

// Cache lines are prefetched in pairs, so arenas of two workers are at least a pair of lines apart.
constexpr size_t kFloatsApart = 2 * Scratch::kAlignment / sizeof(float);

bool poisoned() {
#if !defined(NDEBUG) || defined(RAFFIA_POISON_SCRATCH)
  return true;
#else
  static const bool asked = [] {
    const char* value = std::getenv("RAFFIA_POISON");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return asked;
#endif
}

float* allocate(int workers, size_t distance) {
  size_t bytes = 0;
  const bool fits = workers >= 1 && !__builtin_mul_overflow(static_cast<size_t>(workers) * sizeof(float), distance, &bytes);
  require(fits, "Scratch: {} workers of {} floats, expected at least one worker and a size that fits", workers, distance);
  return static_cast<float*>(::operator new (bytes, std::align_val_t{Scratch::kAlignment}));
}

}  // namespace

Scratch::Scratch(int workers, size_t floats_per_worker)
    : distance_((floats_per_worker / kFloatsApart + 2) * kFloatsApart), floats_(allocate(workers, distance_)) {
  if (poisoned()) {
    std::fill_n(floats_.get(), static_cast<size_t>(workers) * distance_, std::numeric_limits<float>::quiet_NaN());
  }
}

}  // namespace raffia::internal
