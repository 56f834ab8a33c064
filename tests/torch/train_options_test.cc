// Options of a training run: flags, TOML files, checkpoints.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "raffia/error.h"
#include "support/refusal.h"
#include "support/temporary_directory.h"
#include "torch/train/optimiser.h"
#include "torch/train/options.h"
#include "torch/train/trainer.h"

namespace raffia::internal::train {
namespace {

class TrainOptionsFile : public testing::Test {
 protected:
  std::string write(const std::string& text) const {
    std::ofstream(path()) << text;
    return path();
  }
  std::string path() const { return (directory_.path() / "run.toml").string(); }

  template <typename Expected = InvalidArgument>
  void expect_refused(const std::string& text, const std::string& message) const {
    TrainOptions options;
    try {
      read_toml(options, write(text));
      FAIL() << text << " was accepted";
    } catch (const Expected& error) {
      EXPECT_EQ(std::string(error.what()).find(path() + message), 0) << error.what();
    }
  }

  TemporaryDirectory directory_{"raffia_train"};
};

TEST_F(TrainOptionsFile, SetsWhatItNamesAndLeavesTheRest) {
  TrainOptions options;
  read_toml(options,
            write("lr = 1e-3\nestimator = 'hybrid:window=16'\n[model]\nlayers = 7\nhead_norm = true\nlabel-smoothing = 0\n"));
  EXPECT_EQ(options.lr, 1e-3);
  EXPECT_EQ(options.estimator, "hybrid:window=16");
  EXPECT_EQ(options.layers, 7);
  EXPECT_TRUE(options.head_norm);
  EXPECT_EQ(options.width, TrainOptions().width);
}

TEST_F(TrainOptionsFile, ErrorsNameFileLineAndKey) {
  expect_refused("layers = 2\n\nlayerz = 3\n", ":3: 'layerz' is not an option of raffia train lm");
  expect_refused("layers = 'two'\n", ":1: layers: 'two' is not an integer");
  expect_refused("layers = 0\n", ":1: layers: 0 is out of range, expected 1 to 1000");
  expect_refused("layers = 2.5\n", ":1: layers: '2.5' is not an integer");
  expect_refused("head-norm = 1\n", ":1: head-norm: '1' is not true or false");
  expect_refused("estimator = ['rfa', 'softmax']\n", ":1: estimator: is an array or a date");
  expect_refused("source = 'en'\n", ":1: 'source' is not an option");  // of another task
  expect_refused<FormatError>("layers = 2\nlayers = 3\n", ":2: ");
  expect_refused<FormatError>("layers 2\n", ":1: ");
}

TEST_F(TrainOptionsFile, MissingFileIsNamed) {
  TrainOptions options;
  EXPECT_THROW(read_toml(options, path() + ".none"), IoError);
}

TEST(TrainOptions, JsonRoundTripKeepsEveryValue) {
  TrainOptions options;
  for (const OptionInfo& info : option_table()) {
    // Something else than the default.
    std::visit(
        [&](auto field) {
          using Value = std::remove_reference_t<decltype(options.*field)>;
          if constexpr (std::is_same_v<Value, std::string>) {
            options.*field += "x";
          } else if constexpr (std::is_same_v<Value, bool>) {
            options.*field = true;
          } else if constexpr (std::is_same_v<Value, double>) {
            options.*field = info.min + (info.max - info.min) / 3;
          } else {
            options.*field += 1;
          }
        },
        info.field);
  }
  TrainOptions copy;
  read_json(copy, nlohmann::ordered_json::parse(to_json(options).dump()), "here");
  EXPECT_EQ(to_json(copy), to_json(options));
  EXPECT_NE(to_json(copy), to_json(TrainOptions()));
}

TEST(TrainOptions, DeeplyNestedJsonOfARunIsRefused) {
  const TemporaryDirectory directory("raffia_train_nested");
  std::filesystem::create_directories(directory.path() / "trainer");
  directory.write("trainer/options.json",
                  "{\"task\": \"lm\", \"lr\": " + std::string(200'000, '[') + std::string(200'000, ']') + "}");
  Observer observer;
  try {
    (void)resolve_options({Task::lm}, "", {{"out", directory.path().string()}}, true, observer);
    FAIL() << "accepted";
  } catch (const FormatError& error) {
    EXPECT_NE(std::string(error.what()).find("options.json: nested deeper than 64 levels"), std::string::npos) << error.what();
  }
}

TEST(TrainOptions, JsonErrorsNameTheField) {
  TrainOptions options;
  EXPECT_THROW(read_json(options, {{"frobnicate", 1}}, "here"), FormatError);
  const auto said = [&](const nlohmann::ordered_json& json) {
    return refusal<FormatError>([&] { read_json(options, json, "here"); });
  };
  EXPECT_EQ(said({{"layers", "two"}}), "here: option \"layers\" is \"two\", expected an integer");
  EXPECT_EQ(said({{"lr", nullptr}}), "here: option \"lr\" is null, expected a number");
  EXPECT_EQ(said({{"untied", 1}}), "here: option \"untied\" is 1, expected true or false");
  EXPECT_EQ(said({{"data", 1}}), "here: option \"data\" is 1, expected a string");
  EXPECT_THROW(read_json(options, {{"task", "image"}}, "here"), FormatError);
}

TEST(LearningRate, GrowsThenFallsToItsShare) {
  const TrainOptions options{.lr = 1, .warmup = 0.1, .final_lr = 0.05};
  EXPECT_DOUBLE_EQ(learning_rate(options, 0, 100), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(options, 9, 100), 1);
  EXPECT_DOUBLE_EQ(learning_rate(options, 10, 100), 1);
  EXPECT_NEAR(learning_rate(options, 55, 100), (1 + 0.05) / 2, 1e-12);  // the middle of the cosine
  EXPECT_NEAR(learning_rate(options, 100, 100), 0.05, 1e-12);
  for (int64_t step = 11; step < 100; ++step) EXPECT_LT(learning_rate(options, step, 100), learning_rate(options, step - 1, 100));
}

TEST(LearningRate, IsLowerForWideModels) {
  EXPECT_DOUBLE_EQ(highest_learning_rate({.width = 64}), 3e-3);
  EXPECT_DOUBLE_EQ(highest_learning_rate({.width = 512}), 3e-3 / 4);
  EXPECT_DOUBLE_EQ(highest_learning_rate({.width = 512, .lr = 1e-2}), 1e-2);
}

TEST(WeightDecay, SparesNormsBiasesGatesAndScales) {
  const at::Tensor matrix = at::zeros({2, 2}), vector = at::zeros({2});
  EXPECT_TRUE(decays("decoder.layers.0.attention.q_proj.weight", matrix));
  EXPECT_TRUE(decays("embedding.weight", matrix));
  EXPECT_FALSE(decays("decoder.layers.0.attention.q_proj.bias", vector));
  EXPECT_FALSE(decays("decoder.layers.0.attention.gate.weight", matrix));
  EXPECT_FALSE(decays("decoder.layers.0.attention.sigma", matrix));
  EXPECT_FALSE(decays("decoder.layers.0.attention.head_norm", matrix));
}

// A model with parameters of all sorts, and the gradients of one step.
ModelConfig small_model() {
  return {.task = Task::lm, .vocabulary = 37, .width = 12, .heads = 2, .layers = 2, .estimators = {parse_estimator("rfa_gate")}};
}

void set_gradients(nn::ModelImpl& model, int64_t step) {
  torch::manual_seed(100 + static_cast<uint64_t>(step));
  for (const auto& item : model.named_parameters()) {
    // One has a gradient in the first step alone: its means go on.
    const bool has_one = step == 0 || item.key().find("ffn_up.bias") == std::string::npos;
    item.value().mutable_grad() = has_one ? torch::randn(item.value().sizes()) * 3 : at::Tensor();
  }
}

double largest_difference(const nn::ModelImpl& a, const nn::ModelImpl& b) {
  double largest = 0;
  const auto others = b.named_parameters();
  for (const auto& item : a.named_parameters()) {
    largest = std::max(largest, (item.value() - others[item.key()]).abs().max().item<double>());
  }
  return largest;
}

// With clipping at 5, under the norm of these gradients.
TEST(Optimiser, StepsAsTorchDoes) {
  const TrainOptions options{.weight_decay = 0.1, .clip = 5};
  torch::manual_seed(1);
  nn::LanguageModelImpl ours(small_model());
  torch::manual_seed(1);
  nn::LanguageModelImpl theirs(small_model());
  ASSERT_EQ(largest_difference(ours, theirs), 0);
  Optimiser optimiser(ours, options);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const bool decaying : {true, false}) {
    auto settings = torch::optim::AdamWOptions(1e-2).betas({options.beta1, options.beta2}).weight_decay(decaying ? 0.1 : 0.0);
    std::vector<at::Tensor> parameters;
    for (const auto& item : theirs.named_parameters()) {
      if (decays(item.key(), item.value()) == decaying) parameters.push_back(item.value());
    }
    groups.emplace_back(parameters, std::make_unique<torch::optim::AdamWOptions>(settings));
  }
  torch::optim::AdamW adamw(groups, torch::optim::AdamWOptions(1e-2));
  for (int64_t step = 0; step < 5; ++step) {
    set_gradients(ours, step);
    set_gradients(theirs, step);
    double squares = 0;
    for (at::Tensor& parameter : theirs.parameters()) {
      if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
      squares += parameter.grad().to(at::kDouble).square().sum().item<double>();
    }
    const double norm = 0.5 * std::sqrt(squares);
    ASSERT_GT(norm, options.clip);
    for (at::Tensor& parameter : theirs.parameters()) parameter.mutable_grad().mul_(0.5 * options.clip / norm);
    adamw.step();
    EXPECT_NEAR(optimiser.step(1e-2, 0.5), norm, 1e-5 * norm);
    // A step moves a parameter by about the rate; its quotient is good to 20 roundings, and a parameter under 1 to one.
    EXPECT_LE(largest_difference(ours, theirs), static_cast<double>(step + 1) * (20 * 1e-2 + 2) * 0x1p-24) << "step " << step;
    for (const at::Tensor& parameter : ours.parameters()) EXPECT_FALSE(parameter.grad().defined());
  }
}

TEST(Optimiser, GoesOnFromItsStateBitForBit) {
  torch::manual_seed(1);
  nn::LanguageModelImpl whole(small_model());
  Optimiser optimiser(whole, {});
  for (int64_t step = 0; step < 2; ++step) {
    set_gradients(whole, step);
    optimiser.step(1e-2, 1);
  }
  nn::LanguageModelImpl resumed(small_model());
  {
    const at::NoGradGuard no_grad;
    const auto from = whole.named_parameters();
    for (const auto& item : resumed.named_parameters()) at::Tensor(item.value()).copy_(from[item.key()]);
  }
  NamedTensors state = optimiser.state();
  for (auto& [name, tensor] : state) tensor = tensor.clone();
  Optimiser other(resumed, {});
  other.set_state(state, "test");
  for (int64_t step = 2; step < 4; ++step) {
    for (auto& [model, with] : {std::pair(&whole, &optimiser), std::pair(&resumed, &other)}) {
      set_gradients(*model, step);
      with->step(1e-2, 1);
    }
  }
  EXPECT_EQ(largest_difference(whole, resumed), 0);
}

TEST(Optimiser, ChangesNothingWithoutAFiniteNorm) {
  torch::manual_seed(1);
  nn::LanguageModelImpl model(small_model());
  torch::manual_seed(1);
  const nn::LanguageModelImpl before(small_model());
  Optimiser optimiser(model, {});
  set_gradients(model, 0);
  model.parameters().front().mutable_grad().fill_(std::numeric_limits<float>::infinity());
  EXPECT_FALSE(std::isfinite(optimiser.step(1e-2, 1)));
  EXPECT_EQ(largest_difference(model, before), 0);
  EXPECT_TRUE(optimiser.state().empty());
}

}  // namespace
}  // namespace raffia::internal::train
