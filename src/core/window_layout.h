// What shapes a window state can have and how much memory they take; shared by WindowState and the reader of its images, which
// must not trust shapes.
#ifndef RAFFIA_CORE_WINDOW_LAYOUT_H_
#define RAFFIA_CORE_WINDOW_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "raffia/window_state.h"

namespace raffia {

inline constexpr int kWindowKinds = 3;

// Far beyond any text, and far enough from the end of an int64_t that positions after it need no check.
inline constexpr int64_t kMaxWindowTokens = int64_t{1} << 62;

// What is wrong with a shape ("heads is 0, expected at least 1"), or an empty string.
std::string flaw_of(const WindowStateShape& shape);

// Of a shape without flaw; nothing where the bytes of the state, or its part sizes, do not fit an int64_t.
std::optional<detail::WindowLayout> layout_of(const WindowStateShape& shape);

}  // namespace raffia

#endif  // RAFFIA_CORE_WINDOW_LAYOUT_H_
