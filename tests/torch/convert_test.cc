// Softmax models with another attention in its place.
#include "torch/train/convert.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "raffia/error.h"
#include "torch/libtorch.h"
#include "torch/nn_case.h"

namespace raffia::internal::train {
namespace {

constexpr int64_t kVocabulary = 24;

ModelConfig softmax_config() {
  ModelConfig config{.task = Task::lm, .vocabulary = kVocabulary, .width = 16, .heads = 4, .kv_heads = 2, .layers = 2, .ffn = 20};
  config.norm = raffia::Norm::rms;
  config.feed_forward = FeedForward::swiglu;
  config.bias = false;
  config.estimators = {parse_estimator("softmax")};
  config.positions = Positions::rotary;
  return config;
}

std::shared_ptr<nn::LanguageModelImpl> make_source() {
  torch::manual_seed(3);
  auto model = std::make_shared<nn::LanguageModelImpl>(softmax_config());
  raffia::nn::disturb(*model, 0.4);
  model->eval();
  return model;
}

std::vector<int32_t> text(int64_t length) {
  torch::manual_seed(4);
  const at::Tensor ids = raffia::nn::random_ids(1, length, kVocabulary).to(at::kInt);
  return {ids.data_ptr<int32_t>(), ids.data_ptr<int32_t>() + length};
}

std::vector<Estimator> parsed(const std::vector<std::string>& texts) {
  std::vector<Estimator> estimators;
  for (const std::string& one : texts) estimators.push_back(parse_estimator(one));
  return estimators;
}

std::string refusal(const ModelConfig& source, const std::vector<std::string>& to) {
  try {
    converted_config(source, parsed(to), 1);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Convert, KeepsEveryWeightOfTheSource) {
  const auto source = make_source();
  const auto converted = make_converted(*source, converted_config(source->config(), parsed({"rfa_gate:samples=8,map=relu"}), 5));
  const auto weights = converted->named_parameters();
  for (const auto& item : source->named_parameters()) {
    EXPECT_TRUE(torch::equal(weights[item.key()], item.value())) << item.key();
  }
  EXPECT_EQ(converted->config().pool, 0);
  EXPECT_EQ(converted->config().seed, 5U);
}

TEST(Convert, AWindowAsLongAsTheTextIsTheSameModel) {
  const at::NoGradGuard no_grad;
  const auto source = make_source();
  const at::Tensor ids = raffia::nn::random_ids(2, 20, kVocabulary);
  for (const std::vector<std::string>& to : {std::vector<std::string>{"window:window=32"}, {"softmax", "eva:window=32"}}) {
    const auto converted = make_converted(*source, converted_config(source->config(), parsed(to), 1));
    EXPECT_LT(raffia::nn::relative_difference(converted->forward(ids), source->forward(ids)), 1e-5) << to.back();
  }
}

TEST(Convert, TheMeanHasNothingToFit) {
  const auto source = make_source();
  const auto converted = make_converted(*source, converted_config(source->config(), parsed({"mean"}), 1));
  const auto fits = fit_attention(*source, *converted, text(200), {.segment = 40, .segments = 4, .steps = 5});
  ASSERT_EQ(fits.size(), 2U);
  for (const LayerFit& fit : fits) {
    EXPECT_GT(fit.error_at_first, 0) << "layer " << fit.layer;
    EXPECT_EQ(fit.error, fit.error_at_first) << "layer " << fit.layer;
  }
}

class Fitted : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Fitted,
                         testing::Values("rfa:samples=16,map=relu", "rfa:samples=16", "rfa_gate:samples=16,map=relu",
                                         "rfa_gate:samples=16", "hybrid:samples=16,window=4,map=relu"),
                         raffia::nn::test_name);

TEST_P(Fitted, AttentionComesCloserToSoftmax) {
  const auto source = make_source();
  const auto converted = make_converted(*source, converted_config(source->config(), parsed({GetParam()}), 1));
  const auto fits = fit_attention(*source, *converted, text(400), {.segment = 40, .segments = 8, .steps = 40});
  ASSERT_EQ(fits.size(), 2U);
  for (const LayerFit& fit : fits) {
    EXPECT_LE(fit.error_searched, fit.error_at_first) << "layer " << fit.layer;
    EXPECT_LT(fit.error, 0.9 * fit.error_at_first) << "layer " << fit.layer;
  }
  // What was not new is as it was, and nothing is left behind.
  const auto weights = converted->named_parameters();
  for (const auto& item : source->named_parameters()) {
    EXPECT_TRUE(torch::equal(weights[item.key()], item.value())) << item.key();
    EXPECT_FALSE(item.value().grad().defined()) << item.key();
    EXPECT_FALSE(weights[item.key()].grad().defined()) << item.key();
  }
}

TEST(Convert, IsDeterministic) {
  const auto source = make_source();
  const ModelConfig config = converted_config(source->config(), parsed({"rfa_gate:samples=8,map=relu"}), 1);
  const auto a = make_converted(*source, config), b = make_converted(*source, config);
  for (const auto& model : {a, b}) fit_attention(*source, *model, text(200), {.segment = 40, .segments = 4, .steps = 5});
  const auto first = a->parameters(), second = b->parameters();
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(torch::equal(first[i], second[i]));
}

TEST(Convert, RefusesWhatHasNoSoftmaxAttentionToReplace) {
  ModelConfig config = softmax_config();
  EXPECT_EQ(refusal(config, {"rfa_gate"}), "");
  EXPECT_EQ(refusal(config, {"softmax"}), "convert: every layer would stay softmax, expected a change");
  EXPECT_EQ(refusal(config, {"rfa", "rfa", "rfa"}), "convert: 3 estimators are given, expected 1 or 2 (one per layer)");
  config.estimators = {parse_estimator("rfa_gate")};
  EXPECT_EQ(refusal(config, {"rfa"}), "convert: the model has rfa_gate attention, expected softmax");
  config.task = Task::translate;
  EXPECT_EQ(refusal(config, {"rfa"}), "convert: the model is for translate, expected lm");
  const auto source = make_source();
  const auto converted = make_converted(*source, converted_config(source->config(), parsed({"rfa"}), 1));
  EXPECT_THROW(fit_attention(*source, *converted, text(100), {.segment = 128}), InvalidArgument);
}

}  // namespace
}  // namespace raffia::internal::train
