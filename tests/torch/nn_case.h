// What the tests of modules and models share: every estimator by name, and seeded inputs.
#ifndef RAFFIA_TESTS_TORCH_NN_CASE_H_
#define RAFFIA_TESTS_TORCH_NN_CASE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "raffia/torch/nn.h"
#include "torch/libtorch.h"
#include "torch/nn/models.h"

namespace raffia::nn {

using namespace internal;
using namespace internal::nn;

// Windows and chunks are small, so that short sequences pass several of them.
inline const std::vector<std::string> kCausal = {"softmax",
                                                 "window:window=4,before=1",
                                                 "rfa:samples=8",
                                                 "rfa_gate:samples=8",
                                                 "rfa_gate:samples=12,map=relu",
                                                 "hybrid:samples=8,window=4",
                                                 "lara:samples=8,window=4,chunk=2",
                                                 "ra:samples=2",
                                                 "eva:samples=4,window=4,chunk=2,features=8",
                                                 "mean"};
inline const std::vector<std::string> kBidirectional = {
    "softmax",      "window:window=4",        "rfa:samples=8", "rfa:samples=8,log=true", "rfa:map=elu", "lara:samples=4",
    "ra:samples=2", "eva:samples=4,window=4", "mean"};

// A name for a test of this estimator.
inline std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

inline Tensor random_ids(int64_t batch, int64_t length, int64_t vocabulary) {
  return torch::randint(4, vocabulary, {batch, length}, at::kLong);  // ids below 4 are special
}

// The largest difference over the largest magnitude.
inline double relative_difference(const Tensor& a, const Tensor& b) {
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item<double>();
}

// Weights as training would leave them: nothing is 0, no two heads are alike.
inline void disturb(torch::nn::Module& module, double size) {
  const at::NoGradGuard no_grad;
  for (Tensor& parameter : module.parameters()) parameter.add_(torch::randn_like(parameter) * size);
}

}  // namespace raffia::nn

#endif  // RAFFIA_TESTS_TORCH_NN_CASE_H_
