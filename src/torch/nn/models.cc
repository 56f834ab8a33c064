#include "torch/nn/models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/init.h>

#include "core/check.h"
#include "raffia/tokenizer.h"
#include "torch/nn/pieces.h"

namespace raffia::nn {
namespace {

torch::nn::Embedding make_embedding(const ModelConfig& config) {
  torch::nn::Embedding embedding(config.vocabulary, config.width);
  torch::nn::init::normal_(embedding->weight, 0, kInitialDeviation);
  return embedding;
}

torch::nn::Linear make_output(const ModelConfig& config) { return make_linear(config.width, config.vocabulary, false); }

// The output matrix: [vocabulary, E].
const Tensor& output_matrix(const torch::nn::Embedding& embedding, const torch::nn::Linear& output) {
  return output.is_empty() ? embedding->weight : output->weight;
}

int64_t learned_positions(const ModelConfig& config) { return config.positions == Positions::learned ? config.max_length : 0; }

// A config made in memory is checked like one from a file.
const ModelConfig& checked(const ModelConfig& config, Task task) {
  require(config.task == task, "Model: the config is for {}, expected {}", name_of(config.task), name_of(task));
  config.check("Model");
  return config;
}

void check_ids(const char* name, const Tensor& ids) {
  require(ids.defined() && ids.dim() == 2 && ids.scalar_type() == at::kLong, "Model: {} is {} [{}], expected Long [B, T]", name,
          ids.defined() ? c10::toString(ids.scalar_type()) : "undefined",
          ids.defined() ? fmt::format("{}", fmt::join(ids.sizes(), ", ")) : "");
}

// [B, T] bool, True: padding; undefined if there is none.
Tensor padding_of(const Tensor& ids) {
  Tensor padding = ids.eq(Tokenizer::kPad);
  return padding.any().item<bool>() ? padding : Tensor();
}

// x [B, T, E] -> [B, E], mean over tokens without padding.
Tensor mean_over_tokens(const Tensor& x, const Tensor& padding) {
  if (!padding.defined()) return x.mean(1);
  const Tensor tokens = padding.logical_not().to(x.scalar_type());
  return x.masked_fill(padding.unsqueeze(2), 0).sum(1) / tokens.sum(1, true).clamp_min(1);
}

}  // namespace

std::vector<std::shared_ptr<AttentionImpl>> ModelImpl::attentions() const {
  std::vector<std::shared_ptr<AttentionImpl>> found;
  for (const auto& module : modules(false)) {
    if (auto attention = std::dynamic_pointer_cast<AttentionImpl>(module)) found.push_back(std::move(attention));
  }
  return found;
}

void ModelImpl::redraw(uint64_t draw) {
  for (const auto& attention : attentions()) attention->redraw(draw);
}

int64_t ModelImpl::parameter_count() const {
  int64_t count = 0;
  for (const Tensor& parameter : parameters()) count += parameter.numel();
  return count;
}

void ModelImpl::split_sequence(const std::shared_ptr<SequenceSplit>& split) {
  require(split == nullptr || config_.task == Task::lm, "Model: a {} cannot split sequences over processes, expected a {}",
          name_of(config_.task), name_of(Task::lm));
  for (const auto& module : modules(false)) {
    if (auto attention = std::dynamic_pointer_cast<AttentionImpl>(module)) attention->split_sequence(split);
    if (auto stack = std::dynamic_pointer_cast<StackImpl>(module)) stack->split_sequence(split);
  }
}

LanguageModelImpl::LanguageModelImpl(const ModelConfig& config) : ModelImpl(checked(config, Task::lm)) {
  embedding_ = register_module("embedding", make_embedding(config));
  decoder_ =
      register_module("decoder", Stack(config, StackOptions{.causal = true, .learned_positions = learned_positions(config)}));
  if (!config.tied) output_ = register_module("output", make_output(config));
}

Tensor LanguageModelImpl::hidden(const Tensor& ids, ModelState* state) {
  check_ids("ids", ids);
  return decoder_(embedding_(ids), Surroundings{}, state);
}

Tensor LanguageModelImpl::logits(const Tensor& hidden) { return torch::linear(hidden, output_matrix(embedding_, output_)); }

Tensor LanguageModelImpl::forward(const Tensor& ids, ModelState* state) { return logits(hidden(ids, state)); }

TranslatorImpl::TranslatorImpl(const ModelConfig& config) : ModelImpl(checked(config, Task::translate)) {
  const int64_t positions = learned_positions(config);
  embedding_ = register_module("embedding", make_embedding(config));
  encoder_ = register_module("encoder", Stack(config, StackOptions{.learned_positions = positions}));
  decoder_ = register_module("decoder", Stack(config, StackOptions{.causal = true,
                                                                   .cross = true,
                                                                   .learned_positions = positions,
                                                                   .first_layer = static_cast<uint32_t>(config.layers)}));
  if (!config.tied) output_ = register_module("output", make_output(config));
}

Tensor TranslatorImpl::encode(const Tensor& source) {
  check_ids("source", source);
  return encoder_(embedding_(source), Surroundings{.padding = padding_of(source)}, nullptr);
}

Tensor TranslatorImpl::decode(const Tensor& target, const Tensor& encoded, const Tensor& source, ModelState* state) {
  check_ids("target", target);
  check_ids("source", source);
  // Padding of targets comes after their tokens, which never see it.
  const Surroundings around{.context = encoded, .context_padding = padding_of(source)};
  return torch::linear(decoder_(embedding_(target), around, state), output_matrix(embedding_, output_));
}

Tensor TranslatorImpl::forward(const Tensor& source, const Tensor& target) { return decode(target, encode(source), source); }

ClassifierImpl::ClassifierImpl(const ModelConfig& config) : ModelImpl(checked(config, Task::classify)) {
  embedding_ = register_module("embedding", make_embedding(config));
  encoder_ = register_module("encoder", Stack(config, StackOptions{.learned_positions = learned_positions(config)}));
  head_ = register_module("head", make_linear(config.pairs ? 4 * config.width : config.width, config.classes));
}

Tensor ClassifierImpl::mean(const Tensor& ids) {
  check_ids("ids", ids);
  const Tensor padding = padding_of(ids);
  return mean_over_tokens(encoder_(embedding_(ids), Surroundings{.padding = padding}, nullptr), padding);
}

Tensor ClassifierImpl::forward(const Tensor& ids) {
  require(!config_.pairs, "Model: one text is given, expected two (config.pairs)");
  return head_(mean(ids));
}

Tensor ClassifierImpl::forward(const Tensor& first, const Tensor& second) {
  require(config_.pairs, "Model: two texts are given, expected one (config.pairs is false)");
  const Tensor a = mean(first), b = mean(second);
  return head_(at::cat({a, b, a * b, a - b}, 1));
}

ImageClassifierImpl::ImageClassifierImpl(const ModelConfig& config) : ModelImpl(checked(config, Task::image)) {
  const int64_t side = config.image_size / config.patch;
  patches_ = register_module("patches", make_linear(config.channels * config.patch * config.patch, config.width));
  encoder_ = register_module("encoder", Stack(config, StackOptions{.learned_positions = side * side}));
  head_ = register_module("head", make_linear(config.width, config.classes));
}

Tensor ImageClassifierImpl::forward(const Tensor& pixels) {
  const int64_t size = config_.image_size, channels = config_.channels, patch = config_.patch, side = size / patch;
  require(pixels.dim() == 4 && pixels.size(1) == channels && pixels.size(2) == size && pixels.size(3) == size,
          "Model: pixels have shape [{}], expected [B, {}, {}, {}]", fmt::join(pixels.sizes(), ", "), channels, size, size);
  // [B, C, rows, p, columns, p] -> [B, rows * columns, C * p * p], centred.
  const Tensor cut = pixels.reshape({-1, channels, side, patch, side, patch}).permute({0, 2, 4, 1, 3, 5});
  const Tensor flat = cut.reshape({-1, side * side, channels * patch * patch}) * 2 - 1;
  return head_(encoder_(patches_(flat), Surroundings{}, nullptr).mean(1));
}

std::shared_ptr<ModelImpl> make_model(const ModelConfig& config) {
  switch (config.task) {
    case Task::lm:
      return std::make_shared<LanguageModelImpl>(config);
    case Task::translate:
      return std::make_shared<TranslatorImpl>(config);
    case Task::classify:
      return std::make_shared<ClassifierImpl>(config);
    case Task::image:
      return std::make_shared<ImageClassifierImpl>(config);
  }
  throw InvalidArgument(fmt::format("make_model: task is {}, expected one of the tasks", static_cast<int>(config.task)));
}

}  // namespace raffia::nn
