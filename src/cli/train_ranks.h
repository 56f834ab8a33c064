// raffia train on several processes of this machine.
#ifndef RAFFIA_CLI_TRAIN_RANKS_H_
#define RAFFIA_CLI_TRAIN_RANKS_H_

#include <cstdint>

#include "torch/train/distributed.h"

namespace raffia::cli {

// Runs the same command line once per rank. If a rank fails, this process exits with its code. threads: of each rank; 0: the
// cores are divided among the ranks.
void run_as_local_ranks(int64_t ranks, int64_t threads);

// `asked`, or the value set by the launcher of this rank (OMP_NUM_THREADS), or one per core.
int threads_of_rank(int64_t asked, const train::Place& place);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_TRAIN_RANKS_H_
