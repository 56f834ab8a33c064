// The description of a model is that of the files and of the runtime.
#include "model/plan.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "golden.h"
#include "raffia/error.h"
#include "runtime/random_weights.h"
#include "support/refusal.h"

namespace raffia::internal {
namespace {

const std::vector<std::string> kAllTasks = {"lm-", "llama-", "translate-", "classify-", "pairs-", "image-"};

TEST(TensorsOfAModel, AreThoseThatTheTrainerWrites) {
  for (const std::filesystem::path& place : {golden_directory(), golden_directory().parent_path() / "compat" / "0.1"}) {
    for (const std::string& name : golden_names(kAllTasks)) {
      std::map<std::string, std::vector<int64_t>> listed, stored;
      for (const TensorPlan& tensor : plan_of(load_model_config(place / name / "config.json")).tensors) {
        EXPECT_TRUE(listed.emplace(tensor.name, tensor.shape).second) << name << ": " << tensor.name << " is there twice";
      }
      const Safetensors file = Safetensors::open(place / name / "model.safetensors");
      for (const Safetensors::Tensor& tensor : file.tensors()) stored[tensor.name] = tensor.shape;
      EXPECT_EQ(listed, stored) << place << name;
    }
  }
}

// The runtime takes exactly the tensors of the plan: it refuses a model in which one is missing, too many, or not read.
TEST(TensorsOfAModel, AreThoseThatTheRuntimeReads) {
  for (const std::string& name : golden_names(kAllTasks)) {
    const ModelConfig config = load_model_config(golden_directory() / name / "config.json");
    const auto model = Model::over(config, runtime::random_weights(config, WeightType::int8, 3), nullptr, name);
    EXPECT_EQ(model->parameters(), plan_of(config).parameters()) << name;
  }
}

ModelConfig translator() {
  return {.task = Task::translate,
          .vocabulary = 16,
          .width = 16,
          .heads = 4,
          .kv_heads = 2,
          .layers = 2,
          .estimators = {parse_estimator("rfa_gate:samples=8"), parse_estimator("rfa:samples=8,seed=9")},
          .cross = parse_estimator("rfa:samples=8"),
          .positions = Positions::rotary,
          .conv = 3,
          .seed = 7};
}

TEST(PlanOfATranslator, NumbersTheEncoderThenSelfAndCrossAttentionInTurn) {
  const ModelPlan plan = plan_of(translator());
  std::vector<std::pair<uint32_t, uint64_t>> streams;
  for (const LayerPlan& layer : plan.encoder->layers) {
    EXPECT_FALSE(layer.cross);
    streams.emplace_back(layer.attention.estimator.layer, layer.attention.estimator.seed);
  }
  for (const LayerPlan& layer : plan.decoder->layers) {
    streams.emplace_back(layer.attention.estimator.layer, layer.attention.estimator.seed);
    streams.emplace_back(layer.cross->estimator.layer, layer.cross->estimator.seed);
  }
  EXPECT_EQ(streams, (std::vector<std::pair<uint32_t, uint64_t>>{{0, 7}, {1, 9}, {2, 7}, {3, 7}, {4, 9}, {5, 7}}));
}

TEST(PlanOfATranslator, OnlyTheDecoderIsCausalAndCrossAttentionHasNoPositions) {
  const ModelPlan plan = plan_of(translator());
  const LayerPlan &reads = plan.encoder->layers[0], &writes = plan.decoder->layers[0];
  EXPECT_EQ(reads.attention.estimator.kind, EstimatorKind::rfa);
  EXPECT_FALSE(reads.attention.causal);
  EXPECT_TRUE(reads.attention.rotary);
  EXPECT_FALSE(reads.attention.gate);
  EXPECT_FALSE(reads.attention.conv_q);
  EXPECT_EQ(writes.attention.estimator.kind, EstimatorKind::rfa_gate);
  EXPECT_TRUE(writes.attention.causal);
  EXPECT_TRUE(writes.attention.gate);
  EXPECT_EQ(writes.attention.conv_k->shape, (std::vector<int64_t>{8, 3}));
  EXPECT_FALSE(writes.cross->causal);
  EXPECT_FALSE(writes.cross->rotary);
  EXPECT_FALSE(writes.cross->conv_q);
}

TEST(PlanOfAModel, SaysWhatMayBeStoredInFewerBytes) {
  ModelConfig config = translator();
  config.positions = Positions::learned;
  config.max_length = 5;
  const ModelPlan plan = plan_of(config);
  for (const char* name : {"embedding.weight", "decoder.layers.0.attention.gate.weight", "encoder.layers.1.ffn_up.weight"}) {
    EXPECT_TRUE(plan.find(name)->is_matrix()) << name;
  }
  for (const char* name : {"encoder.positions.weight", "decoder.norm.weight", "decoder.layers.0.attention.map.draws",
                           "decoder.layers.0.attention.conv_q", "decoder.layers.0.attention.q_proj.bias"}) {
    EXPECT_FALSE(plan.find(name)->is_matrix()) << name;
  }
  EXPECT_FALSE(plan.find("decoder.layers.0.attention.map.draws")->is_trained());
  EXPECT_TRUE(plan.find("embedding.weight")->is_vocabulary());
  EXPECT_FALSE(plan.find("encoder.layers.1.ffn_up.weight")->is_vocabulary());
  config.tied = false;
  EXPECT_TRUE(plan_of(config).find("output.weight")->is_vocabulary());
}

TEST(PlannedWeights, AreRefusedIfTheFileHasOthers) {
  const std::filesystem::path weights = golden_directory() / "lm-gate" / "model.safetensors";
  const Safetensors file = Safetensors::open(weights);
  ModelConfig config = load_model_config(golden_directory() / "lm-gate" / "config.json");
  EXPECT_EQ(planned_weights(file, plan_of(config), "file").size(), plan_of(config).tensors.size());
  const auto said = [&] { return refusal<FormatError>([&] { (void)planned_weights(file, plan_of(config), "file"); }); };
  config.tied = false;
  EXPECT_EQ(said(), "file: tensor \"output.weight\" is missing");
  config.tied = true;
  config.conv = 0;
  EXPECT_NE(said().find("is not part of the model"), std::string::npos);
  config.conv = 4;
  EXPECT_NE(said().find("has shape [16, 3], expected [16, 4]"), std::string::npos);
}

}  // namespace
}  // namespace raffia::internal
