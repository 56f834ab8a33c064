// Options of a training run: flags, TOML files, checkpoints.
#include <gtest/gtest.h>

#include <fstream>
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

}  // namespace
}  // namespace raffia::internal::train
