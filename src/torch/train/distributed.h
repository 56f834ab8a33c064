// A group of processes that train one model: their ranks, their collectives, and which of them failed.
//
// Launchers (torchrun, mpirun, srun, raffia train --local-ranks) set the rank in the environment; communication is c10d over
// Gloo. A single process needs none of it: every collective of a group of one returns at once.
#ifndef RAFFIA_TORCH_TRAIN_DISTRIBUTED_H_
#define RAFFIA_TORCH_TRAIN_DISTRIBUTED_H_

#include <ATen/ATen.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "raffia/error.h"

namespace c10d {
class Work;
}

namespace raffia::internal::train {

using at::Tensor;

// Another process, or the connection to it, failed: the message names the rank.
class GroupError : public Error {
 public:
  using Error::Error;
};

// This process was asked to end while it waited for a rank that does not answer.
class GroupInterrupted : public GroupError {
 public:
  GroupInterrupted(int number, const std::string& message) : GroupError(message), signal(number) {}
  int signal;
};

// The rank of this process in its group.
struct Place {
  int rank = 0;
  int size = 1;
  std::string address = {};  // of rank 0, where processes meet
  int port = 0;
};

// RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (torchrun); rank and size also as mpirun (OMPI_COMM_WORLD_RANK, _SIZE) and srun
// (SLURM_PROCID, SLURM_NTASKS) name them. None of them set: a single process. InvalidArgument names a variable that is missing or
// invalid. `variable` looks one up, "" if it is not set.
Place place_from_environment();
Place place_from(const std::function<std::string(const char*)>& variable);

struct GroupOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(5);    // of a collective: longer than any rank makes the others wait
  std::chrono::milliseconds heartbeat = std::chrono::seconds(1);  // interval of the heartbeats
  std::function<void(const std::string&)> note = {};              // warnings for the user
  std::function<int()> signal = {};  // the signal that asks this process to end; 0: none. Called while it waits for others
};

enum class Collective { all_reduce, all_gather, broadcast, barrier };
inline constexpr int kCollectives = 4;
std::string_view to_string(Collective kind);

// Statistics of this rank's collectives of one kind.
struct Traffic {
  int64_t calls = 0;
  int64_t bytes = 0;  // of its own tensors, each counted once; a ring of n ranks sends each n - 1 times (2 (n - 1) / n to reduce)
};

class Liveness;

// All ranks call the same collectives in the same order, with tensors of the same shape. If a rank dies or hangs, the others
// throw a GroupError that names it: `rank 1 (node7, pid 1234) no longer answers (last seen 3.1 s ago): stopped at
// step 120; the last checkpoint is step 100`. A rank that is stopped counts as hanging after twenty heartbeats, and if this
// process is to end (GroupOptions::signal), after four. Not thread-safe.
class Group {
 public:
  Group();  // a single process
  explicit Group(const Place& place, const GroupOptions& options = {});
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  bool alone() const { return place_.size == 1; }
  bool first() const { return place_.rank == 0; }

  void all_reduce(const Tensor& tensor);               // in place: the sum over ranks, bitwise the same on all of them
  Tensor all_gather(const Tensor& tensor);             // [..] -> [size, ..]
  void broadcast(const Tensor& tensor, int from = 0);  // in place
  void barrier();

  // Exchanges a text of any length from each rank, in the order of ranks, through the store of rank 0 and without a collective,
  // so that ranks may differ in what they do next. Rank 0 returns last: the others have the texts even if it ends now.
  std::vector<std::string> share(const std::string& name, const std::string& own);

  // An all_reduce that runs while this process computes. These do not wait for other collectives, but for each other: ranks must
  // start them in the same order.
  class Pending {
   public:
    void wait();  // until the tensor holds the sum
   private:
    friend class Group;
    struct Work;
    std::shared_ptr<Work> work_;
  };
  Pending start_all_reduce(const Tensor& tensor);

  // The signal that asks this or another rank to end; 0: none. Those of others arrive with heartbeats, from ranks that wait.
  int signal();

  // The progress of this rank, for error messages of all ranks. checkpoint < 0: there is none.
  void at_step(int64_t step, int64_t checkpoint);

  Traffic traffic(Collective kind) const { return traffic_[static_cast<size_t>(kind)]; }

 private:
  struct Channels;
  std::string failure(std::string_view what, const std::string& reason);
  [[noreturn]] void fail(std::string_view what, const std::string& reason);
  int own_signal() const { return options_.signal ? options_.signal() : 0; }
  void await_work(Collective kind, c10d::Work& work);
  [[noreturn]] void abandon(Collective kind);
  void await(const std::string& key);
  template <typename Start>
  void run(Collective kind, int64_t bytes, const Start& start);
  void count(Collective kind, int64_t bytes);

  Place place_;
  GroupOptions options_;
  std::unique_ptr<Channels> channels_;
  std::unique_ptr<Liveness> liveness_;
  std::array<Traffic, kCollectives> traffic_{};
  int64_t step_ = -1, checkpoint_ = -1;
  int64_t shares_ = 0;
  bool abandoned_ = false;  // a collective has not ended
};

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_DISTRIBUTED_H_
