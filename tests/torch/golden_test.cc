// The golden models still mean to the trainer what they meant when they were written.
#include "torch/golden.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "model/plan.h"
#include "raffia/model_config.h"
#include "support/paths.h"

namespace raffia::nn {

using namespace internal;
using namespace internal::nn;
namespace {

TEST(GoldenModels, HaveTheLogitsThatAreStored) {
  for (const GoldenCase& golden : golden_cases()) {
    SCOPED_TRACE(golden.name);
    const std::filesystem::path directory = golden_directory() / golden.name;
    const ModelConfig config = load_model_config(directory / "config.json");
    EXPECT_EQ(config, golden.config);
    const auto model = make_model(config);
    load_weights(*model, directory / "model.safetensors");
    model->eval();
    NamedTensors expected = load_tensors(directory / "expected.safetensors");
    const auto logits = std::find_if(expected.begin(), expected.end(), [](const auto& one) { return one.first == "logits"; });
    ASSERT_NE(logits, expected.end());
    // Twice the rounding that the program which writes them allows: two instruction sets may err both ways.
    EXPECT_LE((golden_logits(*model, expected) - logits->second).abs().max().item<double>(), 2e-5);
  }
}

TEST(GoldenModels, DoNotDependOnPaddingNorOnTheBatch) {
  for (const GoldenCase& golden : golden_cases()) {
    SCOPED_TRACE(golden.name);
    const std::filesystem::path directory = golden_directory() / golden.name;
    const auto model = make_model(golden.config);
    load_weights(*model, directory / "model.safetensors");
    model->eval();
    const NamedTensors all = load_tensors(directory / "expected.safetensors");
    for (int64_t row = 0; row < 2; ++row) {
      NamedTensors one;
      Tensor logits;
      for (const auto& [name, tensor] : all) {
        Tensor own = tensor.narrow(0, row, 1);
        if (name == "logits") logits = own;
        if (own.scalar_type() == at::kLong) own = own.narrow(1, 0, own.ne(0).sum().item<int64_t>());
        one.emplace_back(name, own);
      }
      EXPECT_LE((golden_logits(*model, one) - logits).abs().max().item<double>(), 2e-5) << "text " << row;
    }
  }
}

// The modules are those of the plan: the same names and shapes, trained or stored.
TEST(ModulesOfAModel, HaveTheTensorsOfItsPlan) {
  using Shapes = std::map<std::string, std::vector<int64_t>>;
  for (const std::string place : {"golden", "compat/0.1"}) {
    for (const GoldenCase& golden : golden_cases()) {
      SCOPED_TRACE(place + "/" + golden.name);
      const ModelConfig config = load_model_config(golden_directory().parent_path() / place / golden.name / "config.json");
      Shapes trained, stored, parameters, buffers;
      for (const TensorPlan& tensor : plan_of(config).tensors) {
        (tensor.is_trained() ? trained : stored)[tensor.name] = tensor.shape;
      }
      const auto model = make_model(config);
      for (const auto& item : model->named_parameters()) parameters[item.key()] = item.value().sizes().vec();
      for (const auto& item : model->named_buffers()) buffers[item.key()] = item.value().sizes().vec();
      EXPECT_EQ(parameters, trained);
      EXPECT_EQ(buffers, stored);
    }
  }
}

}  // namespace
}  // namespace raffia::nn
