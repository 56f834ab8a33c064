#include "torch/golden.h"

#include <stdexcept>

#include "raffia/tokenizer.h"
#include "torch/nn_case.h"

namespace raffia::nn {

using namespace internal;
using namespace internal::nn;
namespace {

constexpr int64_t kVocabulary = 16, kLength = 19, kPadded = 4;

// Parts that a case changes are set by its line in the table below.
struct Parts {
  Positions positions = Positions::none;
  std::string cross = "softmax";
  int64_t conv = 0;
  bool head_norm = false, learned_sigma = true, pairs = false;
  int64_t ffn = 12;
};

GoldenCase make_case(const std::string& name, Task task, const std::vector<std::string>& estimators, const Parts& parts = {}) {
  ModelConfig config{.task = task, .vocabulary = kVocabulary, .width = 16, .heads = 2, .layers = 2, .ffn = parts.ffn};
  for (const std::string& estimator : estimators) config.estimators.push_back(parse_estimator(estimator));
  if (estimators.size() > 1) config.layers = static_cast<int64_t>(estimators.size());
  config.cross = parse_estimator(parts.cross);
  config.positions = parts.positions;
  config.max_length = parts.positions == Positions::learned ? kLength : 0;
  config.conv = parts.conv;
  config.head_norm = parts.head_norm;
  config.learned_sigma = parts.learned_sigma;
  config.pairs = parts.pairs;
  config.seed = 7;
  if (task == Task::classify || task == Task::image) config.classes = 3;
  if (task == Task::image) {
    config.vocabulary = 0;
    config.image_size = 12;
    config.channels = 2;
    config.patch = 3;
  }
  return {name, config};
}

// As imported models are: RMS norms, SwiGLU, two query heads to each key head, no biases, an output of its own.
GoldenCase llama(const std::string& estimator, int64_t conv = 0) {
  GoldenCase golden = make_case("llama-" + std::string(name_of(parse_estimator(estimator).kind)), Task::lm, {estimator},
                                {.positions = Positions::rotary, .conv = conv});
  ModelConfig& config = golden.config;
  config.heads = 4;
  config.kv_heads = 2;
  config.norm = raffia::Norm::rms;
  config.norm_eps = 1e-6;
  config.feed_forward = FeedForward::swiglu;
  config.bias = false;
  config.tied = false;
  config.rotary_base = 500;
  return golden;
}

Tensor text(int64_t length, bool padded) {
  Tensor ids = random_ids(2, length, kVocabulary);
  if (padded) ids[1].narrow(0, length - kPadded, kPadded).fill_(Tokenizer::kPad);
  return ids;
}

Tensor input(const NamedTensors& inputs, const std::string& name) {
  for (const auto& [found, tensor] : inputs) {
    if (found == name) return tensor;
  }
  throw std::runtime_error("golden inputs: \"" + name + "\" is missing");
}

}  // namespace

std::vector<GoldenCase> golden_cases() {
  const auto rotary = Positions::rotary, learned = Positions::learned;
  return {
      make_case("lm-softmax", Task::lm, {"softmax"}, {.positions = rotary}),
      make_case("lm-softmax-learned", Task::lm, {"softmax"}, {.positions = learned, .conv = 2, .head_norm = true, .ffn = 0}),
      make_case("lm-window", Task::lm, {"window:window=4,before=1"}, {.positions = rotary}),
      make_case("lm-rfa-trig", Task::lm, {"rfa:samples=8"}),
      make_case("lm-rfa-arccos", Task::lm, {"rfa:samples=8,map=arccos"}, {.positions = rotary}),
      make_case("lm-rfa-positive", Task::lm, {"rfa:samples=8,map=positive,draws=iid"}, {.positions = learned}),
      make_case("lm-rfa-positive2", Task::lm, {"rfa:samples=8,map=positive2"}, {.learned_sigma = false}),
      make_case("lm-rfa-relu", Task::lm, {"rfa:samples=12,map=relu"}, {.positions = rotary}),
      make_case("lm-rfa-elu", Task::lm, {"rfa:map=elu"}),
      make_case("lm-gate", Task::lm, {"rfa_gate:samples=8"}, {.conv = 3, .head_norm = true}),
      make_case("lm-gate-relu", Task::lm, {"rfa_gate:samples=12,map=relu"}, {.positions = rotary}),
      make_case("lm-gate-fixed-sigma", Task::lm, {"rfa_gate:samples=8,map=positive"}, {.learned_sigma = false}),
      make_case("lm-hybrid", Task::lm, {"hybrid:samples=8,window=4"}, {.positions = rotary}),
      make_case("lm-hybrid-plain", Task::lm, {"hybrid:samples=8,window=4,map=arccos"}, {.conv = 4, .head_norm = true}),
      make_case("lm-lara", Task::lm, {"lara:samples=8,window=4,chunk=2,mean=false"}, {.positions = rotary}),
      make_case("lm-eva", Task::lm, {"eva:samples=4,window=4,chunk=2,features=8"}, {.positions = rotary}),
      make_case("lm-eva-decay", Task::lm, {"eva:samples=2,window=4,chunk=2,features=8,decay=0.9"}, {.conv = 3}),
      make_case("lm-ra", Task::lm, {"ra:samples=2,seed=5"}, {.positions = rotary}),
      make_case("lm-mixed", Task::lm, {"rfa_gate:samples=8", "softmax", "eva:samples=4,window=4,chunk=2,features=8"},
                {.positions = rotary, .conv = 3}),
      llama("softmax"),
      llama("window:window=4"),
      llama("rfa:samples=8"),
      llama("rfa_gate:samples=8,map=positive", 3),
      llama("hybrid:samples=8,window=4"),
      llama("lara:samples=8,window=4,chunk=2,mean=false"),
      llama("eva:samples=4,window=4,chunk=2,features=8"),
      llama("ra:samples=2"),
      make_case("translate-softmax", Task::translate, {"softmax"}, {.positions = rotary}),
      make_case("translate-gate", Task::translate, {"rfa_gate:samples=8"}, {.cross = "rfa:samples=8", .conv = 3}),
      make_case("translate-hybrid", Task::translate, {"hybrid:samples=8,window=4"},
                {.positions = rotary, .cross = "lara:samples=4,mean=false", .head_norm = true}),
      make_case("translate-lara", Task::translate, {"lara:samples=8,window=4,chunk=2,mean=false"},
                {.positions = learned, .cross = "rfa:samples=8,log=true"}),
      make_case("classify-softmax", Task::classify, {"softmax"}, {.positions = rotary}),
      make_case("classify-rfa", Task::classify, {"rfa:samples=8"}, {.positions = learned}),
      make_case("classify-rfa-log", Task::classify, {"rfa:samples=8,log=true"}),
      make_case("classify-lara", Task::classify, {"lara:samples=4,mean=false"}, {.positions = rotary}),
      make_case("classify-ra", Task::classify, {"ra:samples=2"}),
      make_case("pairs-eva", Task::classify, {"eva:samples=4,window=4"}, {.positions = rotary, .pairs = true}),
      make_case("pairs-mixed", Task::classify, {"window:window=4", "rfa:samples=8,map=arccos"},
                {.head_norm = true, .pairs = true}),
      make_case("image-softmax", Task::image, {"softmax"}),
      make_case("image-eva", Task::image, {"eva:samples=4,window=4"}, {.head_norm = true}),
      make_case("image-rfa", Task::image, {"rfa:samples=8,map=positive"}),
  };
}

NamedTensors golden_inputs(const ModelConfig& config) {
  switch (config.task) {
    case Task::lm:
      return {{"ids", text(kLength, false)}};
    case Task::translate:
      return {{"source", text(kLength - 2, true)}, {"target", text(kLength, false)}};
    case Task::classify:
      if (config.pairs) return {{"first", text(kLength, true)}, {"second", text(kLength - 5, true)}};
      return {{"ids", text(kLength, true)}};
    case Task::image:
      return {{"pixels", torch::rand({2, config.channels, config.image_size, config.image_size})}};
  }
  throw std::runtime_error("golden inputs: no such task");
}

Tensor golden_logits(ModelImpl& model, const NamedTensors& inputs) {
  const at::NoGradGuard no_grad;
  const auto of = [&](const std::string& name) { return input(inputs, name); };
  if (auto* lm = dynamic_cast<LanguageModelImpl*>(&model)) return lm->forward(of("ids"));
  if (auto* translator = dynamic_cast<TranslatorImpl*>(&model)) return translator->forward(of("source"), of("target"));
  if (auto* images = dynamic_cast<ImageClassifierImpl*>(&model)) {
    return images->forward(of("pixels").to(model.parameters().front().scalar_type()));
  }
  auto& classifier = dynamic_cast<ClassifierImpl&>(model);
  if (model.config().pairs) return classifier.forward(of("first"), of("second"));
  return classifier.forward(of("ids"));
}

std::shared_ptr<ModelImpl> make_golden_model(const ModelConfig& config) {
  auto model = make_model(config);
  disturb(*model, 0.3);
  model->eval();
  return model;
}

}  // namespace raffia::nn
