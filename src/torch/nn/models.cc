#include "torch/nn/models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/check.h"
#include "raffia/tokenizer.h"
#include "torch/nn/pieces.h"
#include "torch/ops/cross_entropy.h"
#include "torch/ops/linear_layer.h"

namespace raffia::internal::nn {
namespace {

void check_stream(const Estimator& estimator) {
  require(estimator.layer == 0 && estimator.draw == 0,
          "Model: {} sets layer or draw, expected neither (attentions are numbered, and redraw() sets the draw)",
          to_string(estimator));
}

// A config made in memory is checked like one from a file.
const ModelConfig& checked(const ModelConfig& config, Task task) {
  require(config.task == task, "Model: the config is for {}, expected {}", name_of(config.task), name_of(task));
  config.check("Model");
  for (const Estimator& estimator : config.estimators) check_stream(estimator);
  check_stream(config.cross);
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

// hidden [.., E], targets [..].
TargetLoss loss_at(const Tensor& hidden, const Tensor& matrix, const Tensor& targets, double smoothing) {
  const ops::CrossEntropy loss = ops::cross_entropy(hidden.reshape({-1, hidden.size(-1)}), matrix, targets.flatten(), smoothing);
  return {loss.sum, loss.losses};
}

}  // namespace

ModelImpl::ModelImpl(const ModelConfig& config, Task task) : config_(checked(config, task)) {
  const ModelPlan plan = plan_of(config);
  if (plan.embedding) embedding_ = add_module(*this, *plan.embedding, make_table(*plan.embedding));
  if (plan.patches) patches_ = add_module(*this, *plan.patches, make_linear(*plan.patches));
  if (plan.encoder) encoder_ = add_module(*this, *plan.encoder, Stack(*plan.encoder));
  if (plan.decoder) decoder_ = add_module(*this, *plan.decoder, Stack(*plan.decoder));
  if (plan.output) output_ = add_module(*this, *plan.output, make_linear(*plan.output));
  if (plan.head) head_ = add_module(*this, *plan.head, make_linear(*plan.head));
}

const Tensor& ModelImpl::output_matrix() const { return output_.is_empty() ? embedding_->weight : output_->weight; }

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

Tensor LanguageModelImpl::hidden(const Tensor& ids, ModelState* state) {
  check_ids("ids", ids);
  return decoder_(embedding_(ids), Surroundings{}, state);
}

Tensor LanguageModelImpl::logits(const Tensor& hidden) { return ops::linear_layer(hidden, output_matrix(), {}); }

TargetLoss LanguageModelImpl::loss(const Tensor& hidden, const Tensor& targets, double smoothing) {
  return loss_at(hidden, output_matrix(), targets, smoothing);
}

Tensor LanguageModelImpl::forward(const Tensor& ids, ModelState* state) { return logits(hidden(ids, state)); }

Tensor TranslatorImpl::encode(const Tensor& source) {
  check_ids("source", source);
  return encoder_(embedding_(source), Surroundings{.padding = padding_of(source)}, nullptr);
}

Tensor TranslatorImpl::hidden(const Tensor& target, const Tensor& encoded, const Tensor& source, ModelState* state) {
  check_ids("target", target);
  check_ids("source", source);
  // Padding of targets comes after their tokens, which never see it.
  const Surroundings around{.context = encoded, .context_padding = padding_of(source)};
  return decoder_(embedding_(target), around, state);
}

Tensor TranslatorImpl::decode(const Tensor& target, const Tensor& encoded, const Tensor& source, ModelState* state) {
  return ops::linear_layer(hidden(target, encoded, source, state), output_matrix(), {});
}

TargetLoss TranslatorImpl::loss(const Tensor& source, const Tensor& target, const Tensor& expected, double smoothing) {
  return loss_at(hidden(target, encode(source), source, nullptr), output_matrix(), expected, smoothing);
}

Tensor TranslatorImpl::forward(const Tensor& source, const Tensor& target) { return decode(target, encode(source), source); }

Tensor ClassifierImpl::mean(const Tensor& ids) {
  check_ids("ids", ids);
  const Tensor padding = padding_of(ids);
  return mean_over_tokens(encoder_(embedding_(ids), Surroundings{.padding = padding}, nullptr), padding);
}

Tensor ClassifierImpl::forward(const Tensor& ids) {
  require(!config_.pairs, "Model: one text is given, expected two (config.pairs)");
  return apply_linear(head_, mean(ids));
}

Tensor ClassifierImpl::forward(const Tensor& first, const Tensor& second) {
  require(config_.pairs, "Model: two texts are given, expected one (config.pairs is false)");
  const Tensor a = mean(first), b = mean(second);
  return apply_linear(head_, at::cat({a, b, a * b, a - b}, 1));
}

Tensor ImageClassifierImpl::forward(const Tensor& pixels) {
  const int64_t size = config_.image_size, channels = config_.channels, patch = config_.patch, side = size / patch;
  require(pixels.dim() == 4 && pixels.size(1) == channels && pixels.size(2) == size && pixels.size(3) == size,
          "Model: pixels have shape [{}], expected [B, {}, {}, {}]", fmt::join(pixels.sizes(), ", "), channels, size, size);
  // [B, C, rows, p, columns, p] -> [B, rows * columns, C * p * p], centred.
  const Tensor cut = pixels.reshape({-1, channels, side, patch, side, patch}).permute({0, 2, 4, 1, 3, 5});
  const Tensor flat = cut.reshape({-1, side * side, channels * patch * patch}) * 2 - 1;
  return apply_linear(head_, encoder_(apply_linear(patches_, flat), Surroundings{}, nullptr).mean(1));
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

}  // namespace raffia::internal::nn
