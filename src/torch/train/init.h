// Runs that start from a model directory, imported, converted or trained: what the directory decides.
#ifndef RAFFIA_TORCH_TRAIN_INIT_H_
#define RAFFIA_TORCH_TRAIN_INIT_H_

#include "torch/nn/models.h"
#include "torch/train/options.h"

namespace raffia::train {

// Options as options.init has them: sizes, estimators and kinds of the model, and its tokenizer. Throws FormatError or IoError
// for the directory, InvalidArgument for a model of another task.
void take_model(TrainOptions& options);

// Throws InvalidArgument for what was asked for and is not what the directory has; `taken` are the options after take_model.
void require_same_model(const TrainOptions& taken, const TrainOptions& options);

// What the model of a run is made of: the config of options.init, or, of a run that goes on, of options.out; with the options
// that concern training alone.
ModelConfig config_of_start(const TrainOptions& options, bool goes_on);

// Weights of options.init. A run that goes on from a checkpoint has weights already.
void load_start(nn::ModelImpl& model, const TrainOptions& options, bool goes_on);

}  // namespace raffia::train

#endif  // RAFFIA_TORCH_TRAIN_INIT_H_
