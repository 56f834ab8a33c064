// The task of a training run: data, model, loss, evaluation. This interface is all that the trainer uses.
#ifndef RAFFIA_TORCH_TRAIN_TASK_H_
#define RAFFIA_TORCH_TRAIN_TASK_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "torch/libtorch.h"
#include "torch/nn/models.h"
#include "torch/tensor_file.h"
#include "torch/train/data.h"
#include "torch/train/evaluate.h"
#include "torch/train/options.h"

namespace raffia::internal::train {

using Metrics = std::vector<std::pair<std::string, double>>;  // by name, in the order of printing

struct LossSum {
  Tensor sum;          // over predicted tokens or labels; scalar, differentiable
  int64_t count = 0;   // number of predictions
  int64_t tokens = 0;  // tokens read, to report the speed
};

// If other processes have all rows of a batch.
inline LossSum no_rows() { return {.sum = at::zeros({}), .count = 0, .tokens = 0}; }

// The metric by which the best model is chosen.
struct Objective {
  std::string metric;
  bool higher_is_better = false;
};

// Hashes of what must not change during a run: a checkpoint is only loaded if they match.
struct Fingerprints {
  uint64_t tokenizer = 0;  // the meaning of tokens
  uint64_t data = 0;       // training and evaluation data
};

class TrainingTask {
 public:
  virtual ~TrainingTask() = default;

  virtual nn::ModelImpl& model() = 0;
  virtual Objective objective() const = 0;
  virtual int64_t batches_per_epoch() const = 0;

  // The loss of batch `index` of the run, counted from 0: the same index is the same batch. Called in order, since a task may
  // carry memory from batch to batch.
  virtual LossSum loss(int64_t index) = 0;

  // `progress` may throw, which ends the evaluation; the model is then as before.
  virtual Metrics evaluate(const OnProgress& progress) = 0;
  virtual Metrics test(const OnProgress&) { return {}; }  // empty: there are no test data

  // The memory that loss() carries from batch to batch. `where`: the file it was read from, for errors (FormatError).
  virtual NamedTensors carried() const { return {}; }
  virtual void set_carried(const NamedTensors&, std::string_view /*where*/) {}

  virtual Fingerprints fingerprints() const = 0;

  // Writes the files of a model directory other than weights and configuration.
  virtual void save(const std::filesystem::path&) const {}

  virtual std::string describe() const = 0;  // one line: "1,234,567 tokens of sp:4000, ..."
};

// Reads the data, makes tokenizer and model, and fills in options that are not set. A resumed run loads its tokenizer from
// `options.out`. Throws InvalidArgument, FormatError or IoError, which says what is wrong with options or data.
std::unique_ptr<TrainingTask> make_task(TrainOptions& options, bool goes_on);
std::unique_ptr<TrainingTask> make_lm_task(TrainOptions& options, bool goes_on);
std::unique_ptr<TrainingTask> make_translate_task(TrainOptions& options, bool goes_on);
std::unique_ptr<TrainingTask> make_classify_task(TrainOptions& options, bool goes_on);
std::unique_ptr<TrainingTask> make_image_task(TrainOptions& options, bool goes_on);
std::unique_ptr<TrainingTask> make_recall_task(TrainOptions& options);

// The part of the config that all tasks have in common. Tasks add vocabulary, classes and so on.
ModelConfig model_config(const TrainOptions& options);

// Throws InvalidArgument if the model cannot be made, and writes its choices into `options`.
void check_config(const ModelConfig& config, TrainOptions& options);

// The rows of batches that this process has; all of them if sequences are split instead.
Shard shard_of(const TrainOptions& options);

// Seeds the global generators, for the weights of a new model.
void seed_for_weights(const TrainOptions& options);

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_TASK_H_
