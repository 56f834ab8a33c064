// raffia train on several processes of this machine.
#ifndef RAFFIA_CLI_TRAIN_RANKS_H_
#define RAFFIA_CLI_TRAIN_RANKS_H_

#include <cstdint>

#include "torch/train/distributed.h"

namespace raffia::cli {

// Runs this very command line as so many ranks. Where one of them fails, this process exits with its code. threads: of each; 0:
// the cores are shared out.
void run_as_local_ranks(int ranks, int64_t threads);

// `asked`, or what the launcher of this rank said (OMP_NUM_THREADS), or one per core.
int threads_of_rank(int64_t asked, const train::Place& place);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_TRAIN_RANKS_H_
