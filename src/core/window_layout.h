// Which shapes of a window state are valid, and how much memory they take; shared by WindowState and the reader of its files,
// which must not trust shapes.
#ifndef RAFFIA_CORE_WINDOW_LAYOUT_H_
#define RAFFIA_CORE_WINDOW_LAYOUT_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "core/sibling_api.h"
#include "raffia/window_state.h"

namespace raffia::internal {

inline constexpr int kWindowKinds = 3;

// More than any text has, and far enough from the maximum of an int64_t that positions after it need no check.
inline constexpr int64_t kMaxWindowTokens = int64_t{1} << 62;

// What is wrong with a shape ("heads is 0, expected at least 1"), or an empty string.
std::string flaw_of(const WindowStateShape& shape);

// Which fields differ, with what was found and expected ("window 16, expected 32; chunk 4, expected 8"); empty if none does.
std::string difference_of(const WindowStateShape& found, const WindowStateShape& expected);

// WindowStateShape::recipe of options, the same on every machine.
uint64_t recipe_of(std::initializer_list<uint64_t> options);

// Of a valid shape; nullopt if the size of the state or of a part does not fit an int64_t.
RAFFIA_SIBLING_API std::optional<detail::WindowLayout> layout_of(const WindowStateShape& shape);

}  // namespace raffia::internal

#endif  // RAFFIA_CORE_WINDOW_LAYOUT_H_
