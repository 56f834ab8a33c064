#include "torch/train/evaluate.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include <cmath>
#include <numbers>
#include <random>
#include <span>
#include <vector>

#include "raffia/error.h"
#include "raffia/tokenizer.h"
#include "torch/libtorch.h"

namespace raffia::internal::train {
namespace {

ModelConfig tiny(Task task, const char* estimator) {
  return {.task = task, .vocabulary = 40, .width = 16, .heads = 2, .layers = 2, .estimators = {parse_estimator(estimator)}};
}

nn::LanguageModelImpl tiny_lm(const char* estimator) {
  torch::manual_seed(3);
  return nn::LanguageModelImpl(tiny(Task::lm, estimator));
}

std::vector<int32_t> random_ids(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(4 + random() % 36);
  return ids;
}

// fp32 sums of a few hundred losses of about 4 each.
void expect_close(const NllScore& found, const NllScore& expected) {
  EXPECT_EQ(found.tokens, expected.tokens);
  EXPECT_NEAR(found.nll, expected.nll, 2e-5 * expected.nll);
}

TEST(CountText, NewlinesAreWordsAsInWikiText) {
  const TextFacts facts = count_text(" = Title = \n\nsome words\there \n", 12);
  EXPECT_EQ(facts.words, 3 + 3 + 3);
  EXPECT_EQ(facts.bytes, 30);
  EXPECT_EQ(facts.tokens, 12);
}

TEST(NllScore, UnitsAgree) {
  const TextFacts facts{.tokens = 101, .words = 50, .bytes = 400};
  const NllScore score{.nll = 100 * std::numbers::ln2 * 4, .tokens = 100};  // 4 bits per token
  EXPECT_DOUBLE_EQ(score.perplexity(), 16);
  EXPECT_DOUBLE_EQ(score.word_perplexity(facts), 256);
  EXPECT_DOUBLE_EQ(score.bits_per_byte(facts), 1);
}

TEST(ScoreLm, OneSegmentIsTheCrossEntropyOfTheModel) {
  auto model = tiny_lm("softmax");
  const auto ids = random_ids(51, 1);
  model.eval();
  const at::Tensor all = torch::tensor(std::vector<int64_t>(ids.begin(), ids.end())).unsqueeze(0);
  const at::Tensor losses =
      torch::nn::functional::cross_entropy(model.forward(all.slice(1, 0, 50))[0], all[0].slice(0, 1),
                                           torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  expect_close(score_lm(model, ids, {.segment = 50}), {.nll = losses.item<double>(), .tokens = 50});
}

TEST(ScoreLm, EveryTokenButTheFirstIsPredictedOnce) {
  auto model = tiny_lm("rfa_gate");
  const auto ids = random_ids(100, 2);
  for (const int64_t segment : {1, 7, 33, 99, 1000}) {
    // Segments one by one, each with the token after it.
    NllScore expected;
    for (size_t begin = 0; begin + 1 < ids.size(); begin += static_cast<size_t>(segment)) {
      const size_t count = std::min(static_cast<size_t>(segment) + 1, ids.size() - begin);
      expected += score_lm(model, std::span(ids).subspan(begin, count), {.segment = segment, .batch = 1});
    }
    EXPECT_EQ(expected.tokens, 99);
    expect_close(score_lm(model, ids, {.segment = segment, .batch = 4}), expected);
  }
}

TEST(ScoreLm, CarriedMemoryDoesNotDependOnTokensPerCall) {
  const auto ids = random_ids(150, 3);
  for (const char* estimator : {"rfa_gate", "hybrid:window=8", "window:window=8,before=1", "eva:window=8,chunk=4"}) {
    auto model = tiny_lm(estimator);
    const NllScore whole = score_lm(model, ids, {.segment = 149});
    for (const int64_t segment : {16, 37, 149}) {
      SCOPED_TRACE(testing::Message() << estimator << ", " << segment << " tokens per call");
      expect_close(score_lm(model, ids, {.segment = segment, .carried = true}), whole);
    }
  }
}

TEST(ScoreLm, SharesOfRanksAddUp) {
  auto model = tiny_lm("rfa_gate");
  const auto ids = random_ids(130, 4);
  NllScore sum;
  for (int64_t rank = 0; rank < 3; ++rank) sum += score_lm(model, ids, {.segment = 9, .rank = rank, .ranks = 3});
  expect_close(sum, score_lm(model, ids, {.segment = 9}));
}

TEST(ScoreLm, RefusesToCarryWhatGrowsOrNeverFades) {
  const auto ids = random_ids(20, 5);
  for (const char* estimator : {"softmax", "rfa", "ra"}) {
    auto model = tiny_lm(estimator);
    EXPECT_THROW(score_lm(model, ids, {.segment = 8, .carried = true}), InvalidArgument) << estimator;
  }
  ModelConfig learned = tiny(Task::lm, "rfa_gate");
  EXPECT_TRUE(can_carry(learned));
  learned.positions = Positions::learned;
  EXPECT_FALSE(can_carry(learned));
}

TEST(ScoreLm, LeavesTheModelInItsMode) {
  auto model = tiny_lm("rfa_gate");
  const auto ids = random_ids(20, 6);
  model.train();
  score_lm(model, ids, {});
  EXPECT_TRUE(model.is_training());
  EXPECT_TRUE(torch::GradMode::is_enabled());
}

TEST(TranslateGreedily, WhatElseIsInTheBatchChangesNothing) {
  torch::manual_seed(5);
  nn::TranslatorImpl model(tiny(Task::translate, "rfa_gate"));
  {
    // Far apart logits: no tie for rounding to decide.
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : model.parameters()) parameter.add_(0.3 * torch::randn_like(parameter));
  }
  std::vector<std::vector<int32_t>> sources;
  for (const size_t length : {3, 9, 0, 1, 6, 14}) sources.push_back(random_ids(length, static_cast<uint32_t>(length)));
  const auto together = translate_greedily(model, sources, {.batch = 6, .extra_length = 3});
  EXPECT_EQ(together, translate_greedily(model, sources, {.batch = 1, .extra_length = 3}));
  ASSERT_EQ(together.size(), sources.size());
  EXPECT_TRUE(together[2].empty());
  for (size_t i = 0; i < sources.size(); ++i) {
    EXPECT_LE(together[i].size(), 2 * sources[i].size() + 3);
    for (const int32_t id : together[i]) EXPECT_NE(id, Tokenizer::kEnd);
  }
}

TEST(ScoreLabels, CountsWhatIsLikeliest) {
  const LabelScore score = score_labels(torch::tensor({{2.0, 1.0}, {0.0, 3.0}, {1.0, 0.0}}), torch::tensor({0, 1, 1}));
  EXPECT_EQ(score.correct, 2);
  EXPECT_EQ(score.count, 3);
  EXPECT_NEAR(score.nll, std::log1p(std::exp(-1)) + std::log1p(std::exp(-3)) + std::log1p(std::exp(1)), 1e-6);
}

}  // namespace
}  // namespace raffia::internal::train
