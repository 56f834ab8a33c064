#include "torch/train/optimiser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numbers>
#include <string>
#include <vector>

#include "core/check.h"
#include "raffia/error.h"
#include "torch/ops/adamw.h"

namespace raffia::internal::train {
namespace {

// The default learning rate for widths up to 128; for wider models it is inversely proportional to the width.
constexpr double kLearningRate = 3e-3, kWidth = 128;

constexpr double kEpsilon = 1e-8;

template <class T>
std::span<T> span_of(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())};
}

}  // namespace

bool decays(const std::string& name, const at::Tensor& parameter) {
  constexpr std::array kNever = {"norm", "bias", "sigma", ".gate.", "log_scale", "conv"};
  return parameter.dim() >= 2 &&
         std::none_of(kNever.begin(), kNever.end(), [&](const char* part) { return name.find(part) != std::string::npos; });
}

double highest_learning_rate(const TrainOptions& options) {
  return options.lr > 0 ? options.lr : kLearningRate * std::min(1.0, kWidth / static_cast<double>(options.width));
}

double learning_rate(const TrainOptions& options, int64_t step, int64_t steps) {
  const double highest = highest_learning_rate(options);
  const auto warmup = static_cast<int64_t>(std::round(options.warmup * static_cast<double>(steps)));
  if (step < warmup) return highest * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double way = static_cast<double>(step - warmup) / static_cast<double>(std::max<int64_t>(1, steps - warmup));
  return highest * (options.final_lr + (1 - options.final_lr) * 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, way))));
}

Optimiser::Optimiser(nn::ModelImpl& model, const TrainOptions& options)
    : beta1_(options.beta1), beta2_(options.beta2), decay_(options.weight_decay), clip_(options.clip) {
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& parameter = item.value();
    require(parameter.scalar_type() == at::kFloat && parameter.is_contiguous(), "Optimiser: {} is not contiguous fp32",
            item.key());
    slots_.push_back(
        {.name = item.key(), .parameter = parameter, .mean = {}, .square = {}, .decays = decays(item.key(), parameter)});
  }
}

double Optimiser::step(double lr, double scale) {
  const at::NoGradGuard no_grad;
  std::vector<ops::AdamwTensor> tensors;
  std::vector<at::Tensor> gradients;  // keeps them
  std::vector<Slot*> moved;
  for (Slot& slot : slots_) {
    at::Tensor& gradient = slot.parameter.mutable_grad();
    if (!gradient.defined() && slot.steps == 0) continue;
    if (!slot.mean.defined()) {
      slot.mean = at::zeros_like(slot.parameter);
      slot.square = at::zeros_like(slot.parameter);
    }
    gradients.push_back(gradient.defined() ? gradient.contiguous() : at::zeros_like(slot.parameter));
    gradient.reset();
    moved.push_back(&slot);
    tensors.push_back({.run = {.parameters = span_of<float>(slot.parameter),
                               .gradients = span_of<const float>(gradients.back()),
                               .mean = span_of<float>(slot.mean),
                               .square = span_of<float>(slot.square)},
                       .factors = {}});
  }
  const double norm = ops::norm_of_gradients(tensors) * scale;
  if (!std::isfinite(norm)) return norm;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto steps = static_cast<double>(++moved[i]->steps);
    tensors[i].factors = {.scale = scale * (clip_ > 0 && norm > clip_ ? clip_ / norm : 1.0),
                          .beta1 = beta1_,
                          .beta2 = beta2_,
                          .keep = moved[i]->decays ? 1 - lr * decay_ : 1.0,
                          .rate = lr / (1 - std::pow(beta1_, steps)),
                          .root = std::sqrt(1 - std::pow(beta2_, steps)),
                          .eps = kEpsilon};
  }
  ops::adamw_step(tensors);
  return norm;
}

NamedTensors Optimiser::state() const {
  NamedTensors tensors;
  for (const Slot& slot : slots_) {
    if (slot.steps == 0) continue;
    tensors.emplace_back(slot.name + "/step", torch::tensor({slot.steps}, torch::kLong));
    tensors.emplace_back(slot.name + "/mean", slot.mean);
    tensors.emplace_back(slot.name + "/square", slot.square);
  }
  return tensors;
}

void Optimiser::set_state(const NamedTensors& state, std::string_view where) {
  const std::map<std::string, at::Tensor> tensors(state.begin(), state.end());
  size_t used = 0;
  const auto take = [&](const std::string& name, at::IntArrayRef shape) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) throw FormatError(fmt::format("{}: tensor \"{}\" is missing", where, name));
    if (found->second.sizes() != shape) throw FormatError(fmt::format("{}: tensor \"{}\" has another shape", where, name));
    require_finite(found->second, name, where);
    ++used;
    return found->second;
  };
  for (Slot& slot : slots_) {
    if (!tensors.contains(slot.name + "/step")) continue;  // it never had a gradient
    slot.steps = take(slot.name + "/step", {1}).item<int64_t>();
    slot.mean = take(slot.name + "/mean", slot.parameter.sizes()).contiguous();
    slot.square = take(slot.name + "/square", slot.parameter.sizes()).contiguous();
  }
  if (used != tensors.size()) throw FormatError(fmt::format("{}: has tensors that belong to no parameter", where));
}

}  // namespace raffia::internal::train
