// How OpenMP threads wait for each other.
#ifndef RAFFIA_CLI_WAITING_THREADS_H_
#define RAFFIA_CLI_WAITING_THREADS_H_

namespace raffia::cli {

// Waiting threads should sleep. By default those of libgomp spin for milliseconds, and on cores that are shared with other
// processes they take time from the thread that they wait for. libgomp reads the environment once, when it is loaded, so this
// only affects programs that this one starts. True: it was changed; false: the user has set it.
bool let_waiting_threads_sleep();

// The same for this process, which has already loaded libgomp: restarts it if needed, with the same arguments. Returns if there
// is nothing to change or if it cannot be restarted.
void restart_with_sleeping_threads(char** argv);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_WAITING_THREADS_H_
