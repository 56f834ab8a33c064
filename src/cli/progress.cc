#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace raffia::cli {
namespace {

using namespace std::chrono_literals;

constexpr int kBarWidth = 30;
constexpr auto kRedrawEvery = 100ms;
constexpr auto kLineEvery = 10s;
constexpr auto kFirstGuess = 500ms;  // before that, the time left would be noise

}  // namespace

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
  fmt::print(stderr, "{}\n", message);
}

void Progress::show() {
  const Clock::time_point now = Clock::now();
  if (now - start_ < quiet_) return;
  if (shown_ != Clock::time_point{} && now - shown_ < (terminal_ ? Clock::duration(kRedrawEvery) : Clock::duration(kLineEvery))) {
    return;
  }
  shown_ = now;
  on_screen_ = terminal_;
  if (total_ <= 0) {
    fmt::print(stderr, "{}{}{}", terminal_ ? "\r\033[K" : "", what_, terminal_ ? "" : "\n");
    std::fflush(stderr);
    return;
  }
  const double fraction = done_ / total_;
  const int percent = static_cast<int>(100 * fraction);
  if (!terminal_) {
    fmt::print(stderr, "{}: {}% done{}\n", what_, percent, time_left());
    return;
  }
  const int filled = static_cast<int>(kBarWidth * fraction);
  fmt::print(stderr, "\r\033[K[{:#<{}}{:.<{}}] {:3}% {}{}", "", filled, "", kBarWidth - filled, percent, what_, time_left());
  std::fflush(stderr);
}

void Progress::clear() {
  if (!on_screen_) return;
  on_screen_ = false;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

std::string Progress::time_left() const {
  const auto elapsed = Clock::now() - start_;
  const double done_now = done_ - skipped_;
  if (done_now <= 0 || elapsed < kFirstGuess) return "";
  const auto seconds =
      static_cast<int64_t>(std::ceil(std::chrono::duration<double>(elapsed).count() * (total_ - done_) / done_now));
  return seconds < 120 ? fmt::format(", {} s left", seconds) : fmt::format(", {} min left", (seconds + 59) / 60);
}

}  // namespace raffia::cli
