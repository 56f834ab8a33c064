// Gradients of whole modules in double: every entry of every parameter, and of the input.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include <string>
#include <vector>

#include "raffia/torch/nn.h"
#include "torch/gradcheck.h"
#include "torch/libtorch.h"
#include "torch/nn/models.h"
#include "torch/nn_case.h"

namespace raffia::nn {

using namespace internal;
using namespace internal::nn;
namespace {

// Long enough for windows of 4 to fall out of what is seen exactly, and chunks of eva to be folded.
constexpr int64_t kWidth = 8, kHeads = 2, kLength = 14;

std::vector<ops::Named> leaves_of(const torch::nn::Module& module) {
  std::vector<ops::Named> leaves;
  for (const auto& item : module.named_parameters()) leaves.push_back({item.key(), item.value()});
  return leaves;
}

// The mean of the values does not read queries and keys.
bool is_read(const Estimator& estimator, const std::string& parameter) {
  if (estimator.kind != EstimatorKind::mean) return true;
  return !parameter.starts_with("q_proj") && !parameter.starts_with("k_proj") && parameter != "conv_q" && parameter != "conv_k";
}

void expect_module_gradients(const AttentionOptions& options, int64_t keys) {
  torch::manual_seed(7);
  const Attention attention = make_attention(options);
  attention->to(at::kDouble);
  disturb(*attention, 0.4);
  const Tensor x = torch::randn({2, kLength, kWidth}, at::kDouble).requires_grad_();
  const Tensor context = keys > 0 ? torch::randn({2, keys, kWidth}, at::kDouble).requires_grad_() : x;
  Tensor mask = torch::zeros({2, context.size(1)}, at::kBool);
  mask[1].narrow(0, context.size(1) - 2, 2).fill_(true);
  // What padding queries put out says nothing.
  Tensor factors = torch::randn({2, kLength, kWidth}, at::kDouble);
  if (keys == 0) factors = factors.masked_fill(mask.unsqueeze(2), 0);

  std::vector<ops::Named> leaves = leaves_of(*attention);
  for (ops::Named& leaf : leaves) leaf.has_effect = is_read(options.estimator, leaf.name);
  leaves.push_back({"query", x});
  if (keys > 0) leaves.push_back({"key and value", context});
  ops::expect_leaf_gradients(
      [&] { return (attention->forward(x, context, context, {.key_padding_mask = mask}) * factors).sum(); }, leaves);
}

AttentionOptions options_for(const std::string& estimator, bool causal) {
  return {.embed_dim = kWidth,
          .num_heads = kHeads,
          .estimator = parse_estimator(estimator),
          .causal = causal,
          .rotary = true,
          .conv = causal ? 3 : 0,
          .head_norm = true};
}

class CausalGradients : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, CausalGradients, testing::ValuesIn(kCausal), test_name);
TEST_P(CausalGradients, AreThoseOfFiniteDifferences) { expect_module_gradients(options_for(GetParam(), true), 0); }

class BidirectionalGradients : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, BidirectionalGradients, testing::ValuesIn(kBidirectional), test_name);
TEST_P(BidirectionalGradients, AreThoseOfFiniteDifferences) { expect_module_gradients(options_for(GetParam(), false), 0); }

class CrossGradients : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, CrossGradients, testing::Values("softmax", "rfa:samples=8", "lara:samples=4"), test_name);
TEST_P(CrossGradients, AreThoseOfFiniteDifferences) { expect_module_gradients(options_for(GetParam(), false), 9); }

TEST(ModelGradients, OfAWholeModelAreThoseOfFiniteDifferences) {
  ModelConfig config{.task = Task::lm, .vocabulary = 6, .width = 4, .heads = 2, .layers = 2, .ffn = 6};
  config.estimators = {parse_estimator("rfa_gate:samples=4"), parse_estimator("softmax")};
  config.positions = Positions::learned;
  config.max_length = 5;
  torch::manual_seed(7);
  LanguageModelImpl model(config);
  model.to(at::kDouble);
  disturb(model, 0.4);
  const Tensor ids = torch::randint(0, 6, {2, 5}, at::kLong), targets = torch::randint(0, 6, {10}, at::kLong);
  ops::expect_leaf_gradients([&] { return torch::nn::functional::cross_entropy(model.forward(ids).flatten(0, 1), targets); },
                             leaves_of(model));
}

}  // namespace
}  // namespace raffia::nn
