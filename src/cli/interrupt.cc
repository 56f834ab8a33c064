#include "cli/interrupt.h"

#include <csignal>
#include <initializer_list>

namespace raffia::cli {
namespace {

volatile std::sig_atomic_t g_signal = 0;  // handlers know no other place

void note(int signal) { g_signal = signal; }

void set_handlers(void (*handler)(int), int flags) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags;  // without SA_RESTART: reads return
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

}  // namespace

Interrupts::Interrupts() { forget(); }

Interrupts::~Interrupts() { set_handlers(SIG_DFL, 0); }

int Interrupts::signal() const { return g_signal; }

void Interrupts::forget() {
  g_signal = 0;
  set_handlers(note, static_cast<int>(SA_RESETHAND));
}

}  // namespace raffia::cli
