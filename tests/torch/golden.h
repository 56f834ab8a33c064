// The golden models of tests/golden: what they are made of, and the trainer's answer to their inputs.
#ifndef RAFFIA_TESTS_TORCH_GOLDEN_H_
#define RAFFIA_TESTS_TORCH_GOLDEN_H_

#include <string>
#include <vector>

#include "torch/libtorch.h"
#include "torch/nn/models.h"
#include "torch/tensor_file.h"

namespace raffia::nn {

using namespace internal;
using namespace internal::nn;

struct GoldenCase {
  std::string name;  // of the directory
  ModelConfig config;
};

// Every task with every family of estimators.
std::vector<GoldenCase> golden_cases();

// Tensors by name, as expected.safetensors holds them besides "logits": see tests/golden/README.md.

// Seeded ids or pixels for a model. Texts pass several windows and chunks; where a task pads, the second text is shorter.
NamedTensors golden_inputs(const ModelConfig& config);

Tensor golden_logits(ModelImpl& model, const NamedTensors& inputs);

// Weights as training might leave them: nothing is 0, and an entry that a runtime forgets or misplaces shows in the logits.
std::shared_ptr<ModelImpl> make_golden_model(const ModelConfig& config);

}  // namespace raffia::nn

#endif  // RAFFIA_TESTS_TORCH_GOLDEN_H_
