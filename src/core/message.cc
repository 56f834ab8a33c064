#include "core/message.h"

#include <cstdio>
#include <exception>
#include <string>

namespace raffia {

void write_message(std::string_view text) noexcept {
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
  (void)std::fflush(stderr);
}

void detail::say_line(fmt::string_view format, fmt::format_args args) noexcept {
  try {
    write_message(fmt::vformat(format, args) + "\n");
  } catch (const std::exception&) {
    return;  // out of memory: drop the message
  }
}

}  // namespace raffia
