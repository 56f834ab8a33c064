// How raffia train spreads over this machine: processes and threads.
#ifndef RAFFIA_CLI_SHARED_TRAIN_RANKS_H_
#define RAFFIA_CLI_SHARED_TRAIN_RANKS_H_

#include <cstdint>
#include <functional>
#include <string>

namespace raffia::internal::cli {

// Runs the same command line once per rank. If a rank fails, this process exits with its code. threads: of each rank; 0: the
// cores are divided among the ranks.
void run_as_local_ranks(int64_t ranks, int64_t threads);

// Threads for a process whose user named no number: OMP_NUM_THREADS if that is set, else one per core.
int default_threads();

// The same for a new run on this machine: one per core that no other process keeps busy, but at least half of the cores. Threads
// of a training step wait for each other hundreds of times, each time for the slowest. `note` is told where that is fewer than
// the cores.
int threads_of_new_run(const std::function<void(const std::string&)>& note);

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_TRAIN_RANKS_H_
