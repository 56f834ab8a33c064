// The models that raffia trains: pre-norm transformers with any estimator per layer. Made from a ModelConfig, saved as a model
// directory (config.json, model.safetensors): docs/model-format.md.
#ifndef RAFFIA_TORCH_NN_MODELS_H_
#define RAFFIA_TORCH_NN_MODELS_H_

#include <filesystem>
#include <memory>
#include <vector>

#include "raffia/model_config.h"
#include "raffia/torch/nn.h"
#include "torch/libtorch.h"
#include "torch/nn/stack.h"

namespace raffia::internal::nn {

// The loss of a model at its targets, without those that are ops::kIgnoredTarget.
struct TargetLoss {
  Tensor sum;     // scalar, differentiable
  Tensor losses;  // [T], one for each target; constants
};

// The base class of all models.
class ModelImpl : public torch::nn::Module {
 public:
  const ModelConfig& config() const { return config_; }

  void redraw(uint64_t draw);                                      // of every attention: see AttentionImpl::redraw
  std::vector<std::shared_ptr<AttentionImpl>> attentions() const;  // in order
  int64_t parameter_count() const;                                 // of the trained parameters

  // From now on inputs are this process's slices of the sequences: see AttentionImpl::split_sequence. Language models only.
  void split_sequence(const std::shared_ptr<SequenceSplit>& split);

 protected:
  // All parts that the plan of such a model has; throws if the config is for another task.
  ModelImpl(const ModelConfig& config, Task task);

  const Tensor& output_matrix() const;  // [vocabulary, E]

  ModelConfig config_;
  torch::nn::Embedding embedding_ = nullptr;
  torch::nn::Linear patches_ = nullptr;
  Stack encoder_ = nullptr, decoder_ = nullptr;
  torch::nn::Linear output_ = nullptr, head_ = nullptr;
};

// ids [B, T] int64 -> logits [B, T, vocabulary]; the output matrix is tied to the embeddings or separate.
class LanguageModelImpl : public ModelImpl {
 public:
  explicit LanguageModelImpl(const ModelConfig& config) : ModelImpl(config, Task::lm) {}
  Tensor forward(const Tensor& ids, ModelState* state = nullptr);
  // The same before the output projection, [B, T, E]: losses may compute logits in parts.
  Tensor hidden(const Tensor& ids, ModelState* state = nullptr);
  Tensor logits(const Tensor& hidden);
  // The cross entropy of logits(hidden) with targets [B, T], without all logits in memory.
  TargetLoss loss(const Tensor& hidden, const Tensor& targets, double smoothing = 0);
};

// source [B, S], target [B, T] (shifted right) -> logits [B, T, vocabulary]. Padding is Tokenizer::kPad; in targets it comes
// last.
class TranslatorImpl : public ModelImpl {
 public:
  explicit TranslatorImpl(const ModelConfig& config) : ModelImpl(config, Task::translate) {}
  Tensor encode(const Tensor& source);  // [B, S, E]
  // With a state: `target` continues the tokens of earlier calls.
  Tensor decode(const Tensor& target, const Tensor& encoded, const Tensor& source, ModelState* state = nullptr);
  Tensor forward(const Tensor& source, const Tensor& target);
  // The cross entropy of forward(source, target) with `expected` [B, T].
  TargetLoss loss(const Tensor& source, const Tensor& target, const Tensor& expected, double smoothing = 0);

 private:
  Tensor hidden(const Tensor& target, const Tensor& encoded, const Tensor& source, ModelState* state);
};

// ids [B, T] -> logits [B, classes]: mean over tokens, without padding (Tokenizer::kPad). With config.pairs, ids of both texts:
// [B, T] each, and the features of a pair are [a, b, a o b, a - b].
class ClassifierImpl : public ModelImpl {
 public:
  explicit ClassifierImpl(const ModelConfig& config) : ModelImpl(config, Task::classify) {}
  Tensor forward(const Tensor& ids);
  Tensor forward(const Tensor& first, const Tensor& second);

 private:
  Tensor mean(const Tensor& ids);  // [B, E]
};

// pixels [B, channels, size, size], 0..1 -> logits [B, classes].
class ImageClassifierImpl : public ModelImpl {
 public:
  explicit ImageClassifierImpl(const ModelConfig& config) : ModelImpl(config, Task::image) {}
  Tensor forward(const Tensor& pixels);
};

std::shared_ptr<ModelImpl> make_model(const ModelConfig& config);

// Parameters and buffers by name, fp32. Loading checks every name, shape and number: missing tensors, unknown tensors, wrong
// shapes and numbers that are not finite are FormatErrors that name the tensor.
// `tokenizer`: fingerprint of the one that the model was trained with; 0: none. See seals_of.
void save_weights(const ModelImpl& model, const std::filesystem::path& path, uint64_t tokenizer = 0);  // atomic
void load_weights(ModelImpl& model, const std::filesystem::path& path);

}  // namespace raffia::internal::nn

#endif  // RAFFIA_TORCH_NN_MODELS_H_
