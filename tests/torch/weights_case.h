// Weights that pass through a file.
#ifndef RAFFIA_TESTS_TORCH_WEIGHTS_CASE_H_
#define RAFFIA_TESTS_TORCH_WEIGHTS_CASE_H_

#include "support/temporary_directory.h"
#include "torch/nn_case.h"

namespace raffia::nn {

using namespace internal;
using namespace internal::nn;

// A model of `config` with other weights at first has those of `model` once they were saved and loaded.
inline void expect_weights_come_back(LanguageModelImpl& model, const ModelConfig& config) {
  const at::NoGradGuard no_grad;
  const TemporaryDirectory directory("raffia_weights");
  const auto path = directory.path() / "model.safetensors";
  save_weights(model, path);
  torch::manual_seed(99);
  LanguageModelImpl other(config);
  other.eval();
  load_weights(other, path);
  const Tensor ids = random_ids(2, 9, config.vocabulary);
  EXPECT_TRUE(torch::equal(other.forward(ids), model.forward(ids)));
}

}  // namespace raffia::nn

#endif  // RAFFIA_TESTS_TORCH_WEIGHTS_CASE_H_
