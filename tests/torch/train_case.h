// What tests of training runs share.
#ifndef RAFFIA_TESTS_TORCH_TRAIN_CASE_H_
#define RAFFIA_TESTS_TORCH_TRAIN_CASE_H_

#include <atomic>
#include <csignal>
#include <cstdint>
#include <map>
#include <string>

#include "torch/train/trainer.h"

namespace raffia::train {

using FlagMap = std::map<std::string, std::string>;

// Keeps what is said, and asks to stop after a step.
class Watcher : public Observer {
 public:
  explicit Watcher(int64_t stop_after = -1) : stop_after_(stop_after) {}
  void stepped(const StepReport& report) override {
    if (report.step == stop_after_) stop = true;
  }
  void note(const std::string& message) override { notes += message + "\n"; }
  StopSignal stop_signal() {
    return [this] { return stop ? SIGINT : 0; };
  }

  std::atomic<bool> stop = false;
  std::string notes;

 private:
  int64_t stop_after_;
};

}  // namespace raffia::train

#endif  // RAFFIA_TESTS_TORCH_TRAIN_CASE_H_
