// The training loop: steps, log, evaluations, checkpoints. Deterministic: a killed run resumes with bitwise the same results.
//
// Everything a step depends on is a function of (options, step) or stored in a checkpoint: batches are functions of their number,
// generators are seeded anew for each batch, the learning rate is a function of the step.
#ifndef RAFFIA_TORCH_TRAIN_TRAINER_H_
#define RAFFIA_TORCH_TRAIN_TRAINER_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "model/model_directory.h"
#include "torch/train/options.h"
#include "torch/train/task.h"

namespace raffia::internal::train {

struct StepReport {
  int64_t step = 0, steps = 0;
  double loss = 0, lr = 0, grad_norm = 0, tokens_per_second = 0;
};

// Receives the events of a run.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void started(int64_t /*step*/, int64_t /*steps*/) {}
  virtual void stepped(const StepReport&) {}
  virtual void evaluating(int64_t /*done*/, int64_t /*total*/) {}
  virtual void evaluated(int64_t /*step*/, const Metrics&, bool /*is_best*/) {}
  virtual void note(const std::string&) {}  // messages for the user, including warnings
};

enum class End : uint8_t { complete, patience, interrupted };

struct Summary {
  End end = End::complete;
  int signal = 0;  // if interrupted: the signal
  int64_t step = 0, best_step = 0;
  int64_t checkpoint = -1;  // step of the newest; -1: there is none
  Metrics valid, test;      // of the best model
  int64_t parameters = 0, tokens = 0;
  double seconds = 0, tokens_per_second = 0;
};

// The files of a run.
struct RunFiles {
  std::filesystem::path directory;
  std::filesystem::path weights() const { return directory / kWeightsFile; }
  std::filesystem::path config() const { return directory / kConfigFile; }
  std::filesystem::path log() const { return directory / "log.jsonl"; }
  std::filesystem::path csv() const { return directory / "log.csv"; }
  std::filesystem::path checkpoints() const { return directory / "trainer"; }
  std::filesystem::path options() const { return checkpoints() / "options.json"; }
  bool exist() const;       // there is a run, or a model, in the directory
  bool can_resume() const;  // a run was started
};

// Defaults, then the saved options of a resumed run (or those of the model in --init), then `config` (a TOML file; empty: none),
// then `flags`, by name. Throws InvalidArgument for invalid combinations, such as another width for a resumed run, and
// FormatError for files.
TrainOptions resolve_options(TrainKind kind, const std::string& config, const std::map<std::string, std::string>& flags,
                             bool resume, Observer& observer);

// Called before every step, and many times during an evaluation: returns the signal that should end the run; 0: none.
using StopSignal = std::function<int()>;

// Runs to the end, or until `stop` returns a signal: then a checkpoint is written, if there were steps since the last. An
// evaluation is abandoned, and a resumed run starts it again. Throws Error if it cannot continue; earlier checkpoints are kept.
Summary train(const TrainOptions& options, TrainingTask& task, Observer& observer, const StopSignal& stop = {});

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_TRAINER_H_
