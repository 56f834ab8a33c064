// How threads of OpenMP wait for each other.
#ifndef RAFFIA_CLI_WAITING_THREADS_H_
#define RAFFIA_CLI_WAITING_THREADS_H_

namespace raffia::cli {

// Waiting threads should sleep. By default libgomp's spin for milliseconds, and on cores that are shared with other processes
// they take the time that the thread they wait for would need. libgomp reads the environment once, when it is loaded: so this
// only changes what programs see that this one starts. True: it was changed; false: the user has chosen.
bool let_waiting_threads_sleep();

// The same for this very process, which libgomp is a part of: starts it anew if need be, with the same arguments. Returns where
// there is nothing to change, or where it cannot be started anew.
void restart_with_sleeping_threads(char** argv);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_WAITING_THREADS_H_
