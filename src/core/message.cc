#include "core/message.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

namespace raffia::internal {
namespace {

// U+0080 to U+009F: terminals take them for control characters, too.
bool is_c1_control(std::string_view text, size_t at) {
  if (text[at] != '\xC2' || at + 1 == text.size()) return false;
  const auto second = static_cast<unsigned char>(text[at + 1]);
  return second >= 0x80 && second < 0xA0;
}

enum class Layout : uint8_t { kept, escaped };  // line ends and tabs

// Control characters are escaped: they would change the state of a terminal.
std::string printable(std::string_view text, Layout layout) {
  std::string result;
  const auto escape = [&result](char c) { result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c)); };
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    const auto byte = static_cast<unsigned char>(c);
    if (is_c1_control(text, at)) {
      escape(c);
      escape(text[++at]);
    } else if (c == '\n' || c == '\t') {
      result += layout == Layout::kept ? std::string(1, c) : c == '\n' ? "\\n" : "\\t";
    } else if (byte >= ' ' && byte != 0x7F) {
      result += c;
    } else {
      escape(c);
    }
  }
  return result;
}

}  // namespace

void write_message(std::string_view text) noexcept {
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
  (void)std::fflush(stderr);
}

void say_line(fmt::string_view format, fmt::format_args args) noexcept {
  try {
    write_message(printable(fmt::vformat(format, args), Layout::kept) + "\n");
  } catch (const std::exception&) {
    return;  // out of memory: drop the message
  }
}

std::string one_line(std::string_view message) {
  constexpr size_t kLongest = 2000, kEnd = 500;  // bytes; of its end, which says what was expected
  if (message.size() <= kLongest) return printable(message, Layout::escaped);
  return fmt::format("{} ... ({} bytes left out) ... {}", printable(message.substr(0, kLongest - kEnd), Layout::escaped),
                     message.size() - kLongest, printable(message.substr(message.size() - kEnd), Layout::escaped));
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

}  // namespace raffia::internal
