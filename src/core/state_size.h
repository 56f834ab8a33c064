// How much memory a state of some shape takes; shared by State and the reader of state files, which must not trust shapes.
#ifndef RAFFIA_CORE_STATE_SIZE_H_
#define RAFFIA_CORE_STATE_SIZE_H_

#include <cstdint>
#include <optional>

#include "core/check.h"
#include "raffia/state.h"

namespace raffia::internal {

// A batch of 0 is allowed: all beams may have ended.
inline bool is_possible(const StateShape& shape) {
  return shape.batch >= 0 && shape.heads >= 1 && shape.features >= 1 && shape.value_dim >= 1;
}

// Bytes of the floats of a state, or nullopt if the computation overflows an int64_t.
inline std::optional<int64_t> bytes_of(const StateShape& shape) {
  if (!is_possible(shape) || shape.value_dim == INT64_MAX) return std::nullopt;
  const std::optional<int64_t> sums_and_normaliser = checked_product({shape.features, shape.value_dim + 1});
  if (!sums_and_normaliser || *sums_and_normaliser > INT64_MAX - 2) return std::nullopt;
  return checked_product({*sums_and_normaliser + 2, static_cast<int64_t>(sizeof(float)), shape.heads, shape.batch});
}

}  // namespace raffia::internal

#endif  // RAFFIA_CORE_STATE_SIZE_H_
