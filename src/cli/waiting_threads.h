// How threads of OpenMP wait for each other.
//
// Waiting threads should sleep. By default libgomp's spin for milliseconds, and on cores that are shared with other processes
// they take the time that the thread they wait for would need. libgomp reads the environment once, when it is loaded. What the
// user has chosen (OMP_WAIT_POLICY, GOMP_SPINCOUNT) stays.
#ifndef RAFFIA_CLI_WAITING_THREADS_H_
#define RAFFIA_CLI_WAITING_THREADS_H_

namespace raffia::cli {

// For programs that this one starts.
void let_waiting_threads_sleep();

// For this very process, which libgomp is a part of: starts it anew if need be, with the same arguments. To be called before any
// library is initialised, from .preinit_array: what torch does when it is loaded takes most of a second, and need not be done
// twice. Returns where there is nothing to change, or where the program cannot be started anew.
void restart_with_sleeping_threads(char** arguments, char** environment);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_WAITING_THREADS_H_
