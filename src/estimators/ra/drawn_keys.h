// The keys that Randomized Attention draws. Separate from the op for tests: near the boundary between two keys, rounding decides.
#ifndef RAFFIA_ESTIMATORS_RA_DRAWN_KEYS_H_
#define RAFFIA_ESTIMATORS_RA_DRAWN_KEYS_H_

#include <cstdint>
#include <vector>

#include "raffia/lara.h"

namespace raffia::internal {

// [B, Tq, H, draws], as keys of the sequence of the query; -1 where it sees none.
std::vector<int32_t> ra_drawn_keys(View4 q, View4 k, const RaOptions& options);

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_RA_DRAWN_KEYS_H_
