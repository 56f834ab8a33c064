// Ctrl-C, SIGHUP and SIGTERM as a flag that a loop checks between two steps.
#ifndef RAFFIA_CLI_SHARED_INTERRUPT_H_
#define RAFFIA_CLI_SHARED_INTERRUPT_H_

#include <vector>

namespace raffia::internal::cli {

// While this object exists, the first SIGINT, SIGHUP or SIGTERM is noted and ends await_input; a second SIGINT or SIGTERM ends
// the process as usual. (SIGHUP after SIGINT is noted, too, and SIGTERM after either.) More SIGHUPs are ignored: when a terminal
// is closed, the system and the shell each send one. At most one such object exists at a time.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  int signal() const;     // 0: none
  bool must_end() const;  // the signal was SIGHUP or SIGTERM, which ask for the end, also of a conversation
  void forget();          // Ctrl-C has been handled: wait for the next. Others stay noted.
};

// Signals that ask a process to end and that it may handle: SIGINT, SIGTERM, and SIGHUP unless it is ignored, as under nohup.
std::vector<int> ending_signals();

// The kernel does not apply the default action of a signal to the first process of a container (PID 1): in such a process, these
// signals get a handler that ends it, with exit code 128 plus the number. In others, nothing changes.
void end_first_process_on_signals();

// Waits until a read of `descriptor` would not block. False: a signal was noted, before or during the wait, by any thread. Only
// this wait is interrupted, never a read: a signal that comes just before a read would not end it.
bool await_input(int descriptor);

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_INTERRUPT_H_
