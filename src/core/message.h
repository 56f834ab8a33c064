// Messages for the user, on stderr. A message that cannot be written (a full disk, a closed terminal or pipe) is dropped and the
// command continues. fmt::print(stderr, ...) would throw instead.
#ifndef RAFFIA_CORE_MESSAGE_H_
#define RAFFIA_CORE_MESSAGE_H_

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "core/sibling_api.h"

namespace raffia::internal {

// Writes the text unchanged, in one call, so that lines of several threads do not mix.
void write_message(std::string_view text) noexcept;

void say_line(fmt::string_view format, fmt::format_args args) noexcept;

// A line: say("{} tokens read", count). Control characters other than line ends and tabs are escaped: names of files may have
// them.
template <typename... Args>
void say(fmt::format_string<Args...> format, Args&&... args) noexcept {
  say_line(format, fmt::make_format_args(args...));
}

// What an error says, without the name of a function or exception at its start, for messages that name a flag or a file instead:
//   parse_norm: "x", expected one of layer, rms             ->  "x", expected one of layer, rms
//   [json.exception.parse_error.101] parse error at line 1  ->  parse error at line 1
RAFFIA_SIBLING_API std::string without_origin(std::string_view message);

// A message that repeats names and values of others, as one line of a readable length: line ends are escaped, too, and the middle
// of a long message is left out.
std::string one_line(std::string_view message);

// A number that is not finite: "nan", "inf" or "-inf". fmt also prints the sign of a NaN, which means nothing.
RAFFIA_SIBLING_API std::string not_finite_text(double value);

}  // namespace raffia::internal

#endif  // RAFFIA_CORE_MESSAGE_H_
