// Runs that start from a model directory (imported, converted or trained), which sets some of the options.
#ifndef RAFFIA_TORCH_TRAIN_INIT_H_
#define RAFFIA_TORCH_TRAIN_INIT_H_

#include "torch/nn/models.h"
#include "torch/train/options.h"

namespace raffia::internal::train {

// Options with the values of options.init: sizes, estimators and kinds of the model, and its tokenizer. Throws FormatError or
// IoError for the directory, InvalidArgument for a model of another task.
void take_model(TrainOptions& options);

// Throws InvalidArgument if a requested option differs from the directory; `taken` are the options after take_model.
void require_same_model(const TrainOptions& taken, const TrainOptions& options);

// The config of the model of a run: that of options.init or, for a resumed run, of options.out; with the options that only
// concern training.
ModelConfig config_of_start(const TrainOptions& options, bool goes_on);

// Loads the weights of options.init. A resumed run takes its weights from the checkpoint.
void load_start(nn::ModelImpl& model, const TrainOptions& options, bool goes_on);

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_INIT_H_
