#include "runtime/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "raffia/error.h"

namespace raffia::internal {
namespace {

using runtime::choose;

const std::vector<float> kLogits = {1.0F, 3.0F, 2.0F, 3.0F, -1.0F};

std::map<int32_t, double> frequencies(const SamplingOptions& options, std::span<const int32_t> recent = {}, int draws = 40000) {
  std::map<int32_t, double> found;
  for (int i = 0; i < draws; ++i) found[choose(kLogits, recent, options, static_cast<uint64_t>(i))] += 1.0 / draws;
  return found;
}

// Probabilities of a softmax over these ids of kLogits.
std::map<int32_t, double> softmax_of(const std::vector<int32_t>& ids, double temperature = 1) {
  std::map<int32_t, double> weights;
  double total = 0;
  for (const int32_t id : ids) total += weights[id] = std::exp(kLogits[static_cast<size_t>(id)] / temperature);
  for (auto& [id, weight] : weights) weight /= total;
  return weights;
}

void expect_close(const std::map<int32_t, double>& found, const std::map<int32_t, double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  // Five standard deviations of a frequency of 40,000 draws.
  for (const auto& [id, probability] : expected) {
    ASSERT_TRUE(found.contains(id)) << id;
    EXPECT_NEAR(found.at(id), probability, 5 * std::sqrt(probability * (1 - probability) / 40000) + 1e-9) << id;
  }
}

TEST(Sampler, GreedyTakesTheLikeliestAndTheLowestOfEquals) { EXPECT_EQ(choose(kLogits, {}, {.temperature = 0}, 0), 1); }

TEST(Sampler, DrawsFromTheDistributionAtItsTemperature) {
  expect_close(frequencies({}), softmax_of({0, 1, 2, 3, 4}));
  expect_close(frequencies({.temperature = 2.5}), softmax_of({0, 1, 2, 3, 4}, 2.5));
}

TEST(Sampler, CutsToTheLikeliest) {
  expect_close(frequencies({.top_k = 3}), softmax_of({1, 3, 2}));
  expect_close(frequencies({.top_k = 1}), {{1, 1.0}});
  // Probabilities .41, .41, .15, .06, .01: two are below .8, three are above.
  expect_close(frequencies({.top_p = 0.7}), softmax_of({1, 3}));
  expect_close(frequencies({.top_p = 0.9}), softmax_of({1, 3, 2}));
  // exp(-1) = .37 of the likeliest for id 2, exp(-2) = .14 for id 0.
  expect_close(frequencies({.min_p = 0.3}), softmax_of({1, 2, 3}));
  expect_close(frequencies({.top_k = 4, .min_p = 0.1}), softmax_of({0, 1, 2, 3}));
}

TEST(Sampler, RepetitionCountsOnceAndForBothSigns) {
  const std::vector<int32_t> recent = {1, 1, 1, 3, 4};
  EXPECT_EQ(choose(kLogits, recent, {.repetition_penalty = 2, .temperature = 0}, 0), 2);  // 1.5, 2.0, 1.5
  const std::vector<float> negative = {-1.0F, -1.1F};
  EXPECT_EQ(choose(negative, std::vector<int32_t>{0}, {.repetition_penalty = 1.2, .temperature = 0}, 0), 1);
}

TEST(Sampler, DrawsDependOnSeedAndNumberAlone) {
  const auto sequence = [](uint64_t seed, uint64_t first) {
    std::vector<int32_t> ids;
    for (uint64_t i = 0; i < 200; ++i) ids.push_back(choose(kLogits, {}, {.seed = seed}, first + i));
    return ids;
  };
  EXPECT_EQ(sequence(1, 0), sequence(1, 0));
  EXPECT_NE(sequence(1, 0), sequence(2, 0));
  EXPECT_NE(sequence(1, 0), sequence(1, 200));
}

TEST(Sampler, LogitsThatAreNoNumbersAreNoChoice) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    EXPECT_THROW((void)choose(std::vector<float>{1, bad, 2}, {}, {.temperature = 0}, 0), Error);
    EXPECT_THROW((void)choose(std::vector<float>{1, bad, 2}, {}, {.top_k = 2}, 0), Error);
  }
}

TEST(Sampler, TheLargestHaveAnOrderWhateverTheLogitsAre) {
  const std::vector<float> logits = {NAN, 1, INFINITY, NAN, -INFINITY, 1, NAN};
  EXPECT_EQ(runtime::largest(logits, 7), (std::vector<int32_t>{2, 1, 5, 4, 0, 3, 6}));
  EXPECT_EQ(runtime::largest(logits, 3), (std::vector<int32_t>{2, 1, 5}));
  EXPECT_THROW((void)runtime::log_sum(logits), Error);
}

TEST(Sampler, OptionsOutOfRangeAreRefused) {
  EXPECT_NO_THROW(SamplingOptions().check("test"));
  for (const SamplingOptions& bad :
       {SamplingOptions{.repetition_penalty = 0}, SamplingOptions{.repetition_window = -1}, SamplingOptions{.temperature = -1},
        SamplingOptions{.temperature = NAN}, SamplingOptions{.top_k = -1}, SamplingOptions{.top_p = 0},
        SamplingOptions{.top_p = 1.1}, SamplingOptions{.min_p = 2}}) {
    EXPECT_THROW(bad.check("test"), InvalidArgument);
  }
}

}  // namespace
}  // namespace raffia::internal
