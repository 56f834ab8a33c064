#include "cli/shared/interrupt.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <vector>

#include "raffia/error.h"

namespace raffia::internal::cli {
namespace {

// Signal handlers can only use globals.
std::atomic<int> g_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free);
std::array<int, 2> g_noted = {-1, -1};  // a pipe that holds a byte per signal that was noted

// A signal is noted in place of one that asks for less.
int urgency(int signal) { return signal == 0 ? 0 : signal == SIGINT ? 1 : signal == SIGHUP ? 2 : 3; }

bool is_first_process() { return ::getpid() == 1; }

void end_now(int signal) {
  constexpr int kSignal = 128;
  ::_exit(kSignal + signal);
}

void note(int signal) {
  int before = 0;
  while (urgency(before) < urgency(signal)) {
    if (!g_signal.compare_exchange_weak(before, signal)) continue;
    const int error = errno;
    [[maybe_unused]] const ssize_t n = ::write(g_noted[1], "", 1);  // a full pipe ends waits as well
    errno = error;
    return;
  }
  if (signal == SIGHUP) return;
  if (is_first_process()) end_now(signal);
  std::signal(signal, SIG_DFL);
  std::raise(signal);  // once this handler has returned
}

void set_handlers(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;  // an interrupted write to stdout would set the error state of the stream
  sigemptyset(&action.sa_mask);
  for (const int signal : ending_signals()) sigaction(signal, &action, nullptr);
}

}  // namespace

Interrupts::Interrupts() {
  if (::pipe2(g_noted.data(), O_NONBLOCK | O_CLOEXEC) != 0) throw IoError("cannot create a pipe for signals");
  set_handlers(note);
}

Interrupts::~Interrupts() {
  set_handlers(SIG_DFL);
  end_first_process_on_signals();
  for (int& end : g_noted) {
    ::close(end);
    end = -1;
  }
  g_signal = 0;
}

int Interrupts::signal() const { return g_signal; }

bool Interrupts::must_end() const { return urgency(g_signal) > urgency(SIGINT); }

void Interrupts::forget() {
  int heeded = SIGINT;
  g_signal.compare_exchange_strong(heeded, 0);
}

std::vector<int> ending_signals() {
  struct sigaction hangup = {};
  const bool is_ignored = sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
  return is_ignored ? std::vector{SIGINT, SIGTERM} : std::vector{SIGINT, SIGHUP, SIGTERM};
}

void end_first_process_on_signals() {
  if (is_first_process()) set_handlers(end_now);
}

bool await_input(int descriptor) {
  std::array<pollfd, 2> ready = {
      {{.fd = descriptor, .events = POLLIN, .revents = 0}, {.fd = g_noted[0], .events = POLLIN, .revents = 0}}};
  while (g_signal == 0) {
    if (::poll(ready.data(), ready.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return true;  // the read reports the error
    }
    if (ready[0].revents != 0) return true;
    // This may be the byte of a signal that was forgotten: check again after emptying the pipe.
    std::array<char, 16> bytes;
    while (::read(g_noted[0], bytes.data(), bytes.size()) > 0) continue;
  }
  return false;
}

}  // namespace raffia::internal::cli
