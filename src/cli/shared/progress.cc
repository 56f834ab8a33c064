#include "cli/shared/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "core/message.h"

namespace raffia::internal::cli {
namespace {

using namespace std::chrono_literals;

constexpr size_t kWidestBar = 30, kNarrowestBar = 10;
constexpr size_t kUsualColumns = 80;
constexpr auto kRedrawEvery = 100ms;
constexpr auto kLineEvery = 10s;
constexpr auto kFirstGuess = 500ms;  // before that, the time left would be noise
constexpr std::string_view kToEmptyLine = "\r\033[K";

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

// A character of UTF-8 is taken to be one column wide.
size_t width_of(std::string_view text) { return static_cast<size_t>(std::ranges::count_if(text, begins_character)); }

std::string_view first_columns(std::string_view text, size_t columns) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (begins_character(text[i]) && columns-- == 0) return text.substr(0, i);
  }
  return text;
}

// As many of the parts of `text` as fit; nothing if not even the first does.
std::string_view first_parts(std::string_view text, size_t columns) {
  while (width_of(text) > columns) {
    const size_t comma = text.rfind(", ");
    if (comma == std::string_view::npos) return {};
    text = text.substr(0, comma);
  }
  return text;
}

size_t minus(size_t a, size_t b) { return a > b ? a - b : 0; }

}  // namespace

size_t terminal_columns() {
  winsize size = {};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* said = std::getenv("COLUMNS");
  const std::string_view text = said == nullptr ? "" : said;
  size_t columns = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), columns);
  return error == std::errc() && end == text.data() + text.size() && columns > 0 ? columns : kUsualColumns;
}

std::string bar_line(double fraction, const std::string& what, const std::string& left, size_t columns) {
  const size_t room = minus(columns, 1);  // some terminals wrap a line that fills the last column
  const std::string share = fmt::format("{:3}%", static_cast<int>(100 * fraction));
  const size_t besides_what = share.size() + 1 + width_of(left);
  constexpr size_t kFrame = 3;  // two brackets and a space
  std::string_view words = first_parts(what, minus(room, besides_what + kFrame + kNarrowestBar));
  const bool has_bar = !words.empty() && room >= besides_what + kFrame + kNarrowestBar + width_of(words);
  if (!has_bar) {
    words = first_parts(what, minus(room, besides_what));
    if (words.empty()) words = what;
    return std::string(first_columns(fmt::format("{} {}{}", share, words, left), room));
  }
  const size_t bar = std::min(kWidestBar, room - besides_what - kFrame - width_of(words));
  const auto filled = std::min(bar, static_cast<size_t>(static_cast<double>(bar) * fraction));
  return fmt::format("[{:#<{}}{:.<{}}] {} {}{}", "", filled, "", bar - filled, share, words, left);
}

Progress::Progress(double total, Clock::duration quiet) : terminal_(isatty(STDERR_FILENO) == 1), total_(total), quiet_(quiet) {}

Progress::~Progress() { clear(); }

void Progress::begin(const std::string& what) {
  what_ = what;
  shown_ = {};
  show();
}

void Progress::describe(const std::string& what) { what_ = what; }

void Progress::advance(double work) {
  done_ = std::min(total_, done_ + work);
  show();
}

void Progress::skip(double work) {
  done_ = std::min(total_, done_ + work);
  skipped_ = std::min(total_, skipped_ + work);
}

void Progress::note(const std::string& message) {
  clear();
  say("{}", message);
}

void Progress::show() {
  const Clock::time_point now = Clock::now();
  if (now - start_ < quiet_) return;
  if (shown_ != Clock::time_point{} && now - shown_ < (terminal_ ? Clock::duration(kRedrawEvery) : Clock::duration(kLineEvery))) {
    return;
  }
  shown_ = now;
  on_screen_ = terminal_;
  const bool is_known = total_ > 0;
  const double fraction = is_known ? done_ / total_ : 0;
  if (!terminal_) {
    if (is_known) {
      say("{}: {}% done{}", what_, static_cast<int>(100 * fraction), time_left());
    } else {
      say("{}", what_);
    }
    return;
  }
  const size_t columns = terminal_columns();
  write_message(std::string(kToEmptyLine) + (is_known ? bar_line(fraction, what_, time_left(), columns)
                                                      : std::string(first_columns(what_, minus(columns, 1)))));
}

void Progress::clear() {
  if (!on_screen_) return;
  on_screen_ = false;
  write_message(kToEmptyLine);
}

std::string Progress::time_left() const {
  const auto elapsed = Clock::now() - start_;
  const double done_now = done_ - skipped_;
  if (done_now <= 0 || elapsed < kFirstGuess) return "";
  const auto seconds =
      static_cast<int64_t>(std::ceil(std::chrono::duration<double>(elapsed).count() * (total_ - done_) / done_now));
  return seconds < 120 ? fmt::format(", {} s left", seconds) : fmt::format(", {} min left", (seconds + 59) / 60);
}

}  // namespace raffia::internal::cli
