#include "core/message.h"

#include <cmath>
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

std::string not_finite_text(double value) { return std::isnan(value) ? "nan" : fmt::format("{}", value); }

std::string without_origin(std::string_view message) {
  if (const size_t end = message.find("] "); message.starts_with("[json.exception.") && end != std::string_view::npos) {
    return std::string(message.substr(end + 2));
  }
  // Only functions that read something: the first word of other messages is an argument or a file.
  const size_t end = message.find(": ");
  const std::string_view name = message.substr(0, end);
  const bool is_name = name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:") == name.npos;
  const bool is_function = is_name && (name.starts_with("parse_") || name.find("::") != name.npos);
  return std::string(end != message.npos && is_function ? message.substr(end + 2) : message);
}

}  // namespace raffia
