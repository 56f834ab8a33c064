// Every model with every estimator learns a handful of examples by heart: gradients reach all that has to learn.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>

#include <functional>
#include <string>

#include "torch/libtorch.h"
#include "torch/nn/models.h"
#include "torch/nn_case.h"

namespace raffia::nn {

using namespace internal;
using namespace internal::nn;
namespace {

constexpr int64_t kVocabulary = 40;

ModelConfig config_of(Task task, const std::string& estimator) {
  ModelConfig config{.task = task, .vocabulary = kVocabulary, .width = 32, .heads = 2, .layers = 2};
  config.estimators = {parse_estimator(estimator)};
  config.positions = Positions::rotary;
  config.pool = 0;  // draws that change are noise, which this small a model cannot average
  return config;
}

// The steps of Adam that bring the loss below 0.05, at most `max`; 0: it stays above.
int64_t steps_to_learn(ModelImpl& model, const std::function<Tensor()>& loss, int64_t max = 400) {
  torch::optim::Adam optimiser(model.parameters(), torch::optim::AdamOptions(1e-2));
  for (int64_t step = 1; step <= max; ++step) {
    optimiser.zero_grad();
    const Tensor value = loss();
    if (value.item<double>() < 0.05) return step;
    value.backward();
    torch::nn::utils::clip_grad_norm_(model.parameters(), 1);
    optimiser.step();
  }
  return 0;
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, -2), targets.flatten());
}

class Overfit : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Overfit, testing::ValuesIn(kCausal), test_name);

TEST_P(Overfit, LanguageModelLearns32SequencesByHeart) {
  torch::manual_seed(2);
  LanguageModelImpl model(config_of(Task::lm, GetParam()));
  Tensor text = random_ids(32, 17, kVocabulary);
  text.select(1, 0).copy_(torch::arange(4, 36));  // what the sequence is known by
  const Tensor input = text.narrow(1, 0, 16), target = text.narrow(1, 1, 16);
  EXPECT_GT(steps_to_learn(model, [&] { return cross_entropy(model.forward(input), target); }), 0);
}

TEST(OverfitTranslator, LearnsPairsByHeart) {
  torch::manual_seed(2);
  ModelConfig config = config_of(Task::translate, "rfa_gate:samples=8");
  config.cross = parse_estimator("rfa:samples=16");
  TranslatorImpl model(config);
  const Tensor source = random_ids(16, 8, kVocabulary);
  const Tensor target = random_ids(16, 9, kVocabulary);
  const auto loss = [&] { return cross_entropy(model.forward(source, target.narrow(1, 0, 8)), target.narrow(1, 1, 8)); };
  EXPECT_GT(steps_to_learn(model, loss), 0);
}

TEST(OverfitClassifier, LearnsTextsAndPairsByHeart) {
  torch::manual_seed(2);
  ModelConfig config = config_of(Task::classify, "lara:samples=4");
  config.classes = 3;
  const Tensor first = random_ids(32, 10, kVocabulary), second = random_ids(32, 7, kVocabulary);
  const Tensor labels = torch::randint(0, 3, {32}, at::kLong);
  ClassifierImpl single(config);
  EXPECT_GT(steps_to_learn(single, [&] { return cross_entropy(single.forward(first), labels); }), 0);
  config.pairs = true;
  ClassifierImpl pairs(config);
  EXPECT_GT(steps_to_learn(pairs, [&] { return cross_entropy(pairs.forward(first, second), labels); }), 0);
}

TEST(OverfitImageClassifier, LearnsImagesByHeart) {
  torch::manual_seed(2);
  ModelConfig config = config_of(Task::image, "eva:samples=4,window=4");
  config.vocabulary = 0;
  config.classes = 4;
  config.image_size = 12;
  config.channels = 1;
  config.patch = 4;
  ImageClassifierImpl model(config);
  const Tensor pixels = torch::rand({32, 1, 12, 12}), labels = torch::randint(0, 4, {32}, at::kLong);
  EXPECT_GT(steps_to_learn(model, [&] { return cross_entropy(model.forward(pixels), labels); }), 0);
}

}  // namespace
}  // namespace raffia::nn
