// Ctrl-C and SIGTERM as a question that a loop asks between two steps.
#ifndef RAFFIA_CLI_INTERRUPT_H_
#define RAFFIA_CLI_INTERRUPT_H_

namespace raffia::cli {

// As long as it lives, the first SIGINT or SIGTERM is noted and makes blocking reads return; a second one ends the process, as if
// there were no such object. At most one lives at a time.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  int signal() const;  // 0: none came
  void forget();       // it has been heeded: wait for the next
};

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_INTERRUPT_H_
