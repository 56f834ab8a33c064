// Ctrl-C and SIGTERM as a flag that a loop checks between two steps.
#ifndef RAFFIA_CLI_SHARED_INTERRUPT_H_
#define RAFFIA_CLI_SHARED_INTERRUPT_H_

namespace raffia::cli {

// While this object exists, the first SIGINT or SIGTERM is noted and ends await_input; a second one ends the process as usual. (A
// SIGTERM after a SIGINT is noted, too.) At most one such object exists at a time.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  int signal() const;  // 0: none
  void forget();       // Ctrl-C has been handled: wait for the next. SIGTERM stays noted.
};

// Waits until a read of `descriptor` would not block. False: a signal was noted, before or during the wait, by any thread. Only
// this wait is interrupted, never a read: a signal that comes just before a read would not end it.
bool await_input(int descriptor);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_SHARED_INTERRUPT_H_
