// What tests of training runs share.
#ifndef RAFFIA_TESTS_TORCH_TRAIN_CASE_H_
#define RAFFIA_TESTS_TORCH_TRAIN_CASE_H_

#include <atomic>
#include <csignal>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "torch/train/trainer.h"

namespace raffia::internal::train {

using FlagMap = std::map<std::string, std::string>;

// Keeps what is said, and asks to stop after a step, or in the evaluation after `stop_evaluation_of` steps.
class Watcher : public Observer {
 public:
  explicit Watcher(int64_t stop_after = -1, int64_t stop_evaluation_of = -1)
      : stop_after_(stop_after), stop_evaluation_of_(stop_evaluation_of) {}
  void started(int64_t step, int64_t /*steps*/) override { step_ = step; }
  void stepped(const StepReport& report) override {
    step_ = report.step;
    if (report.step == stop_after_) stop = true;
  }
  void evaluating(int64_t /*done*/, int64_t /*total*/) override {
    if (step_ == stop_evaluation_of_) stop = true;
  }
  void evaluated(int64_t step, const Metrics&, bool /*is_best*/) override { evaluations.push_back(step); }
  void note(const std::string& message) override { notes += message + "\n"; }
  StopSignal stop_signal() {
    return [this] { return stop ? SIGINT : 0; };
  }

  std::atomic<bool> stop = false;
  std::string notes;
  std::vector<int64_t> evaluations;  // that came to their end: their steps

 private:
  int64_t stop_after_, stop_evaluation_of_;
  int64_t step_ = 0;
};

}  // namespace raffia::internal::train

#endif  // RAFFIA_TESTS_TORCH_TRAIN_CASE_H_
