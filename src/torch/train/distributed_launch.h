// Starts the ranks of a group on this machine: what torchrun does, for raffia train --local-ranks.
#ifndef RAFFIA_TORCH_TRAIN_DISTRIBUTED_LAUNCH_H_
#define RAFFIA_TORCH_TRAIN_DISTRIBUTED_LAUNCH_H_

#include <chrono>
#include <string>
#include <vector>

namespace raffia::internal::train {

// A TCP port of the loopback that was free a moment ago. Throws IoError.
int free_local_port();

struct LaunchOptions {
  int ranks = 2;
  int threads = 1;                   // of each rank: OMP_NUM_THREADS
  std::vector<std::string> command;  // program (a path) and arguments, the same for all ranks
  // How long the other ranks have to end by themselves, with an error message, after one has failed; then they are killed.
  std::chrono::milliseconds grace = std::chrono::seconds(20);
};

// Runs the command once per rank, with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, and waits. Rank 0 has this
// process's stdout and stderr; lines of the others go to stderr as `rank 1: ...`. SIGINT, SIGTERM and SIGHUP are passed on.
// Returns 0 if all ranks did; 128 plus the signal number, without a message, if they ended because of one that was passed on;
// otherwise prints the rank that failed first on stderr and returns its exit code (1 for a signal).
int run_local_ranks(const LaunchOptions& options);

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_DISTRIBUTED_LAUNCH_H_
