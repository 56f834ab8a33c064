#include "torch/train/optimiser.h"

#include <fmt/format.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numbers>
#include <string>
#include <tuple>
#include <vector>

#include "raffia/error.h"

namespace raffia::internal::train {
namespace {

// The default learning rate for widths up to 128; for wider models it is inversely proportional to the width.
constexpr double kLearningRate = 3e-3, kWidth = 128;

using AdamState = torch::optim::AdamWParamState;

std::string key_of(const at::Tensor& parameter) { return c10::guts::to_string(parameter.unsafeGetTensorImpl()); }

std::vector<torch::optim::OptimizerParamGroup> groups_of(nn::ModelImpl& model, const torch::optim::AdamWOptions& options) {
  std::vector<at::Tensor> decaying, others;
  for (const auto& item : model.named_parameters())
    (decays(item.key(), item.value()) ? decaying : others).push_back(item.value());
  auto without = options;
  without.weight_decay(0);
  return {torch::optim::OptimizerParamGroup(decaying, std::make_unique<torch::optim::AdamWOptions>(options)),
          torch::optim::OptimizerParamGroup(others, std::make_unique<torch::optim::AdamWOptions>(without))};
}

torch::optim::AdamWOptions adamw_options(const TrainOptions& options) {
  return torch::optim::AdamWOptions(highest_learning_rate(options))
      .betas(std::make_tuple(options.beta1, options.beta2))
      .weight_decay(options.weight_decay);
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
    : model_(model), clip_(options.clip), adamw_(groups_of(model, adamw_options(options)), adamw_options(options)) {}

double Optimiser::step(double lr, double scale) {
  std::vector<at::Tensor> norms;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model_.parameters()) {
    if (parameter.grad().defined()) norms.push_back(parameter.grad().norm());
  }
  const double norm = norms.empty() ? 0.0 : at::stack(norms).norm().item<double>() * scale;
  if (std::isfinite(norm)) {
    const double factor = scale * (clip_ > 0 && norm > clip_ ? clip_ / norm : 1.0);
    for (const at::Tensor& parameter : model_.parameters()) {
      if (parameter.grad().defined()) parameter.mutable_grad().mul_(factor);
    }
    for (auto& group : adamw_.param_groups()) group.options().set_lr(lr);
    adamw_.step();
  }
  adamw_.zero_grad();
  return norm;
}

NamedTensors Optimiser::state() const {
  NamedTensors tensors;
  for (const auto& item : model_.named_parameters()) {
    const auto found = adamw_.state().find(key_of(item.value()));
    if (found == adamw_.state().end()) continue;
    const auto& state = static_cast<const AdamState&>(*found->second);
    tensors.emplace_back(item.key() + "/step", torch::tensor({state.step()}, torch::kLong));
    tensors.emplace_back(item.key() + "/mean", state.exp_avg());
    tensors.emplace_back(item.key() + "/square", state.exp_avg_sq());
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
  for (const auto& item : model_.named_parameters()) {
    if (!tensors.contains(item.key() + "/step")) continue;  // it never had a gradient
    auto loaded = std::make_unique<AdamState>();
    loaded->step(take(item.key() + "/step", {1}).item<int64_t>());
    loaded->exp_avg(take(item.key() + "/mean", item.value().sizes()));
    loaded->exp_avg_sq(take(item.key() + "/square", item.value().sizes()));
    adamw_.state()[key_of(item.value())] = std::move(loaded);
  }
  if (used != tensors.size()) throw FormatError(fmt::format("{}: has tensors that belong to no parameter", where));
}

}  // namespace raffia::internal::train
