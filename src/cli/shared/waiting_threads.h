// How OpenMP threads wait for each other.
//
// Waiting threads should sleep. By default those of libgomp spin for milliseconds, and on cores that are shared with other
// processes they take time from the thread that they wait for. libgomp reads the environment once, when it is loaded. Settings
// of the user (OMP_WAIT_POLICY, GOMP_SPINCOUNT) are kept.
#ifndef RAFFIA_CLI_SHARED_WAITING_THREADS_H_
#define RAFFIA_CLI_SHARED_WAITING_THREADS_H_

namespace raffia::internal::cli {

// For programs that this one starts.
void let_waiting_threads_sleep();

// For this process, which has already loaded libgomp: restarts it if needed, with the same arguments. Call it before any library
// is initialised, from .preinit_array: loading torch takes most of a second and should not be done twice. Returns if there is
// nothing to change or if the program cannot be restarted.
void restart_with_sleeping_threads(char** arguments, char** environment);

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_WAITING_THREADS_H_
