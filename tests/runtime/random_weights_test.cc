// The tensors that a configuration asks for, and models made of nothing else.
#include "runtime/random_weights.h"

#include <gtest/gtest.h>

#include <cmath>

#include "golden.h"
#include "raffia/session.h"
#include "runtime/session_at_depth.h"

namespace raffia::internal {
namespace {

using runtime::random_weights;

TEST(RandomWeights, AnyTypeMakesAModelThatRuns) {
  const ModelConfig config{.vocabulary = 40, .width = 32, .heads = 2, .layers = 2, .estimators = {parse_estimator("rfa_gate")}};
  for (const auto& [name, type] : kWeightTypes) {
    const auto model = Model::over(config, random_weights(config, type, 3), nullptr, "random");
    EXPECT_EQ(model->weight_type(), name);
    Session session(model);
    session.prefill(std::vector<int32_t>{1, 2, 3, 4, 5});
    for (const float logit : session.logits()) EXPECT_TRUE(std::isfinite(logit));
  }
}

TEST(SessionAtDepth, HasTheSizeOfOneThatReadThatFar) {
  for (const std::string estimator : {"rfa_gate", "softmax", "hybrid", "window", "eva:samples=16", "lara:samples=16", "mean"}) {
    const ModelConfig config{.vocabulary = 40, .width = 32, .heads = 2, .layers = 2, .estimators = {parse_estimator(estimator)}};
    const auto model = Model::over(config, random_weights(config, WeightType::f32, 3), nullptr, "random");
    for (const int64_t depth : {0, 31, 700, 5000}) {
      Session deep = runtime::session_at_depth(model, depth, {.snapshot_every = 1000, .snapshots = 1});
      Session read(model);
      std::vector<int32_t> ids(static_cast<size_t>(depth), 7);
      read.prefill(ids);
      EXPECT_EQ(deep.position(), depth) << estimator;
      EXPECT_EQ(deep.state_bytes(), read.state_bytes()) << estimator << " at " << depth;
      deep.step(1);
      deep.step(2);
      deep.rollback(2);
      EXPECT_EQ(deep.position(), depth) << estimator;
      EXPECT_EQ(deep.state_bytes(), read.state_bytes()) << estimator << " at " << depth;
    }
  }
}

}  // namespace
}  // namespace raffia::internal
