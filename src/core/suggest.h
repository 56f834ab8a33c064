// Suggestions for misspelled names.
#ifndef RAFFIA_CORE_SUGGEST_H_
#define RAFFIA_CORE_SUGGEST_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "core/sibling_api.h"

namespace raffia::internal {

// Insertions, deletions, substitutions and swaps of neighbours that turn one word into the other.
size_t edit_distance(std::string_view a, std::string_view b);

// ": did you mean 'train'?" if one of the known names is close to `word` (or begins with it), else empty.
RAFFIA_SIBLING_API std::string suggestion(std::string_view word, std::span<const std::string> known);

}  // namespace raffia::internal

#endif  // RAFFIA_CORE_SUGGEST_H_
