// The runtime against the trainer, for every task and estimator.
#include "golden.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "raffia/session.h"

namespace raffia::internal {
namespace {

constexpr float kTolerance = 1e-4F;      // of logits of order 1 to 10: fp32 sums in another order
constexpr float kFormTolerance = 1e-5F;  // between the forms of the runtime itself, relative to the largest logit

void expect_near(std::span<const float> found, std::span<const float> expected, float tolerance, const std::string& what) {
  ASSERT_GE(expected.size(), found.size()) << what;  // expected rows of padding follow
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], tolerance) << what << " at " << i;
  }
}

std::vector<float> logits_of_prefill(Session& session, std::span<const int32_t> ids) {
  std::vector<float> all;
  session.prefill(ids, [&](int64_t, std::span<const float> logits) { all.insert(all.end(), logits.begin(), logits.end()); });
  return all;
}

class GoldenLanguageModel : public testing::TestWithParam<std::string> {};

TEST_P(GoldenLanguageModel, LogitsAreThoseOfTheTrainer) {
  const auto model = golden_model(GetParam());
  const GoldenAnswer answer(GetParam());
  for (size_t row = 0; row < 2; ++row) {
    Session session(model);
    const std::vector<int32_t> ids = answer.ids("ids", row);
    ASSERT_FALSE(ids.empty());
    expect_near(logits_of_prefill(session, ids), answer.floats("logits", row), kTolerance, GetParam());
  }
}

TEST_P(GoldenLanguageModel, StepByStepAndInPartsEqualTheWhole) {
  const auto model = golden_model(GetParam());
  const std::vector<int32_t> ids = GoldenAnswer(GetParam()).ids("ids", 0);
  Session whole(model), steps(model), parts(model);
  const std::vector<float> expected = logits_of_prefill(whole, ids);
  float largest = 1;
  for (const float logit : expected) largest = std::max(largest, std::abs(logit));
  std::vector<float> found;
  for (const int32_t id : ids) {
    steps.step(id);
    found.insert(found.end(), steps.logits().begin(), steps.logits().end());
  }
  expect_near(found, expected, kFormTolerance * largest, GetParam() + " step by step");
  const size_t cut = ids.size() / 3;
  found = logits_of_prefill(parts, std::span(ids).first(cut));
  const std::vector<float> rest = logits_of_prefill(parts, std::span(ids).subspan(cut));
  found.insert(found.end(), rest.begin(), rest.end());
  expect_near(found, expected, kFormTolerance * largest, GetParam() + " in parts");
}

INSTANTIATE_TEST_SUITE_P(All, GoldenLanguageModel, testing::ValuesIn(golden_names({"lm-", "llama-"})), [](const auto& param) {
  std::string name = param.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST(GoldenTranslator, LogitsAreThoseOfTheTrainer) {
  const std::vector<std::string> names = golden_names({"translate-"});
  ASSERT_FALSE(names.empty());
  for (const std::string& name : names) {
    const auto model = golden_model(name);
    const GoldenAnswer answer(name);
    for (size_t row = 0; row < 2; ++row) {
      const std::vector<float> found = translation_logits(*model, answer.ids("source", row), answer.ids("target", row));
      expect_near(found, answer.floats("logits", row), kTolerance, name);
    }
  }
}

TEST(GoldenClassifier, ScoresAreThoseOfTheTrainer) {
  const std::vector<std::string> names = golden_names({"classify-", "pairs-", "image-"});
  ASSERT_FALSE(names.empty());
  for (const std::string& name : names) {
    const auto model = golden_model(name);
    const GoldenAnswer answer(name);
    for (size_t row = 0; row < 2; ++row) {
      std::vector<float> found;
      if (model->config().task == Task::image) {
        found = classify_image(*model, answer.floats("pixels", row));
      } else if (model->config().pairs) {
        found = classify_pair(*model, answer.ids("first", row), answer.ids("second", row));
      } else {
        found = classify(*model, answer.ids("ids", row));
      }
      const std::vector<float> expected = answer.floats("logits", row);
      ASSERT_EQ(found.size(), expected.size());
      expect_near(found, expected, kTolerance, name);
    }
  }
}

// As the modules do in evaluation. A model whose file does not say draws, as it did when it was written: see the test before.
TEST(GoldenClassifier, LaraReadsMeansWhereItsModelLeavesItOpen) {
  const GoldenAnswer answer("classify-lara");
  const std::filesystem::path directory = golden_directory() / "classify-lara";
  const auto scores = [&](std::optional<bool> mean) {
    ModelConfig config = load_model_config(directory / "config.json");
    config.estimators[0].mean = mean;
    const auto model = Model::over(config, bytes_of(directory / "model.safetensors"), nullptr, "classify-lara");
    return classify(*model, answer.ids("ids", 0));
  };
  EXPECT_EQ(scores(std::nullopt), scores(true));
  EXPECT_NE(scores(std::nullopt), scores(false));
}

}  // namespace
}  // namespace raffia::internal
