// Gradients of ops in double against finite differences.
#ifndef RAFFIA_TESTS_TORCH_GRADCHECK_H_
#define RAFFIA_TESTS_TORCH_GRADCHECK_H_

#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "torch/libtorch.h"

namespace raffia::ops {

struct Named {
  std::string name;
  at::Tensor tensor;       // double
  bool has_effect = true;  // false: the loss does not depend on it, and its gradient is 0
};

// What an op makes of inputs in their order: the tensors that have gradients.
using Differentiated = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// d loss / d leaf for every entry of every leaf: by autograd, and by central differences. Entries are moved in place.
//
// The forward pass is in double: with steps of 1e-5 a difference is good to about 1e-9. Gradients come from fp32 kernels: sums of
// some hundred terms, each rounded to 6e-8, of features and denominators with relative errors of some 1e-6. Entries are compared
// relative to the largest of their leaf, for terms cancel.
inline void expect_leaf_gradients(const std::function<at::Tensor()>& loss, const std::vector<Named>& leaves,
                                  double tolerance = 2e-4) {
  constexpr double kStep = 1e-5;
  std::vector<at::Tensor> tensors;
  for (const Named& leaf : leaves) tensors.push_back(leaf.tensor);
  const std::vector<at::Tensor> gradients = torch::autograd::grad({loss()}, tensors, {}, {}, false, true);

  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < leaves.size(); ++i) {
    ASSERT_TRUE(gradients[i].defined()) << leaves[i].name << " has no gradient";
    ASSERT_TRUE(tensors[i].is_contiguous()) << leaves[i].name;
    const at::Tensor found = gradients[i].contiguous();
    double largest = 0, worst = 0, worst_found = 0, worst_expected = 0;
    int64_t worst_at = 0;
    for (int64_t j = 0; j < tensors[i].numel(); ++j) {
      double& entry = tensors[i].data_ptr<double>()[j];
      const double before = entry;
      entry = before + kStep;
      const double above = loss().item<double>();
      entry = before - kStep;
      const double below = loss().item<double>();
      entry = before;
      const double expected = (above - below) / (2 * kStep), got = found.data_ptr<double>()[j];
      largest = std::max(largest, std::abs(expected));
      if (!(std::abs(got - expected) <= worst)) {
        worst = std::abs(got - expected);
        worst_at = j;
        worst_found = got;
        worst_expected = expected;
      }
    }
    if (leaves[i].has_effect) {
      EXPECT_GT(largest, 0) << leaves[i].name << " has no effect: nothing was checked";
    } else {
      EXPECT_EQ(largest, 0) << leaves[i].name << " has an effect";
    }
    EXPECT_LE(worst, tolerance * std::max(largest, 1e-3))
        << "gradient of " << leaves[i].name << ", entry " << worst_at << ": " << worst_found << ", expected " << worst_expected;
  }
}

// The same of sum(outputs o fixed random numbers).
inline void expect_gradients(const Differentiated& op, const std::vector<Named>& inputs, double tolerance = 2e-4) {
  std::vector<Named> leaves;
  std::vector<at::Tensor> tensors, factors;
  for (const Named& input : inputs) {
    tensors.push_back(input.tensor.detach().clone().to(at::kDouble).contiguous().requires_grad_());
    leaves.push_back({input.name, tensors.back()});
  }
  const auto loss = [&] {
    const std::vector<at::Tensor> outputs = op(tensors);
    if (factors.empty()) {
      for (const at::Tensor& output : outputs) factors.push_back(torch::randn(output.sizes(), at::kDouble));
    }
    at::Tensor sum = torch::zeros({}, at::kDouble);
    for (size_t i = 0; i < outputs.size(); ++i) sum = sum + (outputs[i] * factors[i]).sum();
    return sum;
  };
  expect_leaf_gradients(loss, leaves, tolerance);
}

}  // namespace raffia::ops

#endif  // RAFFIA_TESTS_TORCH_GRADCHECK_H_
