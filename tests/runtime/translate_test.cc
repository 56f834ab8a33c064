#include <gtest/gtest.h>

#include <cmath>

#include "golden.h"
#include "raffia/error.h"
#include "raffia/tokenizer.h"

namespace raffia::internal {
namespace {

// Log probability of a translation and its end, by one pass over all of it.
double log_probability_of(const Model& model, std::span<const int32_t> source, const std::vector<int32_t>& ids, bool with_end) {
  std::vector<int32_t> target = {Tokenizer::kBegin};
  target.insert(target.end(), ids.begin(), ids.end());
  std::vector<int32_t> expected = ids;
  expected.push_back(Tokenizer::kEnd);
  const std::vector<float> logits = translation_logits(model, source, target);
  const auto vocabulary = static_cast<size_t>(model.config().vocabulary);
  double sum = 0;
  for (size_t t = 0; t < expected.size() - (with_end ? 0 : 1); ++t) {
    const std::span<const float> row = std::span(logits).subspan(t * vocabulary, vocabulary);
    double total = 0;
    for (const float logit : row) total += std::exp(static_cast<double>(logit));
    sum += row[static_cast<size_t>(expected[t])] - std::log(total);
  }
  return sum;
}

// Golden models whose cross attention reads each token alone; LARA's proposals depend on the queries that are read together.
const std::vector<std::string> kNames = {"translate-softmax", "translate-gate"};

TEST(Translate, LogProbabilitiesAreThoseOfOnePassOverTheTranslation) {
  for (const std::string& name : kNames) {
    const auto model = golden_model(name);
    const std::vector<int32_t> source = GoldenAnswer(name).ids("source", 0);
    for (const int64_t beam : {1, 3}) {
      const TranslateOptions options{.beam = beam, .max_tokens = 12};
      const std::vector<Translation> found = translate(*model, source, options);
      ASSERT_FALSE(found.empty());
      EXPECT_LE(found.size(), static_cast<size_t>(beam));
      for (const Translation& one : found) {
        const bool ended = one.ids.size() < 12;
        const double expected = log_probability_of(*model, source, one.ids, ended);
        EXPECT_NEAR(one.log_probability, expected, 1e-4 * static_cast<double>(one.ids.size() + 1)) << name;
      }
      EXPECT_TRUE(std::ranges::is_sorted(found, std::ranges::greater{}, &Translation::score));
    }
  }
}

TEST(Translate, GreedyTakesTheLikeliestTokenEachTime) {
  for (const std::string& name : kNames) {
    const auto model = golden_model(name);
    const std::vector<int32_t> source = GoldenAnswer(name).ids("source", 1);
    const std::vector<Translation> found = translate(*model, source, {.beam = 1, .max_tokens = 10});
    std::vector<int32_t> expected, target = {Tokenizer::kBegin};
    while (expected.size() < 10) {
      const std::vector<float> logits = translation_logits(*model, source, target);
      const auto row = logits.end() - model->config().vocabulary;
      const auto id = static_cast<int32_t>(std::max_element(row, logits.end()) - row);
      if (id == Tokenizer::kEnd) break;
      expected.push_back(id);
      target.push_back(id);
    }
    EXPECT_EQ(found.at(0).ids, expected) << name;
  }
}

TEST(Translate, ExhaustiveBeamFindsTheBest) {
  // As many hypotheses as there are translations of up to two tokens: nothing is lost.
  const auto model = golden_model("translate-gate");
  const std::vector<int32_t> source = GoldenAnswer("translate-gate").ids("source", 0);
  const auto vocabulary = static_cast<int32_t>(model->config().vocabulary);
  const std::vector<Translation> found =
      translate(*model, source, {.beam = vocabulary * 2, .max_tokens = 2, .length_penalty = 0});
  double best = log_probability_of(*model, source, {}, true);
  for (int32_t a = 0; a < vocabulary; ++a) {
    if (a != Tokenizer::kEnd) best = std::max(best, log_probability_of(*model, source, {a}, true));
  }
  EXPECT_NEAR(found.at(0).log_probability, best, 1e-4);
}

TEST(Translate, ThreadsChangeNoBit) {
  const auto pool = make_thread_pool(3);
  for (const std::string& name : golden_names({"translate-"})) {
    const auto model = golden_model(name);
    const std::vector<int32_t> source = GoldenAnswer(name).ids("source", 0);
    const auto run = [&](const RunOptions& options) {
      const std::vector<Translation> found = translate(*model, source, {.beam = 4, .max_tokens = 8, .run = options});
      std::vector<std::pair<std::vector<int32_t>, double>> all;
      for (const Translation& one : found) all.emplace_back(one.ids, one.log_probability);
      return all;
    };
    EXPECT_EQ(run({.threads = 1}), run({.threads = 3, .executor = pool.get()})) << name;
  }
}

TEST(Translate, BadCallsAreRefused) {
  const auto model = golden_model("translate-gate");
  EXPECT_THROW(translate(*model, std::vector<int32_t>{1, -1}), InvalidArgument);
  EXPECT_THROW(translate(*model, std::vector<int32_t>{5}, {.beam = 0}), InvalidArgument);
  EXPECT_THROW(translate(*golden_model("lm-gate"), std::vector<int32_t>{5}), InvalidArgument);
  EXPECT_TRUE(translate(*model, {}).at(0).ids.empty());
}

}  // namespace
}  // namespace raffia::internal
