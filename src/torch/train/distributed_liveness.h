// Which ranks are alive. A thread of each rank writes heartbeats to the store of rank 0 and reads those of the others. When a
// collective fails, the rank whose heartbeat stopped is reported.
#ifndef RAFFIA_TORCH_TRAIN_DISTRIBUTED_LIVENESS_H_
#define RAFFIA_TORCH_TRAIN_DISTRIBUTED_LIVENESS_H_

#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "torch/train/distributed.h"

namespace raffia::internal::train {

// A rank is considered dead after this many missed heartbeats: a busy machine delays one or two. In a collective that could still
// end, it is given more time.
inline constexpr int kMissedBeats = 4;
inline constexpr int kMissedBeatsInCollective = 20;

class Liveness {
 public:
  // `store` is used only by this object. Returns when all ranks have registered; GroupError names those that have not within the
  // time-out.
  Liveness(c10::intrusive_ptr<c10d::Store> store, const Place& place, const GroupOptions& options);
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  void entered_collective();  // heartbeats include the number of collectives entered

  bool suspects(int missed_beats);  // whether a rank has missed so many heartbeats, or has reported another rank

  void asked_to_end(int signal);  // heartbeats include the signal; 0: none
  int signal_of_others();         // that a heartbeat of another rank included; 0: none

  // Call it when a collective failed. Returns which rank caused it: "rank 1 (node7, pid 1234) no longer answers (last seen 3.1 s
  // ago)". Takes a few heartbeats: a rank is considered dead after several missed ones. When it returns, the other ranks know why
  // this one stops. Empty: all ranks answer, and none has entered fewer collectives.
  std::string culprit();

 private:
  struct Board;  // shared with the thread, which may outlive this object if the store hangs
  std::shared_ptr<Board> board_;
  std::thread thread_;
};

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_DISTRIBUTED_LIVENESS_H_
