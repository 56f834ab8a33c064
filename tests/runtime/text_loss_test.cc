// The loss of a text, against steps of a session.
#include "runtime/text_loss.h"

#include <gtest/gtest.h>

#include "raffia/error.h"
#include "raffia/session.h"
#include "runtime/random_weights.h"
#include "support/refusal.h"

namespace raffia::internal {
namespace {

std::shared_ptr<const Model> made() {
  const ModelConfig config{.vocabulary = 40, .width = 32, .heads = 2, .layers = 2, .estimators = {parse_estimator("rfa_gate")}};
  return Model::over(config, runtime::random_weights(config, WeightType::int8, 3), nullptr, "random");
}

TEST(LossOfText, IsThatOfStepsInSegmentsOfNewSessions) {
  const auto model = made();
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 300; ++i) ids.push_back((7 * i + i * i / 5) % static_cast<int32_t>(model->config().vocabulary));
  double nats = 0;
  int64_t tokens = 0;
  for (size_t first = 0; first < ids.size(); first += 256) {
    Session session(model);
    for (size_t i = first; i + 1 < std::min(ids.size(), first + 256); ++i, ++tokens) {
      session.step(ids[i]);
      nats -= session.log_probability(ids[i + 1]);
    }
  }
  const runtime::TextLoss loss = runtime::loss_of_text(model, ids);
  EXPECT_EQ(loss.tokens, tokens);
  EXPECT_NEAR(loss.nats, nats / static_cast<double>(tokens), 1e-4);  // prefill and steps agree up to rounding
}

TEST(LossOfText, NeedsATokenToPredict) {
  const auto model = made();
  EXPECT_EQ(refusal<InvalidArgument>([&] { (void)runtime::loss_of_text(model, std::vector<int32_t>{1}); }),
            "loss_of_text: 1 tokens, expected at least 2");
}

}  // namespace
}  // namespace raffia::internal
