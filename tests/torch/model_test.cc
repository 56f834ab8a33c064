// Models: states, causality, padding, positions, weights in files.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/formats/safetensors.h"
#include "raffia/error.h"
#include "raffia/tokenizer.h"
#include "support/refusal.h"
#include "torch/libtorch.h"
#include "torch/nn/models.h"
#include "torch/nn_case.h"
#include "torch/weights_case.h"

namespace raffia::nn {

using namespace internal;
using namespace internal::nn;
namespace {

constexpr int64_t kVocabulary = 24;

ModelConfig config_of(Task task, const std::string& estimator, Positions positions = Positions::rotary) {
  ModelConfig config{.task = task, .vocabulary = kVocabulary, .width = 16, .heads = 2, .layers = 2};
  config.estimators = {parse_estimator(estimator)};
  config.positions = positions;
  config.max_length = positions == Positions::learned ? 20 : 0;
  config.conv = 3;
  config.head_norm = true;
  if (task == Task::classify || task == Task::image) config.classes = 3;
  if (task == Task::image) {
    config.vocabulary = 0;
    config.image_size = 8;
    config.channels = 2;
    config.patch = 4;
  }
  return config;
}

template <typename Model>
std::shared_ptr<Model> make(const ModelConfig& config) {
  torch::manual_seed(11);
  auto model = std::dynamic_pointer_cast<Model>(make_model(config));
  disturb(*model, 0.1);
  model->eval();
  return model;
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

class TemporaryFile {
 public:
  TemporaryFile()
      : path_(std::filesystem::temp_directory_path() / ("raffia-model-test-" + std::to_string(getpid()) + ".safetensors")) {}
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class LanguageModels : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, LanguageModels, testing::ValuesIn(kCausal), test_name);

TEST_P(LanguageModels, LossIsTheSameWholeInChunksAndByStep) {
  const at::NoGradGuard no_grad;
  for (const Positions positions : {Positions::rotary, Positions::learned}) {
    const auto model = make<LanguageModelImpl>(config_of(Task::lm, GetParam(), positions));
    const Tensor ids = random_ids(2, 20, kVocabulary), targets = random_ids(2, 20, kVocabulary);
    const auto loss = [&](const Tensor& logits) {
      return torch::nn::functional::cross_entropy(logits.flatten(0, 1), targets.flatten()).item<double>();
    };
    const double whole = loss(model->forward(ids));
    for (const std::vector<int64_t>& chunks : {std::vector<int64_t>{3, 7, 1, 9}, std::vector<int64_t>(20, 1)}) {
      ModelState state;
      std::vector<Tensor> parts;
      int64_t begin = 0;
      for (const int64_t length : chunks) {
        parts.push_back(model->forward(ids.narrow(1, begin, length), &state));
        begin += length;
      }
      EXPECT_NEAR(loss(torch::cat(parts, 1)), whole, 1e-5 * whole) << chunks.size() << " chunks";
    }
  }
}

TEST_P(LanguageModels, LaterTokensChangeNoEarlierLogit) {
  const at::NoGradGuard no_grad;
  const auto model = make<LanguageModelImpl>(config_of(Task::lm, GetParam()));
  const Tensor ids = random_ids(1, 15, kVocabulary);
  const Tensor before = model->forward(ids);
  Tensor other = ids.clone();
  other[0][9] = (other[0][9] + 1) % kVocabulary;
  const Tensor after = model->forward(other);
  EXPECT_TRUE(torch::equal(after.narrow(1, 0, 9), before.narrow(1, 0, 9)));
  EXPECT_FALSE(torch::equal(after.select(1, 9), before.select(1, 9)));
}

TEST_P(LanguageModels, WeightsComeBackBitForBit) {
  ModelConfig config = config_of(Task::lm, GetParam());
  const auto model = make<LanguageModelImpl>(config);
  config.seed = 1;  // the stored draws count
  expect_weights_come_back(*model, config);
}

TEST_P(LanguageModels, DrawsOfTrainingDoNotReachEvaluation) {
  const at::NoGradGuard no_grad;
  const auto model = make<LanguageModelImpl>(config_of(Task::lm, GetParam()));
  const Tensor ids = random_ids(1, 19, kVocabulary);
  const Tensor before = model->forward(ids);
  model->redraw(3);
  EXPECT_TRUE(torch::equal(model->forward(ids), before));
  if (!traits_of(parse_estimator(GetParam())).is_random) return;
  model->train();
  EXPECT_FALSE(torch::equal(model->forward(ids), before));
}

TEST(LanguageModel, LayersMayDiffer) {
  ModelConfig config = config_of(Task::lm, "softmax");
  config.estimators = {parse_estimator("softmax"), parse_estimator("rfa_gate")};
  const auto model = make<LanguageModelImpl>(config);
  const auto attentions = model->attentions();
  ASSERT_EQ(attentions.size(), 2U);
  EXPECT_EQ(attentions[0]->options().estimator.kind, EstimatorKind::softmax);
  EXPECT_EQ(attentions[1]->options().estimator.kind, EstimatorKind::rfa_gate);
  EXPECT_EQ(attentions[1]->options().layer, 1U);
  EXPECT_EQ(attentions[1]->options().estimator.seed, config.seed);
}

TEST(LanguageModel, NumbersItsAttentionsItself) {
  for (const char* estimator : {"rfa:layer=2", "rfa:draw=1"}) {
    const auto said = refusal<InvalidArgument>([&] { (void)make_model(config_of(Task::lm, estimator)); });
    EXPECT_NE(said.find("sets layer or draw"), std::string::npos) << said;
  }
}

TEST(LanguageModel, LearnedPositionsEndWhereTheyEnd) {
  const auto model = make<LanguageModelImpl>(config_of(Task::lm, "softmax", Positions::learned));
  const Tensor ids = random_ids(1, 21, kVocabulary);
  EXPECT_EQ(message_of([&] { model->forward(ids); }),
            "Model: the text is 21 tokens long, expected at most 20 (the number of learned positions)");
  ModelState state;
  model->forward(ids.narrow(1, 0, 20), &state);
  EXPECT_NE(message_of([&] { model->forward(ids.narrow(1, 20, 1), &state); }).find("21 tokens long"), std::string::npos);
}

TEST(LanguageModel, RefusesIdsThatAreNone) {
  const auto model = make<LanguageModelImpl>(config_of(Task::lm, "softmax"));
  EXPECT_EQ(message_of([&] { model->forward(torch::zeros({4}, at::kLong)); }), "Model: ids is Long [4], expected Long [B, T]");
  EXPECT_EQ(message_of([&] { TranslatorImpl(config_of(Task::lm, "softmax")); }),
            "Model: the config is for lm, expected translate");
}

TEST(Weights, RefuseWhatIsMissingMisshapenOrUnknown) {
  const auto model = make<LanguageModelImpl>(config_of(Task::lm, "rfa_gate"));
  const TemporaryFile file;
  save_weights(*model, file.path());
  const std::string where = file.path().string();

  ModelConfig config = config_of(Task::lm, "rfa_gate");
  config.layers = 3;
  EXPECT_EQ(message_of([&] { load_weights(*make<LanguageModelImpl>(config), file.path()); }),
            where + ": tensor \"decoder.layers.2.attention_norm.weight\" is missing");
  config.layers = 1;
  EXPECT_EQ(message_of([&] {
              load_weights(*make<LanguageModelImpl>(config), file.path());
            }).find(where + ": tensor \"decoder.layers.1."),
            0U);
  config.layers = 2;
  config.vocabulary = 25;
  const auto other = make<LanguageModelImpl>(config);
  const Tensor before = other->parameters()[3].clone();
  EXPECT_EQ(message_of([&] { load_weights(*other, file.path()); }),
            where + ": tensor \"embedding.weight\" has shape [24, 16], expected [25, 16]");
  EXPECT_TRUE(torch::equal(other->parameters()[3], before));
}

TEST(Weights, AreWhatTheFormatSays) {
  ModelConfig config = config_of(Task::lm, "hybrid:samples=8", Positions::learned);
  config.layers = 1;
  const auto model = make<LanguageModelImpl>(config);
  const TemporaryFile file;
  save_weights(*model, file.path());
  std::map<std::string, std::vector<int64_t>> found;
  const Safetensors opened = Safetensors::open(file.path());
  for (const auto& tensor : opened.tensors()) found[tensor.name] = tensor.shape;
  const std::map<std::string, std::vector<int64_t>> expected = {
      {"embedding.weight", {24, 16}},
      {"decoder.positions.weight", {20, 16}},
      {"decoder.layers.0.attention_norm.weight", {16}},
      {"decoder.layers.0.attention_norm.bias", {16}},
      {"decoder.layers.0.attention.q_proj.weight", {16, 16}},
      {"decoder.layers.0.attention.q_proj.bias", {16}},
      {"decoder.layers.0.attention.k_proj.weight", {16, 16}},
      {"decoder.layers.0.attention.k_proj.bias", {16}},
      {"decoder.layers.0.attention.v_proj.weight", {16, 16}},
      {"decoder.layers.0.attention.v_proj.bias", {16}},
      {"decoder.layers.0.attention.out_proj.weight", {16, 16}},
      {"decoder.layers.0.attention.out_proj.bias", {16}},
      {"decoder.layers.0.attention.conv_q", {16, 3}},
      {"decoder.layers.0.attention.conv_k", {16, 3}},
      {"decoder.layers.0.attention.conv_v", {16, 3}},
      {"decoder.layers.0.attention.head_norm", {2, 8}},
      {"decoder.layers.0.attention.map.draws", {2, 8, 8}},
      {"decoder.layers.0.attention.map.sigma", {2, 8}},
      {"decoder.layers.0.attention.gate.weight", {2, 16}},
      {"decoder.layers.0.attention.gate.bias", {2}},
      {"decoder.layers.0.attention.log_scale", {2}},
      {"decoder.layers.0.ffn_norm.weight", {16}},
      {"decoder.layers.0.ffn_norm.bias", {16}},
      {"decoder.layers.0.ffn_up.weight", {64, 16}},
      {"decoder.layers.0.ffn_up.bias", {64}},
      {"decoder.layers.0.ffn_down.weight", {16, 64}},
      {"decoder.layers.0.ffn_down.bias", {16}},
      {"decoder.norm.weight", {16}},
      {"decoder.norm.bias", {16}},
  };
  EXPECT_EQ(found, expected);
}

class Translators : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Translators, testing::ValuesIn(kCausal), test_name);

TEST_P(Translators, DecodeTokenByTokenAsAtOnceAndIgnorePadding) {
  const at::NoGradGuard no_grad;
  for (const std::string cross : {"softmax", "rfa:samples=8", "lara:samples=4"}) {
    // The proposals of lara are means of all queries: what it answers one query depends on the others.
    const bool by_step = !cross.starts_with("lara");
    ModelConfig config = config_of(Task::translate, GetParam());
    config.cross = parse_estimator(cross);
    const auto model = make<TranslatorImpl>(config);
    Tensor source = random_ids(2, 9, kVocabulary);
    source[1].narrow(0, 6, 3).fill_(Tokenizer::kPad);
    const Tensor target = random_ids(2, 7, kVocabulary);
    const Tensor whole = model->forward(source, target);

    const Tensor encoded = model->encode(source);
    if (by_step) {
      ModelState state;
      std::vector<Tensor> steps;
      for (int64_t t = 0; t < 7; ++t) steps.push_back(model->decode(target.narrow(1, t, 1), encoded, source, &state));
      EXPECT_LE(relative_difference(torch::cat(steps, 1), whole), 1e-5) << cross;
    }

    const Tensor alone = model->forward(source.narrow(0, 1, 1).narrow(1, 0, 6), target.narrow(0, 1, 1));
    EXPECT_LE(relative_difference(whole.narrow(0, 1, 1), alone), 1e-5) << cross;
    Tensor later = target.clone();
    later.select(1, 4).fill_(Tokenizer::kPad);
    const bool same = torch::equal(model->forward(source, later).narrow(1, 0, 4), whole.narrow(1, 0, 4));
    EXPECT_TRUE(same || !by_step) << cross;
  }
}

class Classifiers : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Classifiers, testing::ValuesIn(kBidirectional), test_name);

TEST_P(Classifiers, IgnorePadding) {
  const at::NoGradGuard no_grad;
  const auto model = make<ClassifierImpl>(config_of(Task::classify, GetParam()));
  Tensor ids = random_ids(2, 11, kVocabulary);
  ids[0].narrow(0, 6, 5).fill_(Tokenizer::kPad);
  const Tensor logits = model->forward(ids);
  EXPECT_EQ(logits.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_LE(relative_difference(logits.narrow(0, 0, 1), model->forward(ids.narrow(0, 0, 1).narrow(1, 0, 6))), 1e-5);
}

TEST(Classifier, OfPairsReadsBothTexts) {
  ModelConfig config = config_of(Task::classify, "rfa");
  config.pairs = true;
  const auto model = make<ClassifierImpl>(config);
  const Tensor a = random_ids(2, 5, kVocabulary), b = random_ids(2, 8, kVocabulary);
  EXPECT_EQ(model->forward(a, b).sizes(), at::IntArrayRef({2, 3}));
  EXPECT_FALSE(torch::equal(model->forward(a, b), model->forward(b, a)));
  EXPECT_EQ(message_of([&] { model->forward(a); }), "Model: one text is given, expected two (config.pairs)");
}

TEST(ImageClassifier, CutsPatchesInReadingOrder) {
  const auto model = make<ImageClassifierImpl>(config_of(Task::image, "softmax"));
  const Tensor pixels = torch::rand({2, 2, 8, 8});
  EXPECT_EQ(model->forward(pixels).sizes(), at::IntArrayRef({2, 3}));
  // A patch that moves to another place meets another position.
  const Tensor moved = torch::cat({pixels.narrow(3, 4, 4), pixels.narrow(3, 0, 4)}, 3);
  EXPECT_FALSE(torch::allclose(model->forward(moved), model->forward(pixels), 1e-4, 1e-5));
  EXPECT_EQ(message_of([&] {
              model->forward(torch::rand({2, 2, 8, 6}));
            }),
            "Model: pixels have shape [2, 2, 8, 6], expected [B, 2, 8, 8]");
}

}  // namespace
}  // namespace raffia::nn
