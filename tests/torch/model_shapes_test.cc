// Models in the shape of imported ones: RMS norms, SwiGLU, fewer key heads, no biases, an output of its own.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>

#include <map>
#include <string>
#include <vector>

#include "io/formats/safetensors.h"
#include "support/temporary_directory.h"
#include "torch/gradcheck.h"
#include "torch/libtorch.h"
#include "torch/nn/models.h"
#include "torch/nn_case.h"
#include "torch/ops/norm.h"
#include "torch/weights_case.h"

namespace raffia::nn {

using namespace internal;
using namespace internal::nn;
namespace {

constexpr int64_t kVocabulary = 24;

ModelConfig llama(const std::string& estimator) {
  ModelConfig config{.task = Task::lm, .vocabulary = kVocabulary, .width = 16, .heads = 4, .kv_heads = 2, .layers = 2, .ffn = 20};
  config.norm = raffia::Norm::rms;
  config.feed_forward = FeedForward::swiglu;
  config.bias = config.tied = false;
  config.estimators = {parse_estimator(estimator)};
  config.positions = Positions::rotary;
  return config;
}

std::shared_ptr<LanguageModelImpl> make(const ModelConfig& config) {
  torch::manual_seed(11);
  auto model = std::make_shared<LanguageModelImpl>(config);
  disturb(*model, 0.1);
  model->eval();
  return model;
}

std::map<std::string, Tensor> tensors_of(const LanguageModelImpl& model) {
  std::map<std::string, Tensor> all;
  for (const auto& item : model.named_parameters()) all[item.key()] = item.value();
  for (const auto& item : model.named_buffers()) all[item.key()] = item.value();
  return all;
}

class ImportedShapes : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, ImportedShapes, testing::ValuesIn(kCausal), test_name);

TEST_P(ImportedShapes, LogitsAreTheSameWholeInChunksAndByStep) {
  const at::NoGradGuard no_grad;
  ModelConfig config = llama(GetParam());
  config.conv = 3;
  config.head_norm = true;
  const auto model = make(config);
  const Tensor ids = random_ids(2, 20, kVocabulary);
  const Tensor whole = model->forward(ids);
  for (const std::vector<int64_t>& chunks : {std::vector<int64_t>{3, 7, 1, 9}, std::vector<int64_t>(20, 1)}) {
    ModelState state;
    std::vector<Tensor> parts;
    int64_t begin = 0;
    for (const int64_t length : chunks) {
      parts.push_back(model->forward(ids.narrow(1, begin, length), &state));
      begin += length;
    }
    // Rounding of fp32 over 20 tokens and two layers.
    EXPECT_LT(relative_difference(torch::cat(parts, 1), whole), 2e-5) << chunks.size() << " chunks";
  }
}

TEST_P(ImportedShapes, WeightsComeBackBitForBit) {
  const ModelConfig config = llama(GetParam());
  expect_weights_come_back(*make(config), config);
}

TEST_P(ImportedShapes, LearnASequenceByHeart) {
  ModelConfig config = llama(GetParam());
  config.pool = 0;
  torch::manual_seed(2);
  LanguageModelImpl model(config);
  const Tensor text = random_ids(4, 13, kVocabulary), input = text.narrow(1, 0, 12), target = text.narrow(1, 1, 12);
  torch::optim::Adam optimiser(model.parameters(), torch::optim::AdamOptions(1e-2));
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    optimiser.zero_grad();
    const Tensor loss = torch::nn::functional::cross_entropy(model.forward(input).flatten(0, 1), target.flatten());
    loss.backward();
    for (const auto& item : model.named_parameters()) ASSERT_TRUE(item.value().grad().defined()) << item.key();
    optimiser.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  EXPECT_LT(last, 0.5 * first);
}

class SharedHeads : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, SharedHeads,
                         testing::Values("softmax", "window:window=4,before=1", "rfa:samples=8", "rfa_gate:samples=8",
                                         "rfa_gate:samples=12,map=relu", "hybrid:samples=8,window=4"),
                         test_name);

// A model with as many key heads as heads, in which neighbours are copies of each other.
TEST_P(SharedHeads, EqualHeadsThatAreCopies) {
  const at::NoGradGuard no_grad;
  ModelConfig config = llama(GetParam());
  config.conv = 3;
  const auto shared = make(config);
  config.kv_heads = 0;
  const auto copies = make(config);
  const auto from = tensors_of(*shared);
  for (const auto& [name, to] : tensors_of(*copies)) {
    Tensor source = from.at(name);
    if (source.sizes() != to.sizes()) {  // [2 d, ..] or [2, ..] -> [4 d, ..] or [4, ..]
      source = source.unflatten(0, {2, source.size(0) / 2}).repeat_interleave(2, 0).flatten(0, 1);
    }
    Tensor(to).copy_(source);
  }
  const Tensor ids = random_ids(2, 19, kVocabulary);
  EXPECT_LT(relative_difference(shared->forward(ids), copies->forward(ids)), 1e-5);
}

TEST(ImportedShape, WeightsAreWhatTheFormatSays) {
  ModelConfig config = llama("hybrid:samples=8");
  config.layers = 1;
  config.conv = 3;
  const TemporaryDirectory directory("raffia_shapes");
  const auto path = directory.path() / "model.safetensors";
  save_weights(*make(config), path);
  std::map<std::string, std::vector<int64_t>> found;
  const Safetensors opened = Safetensors::open(path);
  for (const auto& tensor : opened.tensors()) found[tensor.name] = tensor.shape;
  const std::map<std::string, std::vector<int64_t>> expected = {
      {"embedding.weight", {24, 16}},
      {"output.weight", {24, 16}},
      {"decoder.layers.0.attention_norm.weight", {16}},
      {"decoder.layers.0.attention.q_proj.weight", {16, 16}},
      {"decoder.layers.0.attention.k_proj.weight", {8, 16}},
      {"decoder.layers.0.attention.v_proj.weight", {8, 16}},
      {"decoder.layers.0.attention.out_proj.weight", {16, 16}},
      {"decoder.layers.0.attention.conv_q", {16, 3}},
      {"decoder.layers.0.attention.conv_k", {8, 3}},
      {"decoder.layers.0.attention.conv_v", {8, 3}},
      {"decoder.layers.0.attention.map.draws", {2, 8, 4}},
      {"decoder.layers.0.attention.map.sigma", {2, 4}},
      {"decoder.layers.0.attention.gate.weight", {2, 16}},
      {"decoder.layers.0.attention.gate.bias", {2}},
      {"decoder.layers.0.attention.log_scale", {4}},
      {"decoder.layers.0.ffn_norm.weight", {16}},
      {"decoder.layers.0.ffn_up.weight", {20, 16}},
      {"decoder.layers.0.ffn_down.weight", {16, 20}},
      {"decoder.layers.0.ffn_gate.weight", {20, 16}},
      {"decoder.norm.weight", {16}},
  };
  EXPECT_EQ(found, expected);
}

TEST(ImportedShape, GradientsAreThoseOfFiniteDifferences) {
  ModelConfig config{.task = Task::lm, .vocabulary = 6, .width = 4, .heads = 2, .kv_heads = 1, .layers = 1, .ffn = 6};
  config.norm = raffia::Norm::rms;
  config.feed_forward = FeedForward::swiglu;
  config.bias = config.tied = false;
  config.estimators = {parse_estimator("rfa_gate:samples=4")};
  torch::manual_seed(7);
  LanguageModelImpl model(config);
  model.to(at::kDouble);
  disturb(model, 0.4);
  const Tensor ids = torch::randint(0, 6, {2, 5}, at::kLong), targets = torch::randint(0, 6, {10}, at::kLong);
  std::vector<raffia::ops::Named> leaves;
  for (const auto& item : model.named_parameters()) leaves.push_back({item.key(), item.value()});
  raffia::ops::expect_leaf_gradients(
      [&] { return torch::nn::functional::cross_entropy(model.forward(ids).flatten(0, 1), targets); }, leaves);
}

TEST(RmsNorm, DividesByTheRootOfTheMeanSquare) {
  const Tensor x = torch::tensor({{3.0, -4.0, 0.0, 0.0}}), weight = torch::tensor({1.0, 2.0, 1.0, 1.0});
  const Tensor expected = torch::tensor({{1.2, -3.2, 0.0, 0.0}});  // the mean square is 25 / 4
  EXPECT_LT((internal::ops::rms_norm_of_torch(x, weight, 0) - expected).abs().max().item<double>(), 1e-6);
  EXPECT_LT((internal::ops::rms_norm_of_torch(x * 0, weight, 1e-5)).abs().max().item<double>(), 1e-30);
}

TEST(SharedHeadsOfAttention, AreADivisorOfTheHeads) {
  EXPECT_THROW(make_attention({.embed_dim = 12, .num_heads = 4, .num_kv_heads = 3}), std::exception);
}

}  // namespace
}  // namespace raffia::nn
