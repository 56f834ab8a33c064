// Ctrl-C and SIGTERM as a question that a loop asks between two steps.
#ifndef RAFFIA_CLI_INTERRUPT_H_
#define RAFFIA_CLI_INTERRUPT_H_

namespace raffia::cli {

// As long as it lives, the first SIGINT or SIGTERM is noted and ends await_input; a second one ends the process, as if there were
// no such object. (A SIGTERM after a SIGINT is noted, too.) At most one lives at a time.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  int signal() const;  // 0: none came
  void forget();       // Ctrl-C has been heeded: wait for the next. SIGTERM stays.
};

// Waits until a read of `descriptor` would not block. False: a signal was noted, before or meanwhile, by whatever thread. Only
// the wait, and never a read, may be left to be interrupted: a signal that comes just before a read would not end it.
bool await_input(int descriptor);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_INTERRUPT_H_
