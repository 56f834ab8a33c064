// Which ranks still answer. Each rank writes a beat into the store of rank 0 from a thread of its own, and reads those of the
// others: when a collective fails, the rank whose beats have stopped is named.
#ifndef RAFFIA_TORCH_TRAIN_DISTRIBUTED_LIVENESS_H_
#define RAFFIA_TORCH_TRAIN_DISTRIBUTED_LIVENESS_H_

#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "torch/train/distributed.h"

namespace raffia::train {

class Liveness {
 public:
  // `store` is used by this object alone. Returns when all ranks have written who they are; GroupError names those that have not
  // within the time-out.
  Liveness(c10::intrusive_ptr<c10d::Store> store, const Place& place, const GroupOptions& options);
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  void entered_collective();  // beats tell how many a rank has entered

  bool suspects();  // whether a rank has missed enough beats to be named, or has given up on another

  // To be called where a collective failed: which rank is to blame, "rank 1 (node7, pid 1234) no longer answers (last seen 3.1 s
  // ago)". Takes a few beats: a rank is gone when it misses several. Once it returns, the other ranks know that this one stops
  // because of that. Empty: all ranks answer, and none has entered fewer collectives.
  std::string culprit();

 private:
  struct Board;  // shared with the thread, which may outlive this object where the store hangs
  std::shared_ptr<Board> board_;
  std::thread thread_;
};

}  // namespace raffia::train

#endif  // RAFFIA_TORCH_TRAIN_DISTRIBUTED_LIVENESS_H_
