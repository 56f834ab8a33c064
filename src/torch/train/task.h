// What a training run learns: data, model, loss, evaluation. The trainer knows no more of it than this.
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

namespace raffia::train {

using Metrics = std::vector<std::pair<std::string, double>>;  // by name, in the order of printing

struct LossSum {
  Tensor sum;          // over what was predicted; scalar, differentiable
  int64_t count = 0;   // of what was predicted
  int64_t tokens = 0;  // that were read, for the speed
};

// Where other processes have all rows of a batch.
inline LossSum no_rows() { return {.sum = at::zeros({}), .count = 0, .tokens = 0}; }

// Which metric says how good a model is.
struct Objective {
  std::string metric;
  bool higher_is_better = false;
};

// Of all that a run is bound to: a checkpoint refuses others.
struct Fingerprints {
  uint64_t tokenizer = 0;  // what tokens mean
  uint64_t data = 0;       // what is learned and evaluated on
};

class TrainingTask {
 public:
  virtual ~TrainingTask() = default;

  virtual nn::ModelImpl& model() = 0;
  virtual Objective objective() const = 0;
  virtual int64_t batches_per_epoch() const = 0;

  // Of batch `index` of the run, counted from 0: the same index is the same batch. Batches come in order, since a task may carry
  // memory from one to the next.
  virtual LossSum loss(int64_t index) = 0;

  virtual Metrics evaluate(const OnProgress& progress) = 0;
  virtual Metrics test(const OnProgress&) { return {}; }  // empty: there are no test data

  // What loss() keeps from batch to batch.
  virtual NamedTensors carried() const { return {}; }
  virtual void set_carried(const NamedTensors&) {}

  virtual Fingerprints fingerprints() const = 0;

  // What a model directory needs beside weights and configuration.
  virtual void save(const std::filesystem::path&) const {}

  virtual std::string describe() const = 0;  // one line: "1,234,567 tokens of sp:4000, ..."
};

// Reads data, makes tokenizer and model, and fills in what `options` leave open. A run that goes on finds its tokenizer in
// `options.out`. Throws InvalidArgument, FormatError or IoError that says what is wrong with options or data.
std::unique_ptr<TrainingTask> make_task(TrainOptions& options, bool goes_on);
std::unique_ptr<TrainingTask> make_lm_task(TrainOptions& options, bool goes_on);
std::unique_ptr<TrainingTask> make_translate_task(TrainOptions& options, bool goes_on);
std::unique_ptr<TrainingTask> make_classify_task(TrainOptions& options, bool goes_on);
std::unique_ptr<TrainingTask> make_image_task(TrainOptions& options);
std::unique_ptr<TrainingTask> make_recall_task(TrainOptions& options);

// What all tasks have in common in their models. Tasks add vocabulary, classes and the like.
ModelConfig model_config(const TrainOptions& options, Task task);

// Throws InvalidArgument where the model cannot be made, and writes what it chose into `options`.
void check_config(const ModelConfig& config, TrainOptions& options);

// The rows of batches that this process has; all of them where sequences are split instead.
Shard shard_of(const TrainOptions& options);

// Global generators from the seed, for the weights of a new model.
void seed_for_weights(const TrainOptions& options);

}  // namespace raffia::train

#endif  // RAFFIA_TORCH_TRAIN_TASK_H_
