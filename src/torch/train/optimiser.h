// AdamW over the parameters of a model: which of them decay, the learning rate schedule, and its state by name.
#ifndef RAFFIA_TORCH_TRAIN_OPTIMISER_H_
#define RAFFIA_TORCH_TRAIN_OPTIMISER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "torch/libtorch.h"
#include "torch/nn/models.h"
#include "torch/tensor_file.h"
#include "torch/train/options.h"

namespace raffia::internal::train {

class Optimiser {
 public:
  Optimiser(nn::ModelImpl& model, const TrainOptions& options);

  // One step with the gradients of the parameters, scaled by `scale` first. Returns their norm before clipping; if it is not
  // finite, the parameters are not changed. Gradients are cleared.
  double step(double lr, double scale);

  NamedTensors state() const;
  void set_state(const NamedTensors& state, std::string_view where);  // throws FormatError

 private:
  // A parameter, and the means over its gradients and their squares. They are undefined, and steps 0, until it has a gradient.
  struct Slot {
    std::string name;
    at::Tensor parameter, mean, square;
    bool decays;
    int64_t steps = 0;
  };

  double beta1_, beta2_, decay_, clip_;
  std::vector<Slot> slots_;
};

// Matrices decay; norms, biases, gates and scales do not.
bool decays(const std::string& name, const at::Tensor& parameter);

// The learning rate of step `step` of `steps`, counted from 0: linear warmup, then cosine decay.
double learning_rate(const TrainOptions& options, int64_t step, int64_t steps);

// options.lr, or the default for the width.
double highest_learning_rate(const TrainOptions& options);

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_OPTIMISER_H_
