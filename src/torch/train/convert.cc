#include "torch/train/convert.h"

#include <fmt/format.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "core/check.h"
#include "model/plan.h"
#include "raffia/error.h"
#include "torch/train/evaluate.h"

namespace raffia::internal::train {
namespace {

using nn::Attention;

// Candidates of the search. Sigma above 1 increases the noise of random features faster than their sharpness, so steps are small
// there.
constexpr double kSigmas[] = {0.25, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.35, 1.5, 1.75, 2};
constexpr double kSpans[] = {2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
constexpr double kLogScales[] = {-6, -5, -4, -3, -2, -1, 0, 1, 2};

Tensor parameter(const Attention& attention, const std::string& name) {
  const auto all = attention->named_parameters();
  const Tensor* found = all.find(name);
  return found == nullptr ? Tensor() : *found;
}

// For each layer, the parameters of its attention that the source does not have.
std::vector<std::vector<Tensor>> new_parameters(const nn::ModelImpl& source, const nn::ModelImpl& converted) {
  const ModelPlan before = plan_of(source.config()), after = plan_of(converted.config());
  const auto parameters = converted.named_parameters();
  std::vector<std::vector<Tensor>> found;
  for (const LayerPlan& layer : after.decoder->layers) {
    std::vector<Tensor>& own = found.emplace_back();
    for (const TensorPlan& tensor : after.tensors) {
      if (!tensor.is_trained() || !tensor.name.starts_with(layer.attention.name + ".")) continue;
      if (before.find(tensor.name) == nullptr) own.push_back(parameters[tensor.name]);
    }
  }
  return found;
}

// [segments, segment] of the text, evenly spread.
Tensor segments_of(std::span<const int32_t> ids, const FitOptions& options) {
  const auto size = static_cast<int64_t>(ids.size());
  require(size >= options.segment, "convert: the text has {} tokens, expected at least one segment of {}", size, options.segment);
  const int64_t count = std::clamp<int64_t>(size / options.segment, 1, options.segments);
  Tensor rows = at::empty({count, options.segment}, at::kLong);
  for (int64_t row = 0; row < count; ++row) {
    const int64_t begin = count == 1 ? 0 : (size - options.segment) * row / (count - 1);
    std::copy_n(ids.begin() + begin, options.segment, rows[row].data_ptr<int64_t>());
  }
  return rows;
}

// One layer: the softmax attention, and the one that takes its place.
class LayerFitting {
 public:
  LayerFitting(Attention exact, Attention fitted, std::vector<Tensor> trained)
      : fitted_(std::move(fitted)), trained_(std::move(trained)), kept_(exact->kept()) {
    const at::NoGradGuard no_grad;
    target_ = exact->forward(kept_.input);
    groups_ = fitted_->options().key_heads();
    size_ = per_group(kept_.out);
  }

  // Per key head [G]: mean square error of the outputs of its query heads, over their mean square.
  Tensor errors() {
    const at::NoGradGuard no_grad;
    fitted_->keep(true);
    fitted_->forward(kept_.input);
    const Tensor errors = per_group(fitted_->kept().out - kept_.out) / size_;
    fitted_->keep(false);
    return at::nan_to_num(errors, 1e30, 1e30);
  }

  double error() {
    const at::NoGradGuard no_grad;
    return relative(fitted_->forward(kept_.input), target_).item<double>();
  }

  // Heads do not depend on each other: every candidate is tried in all of them at once, and each keeps its best.
  void search() {
    const at::NoGradGuard no_grad;
    const Tensor sigma = parameter(fitted_, "map.sigma"), spans = parameter(fitted_, "gate.bias"),
                 scales = parameter(fitted_, "log_scale");
    const auto as_span = [](double span) { return std::log(span - 1); };
    for (int round = 0; round < 2; ++round) {
      if (sigma.defined()) try_all(sigma, kSigmas, [](double value) { return value; });
      if (spans.defined()) try_all(spans, kSpans, as_span);
      if (scales.defined()) try_all(scales, kLogScales, [](double value) { return value; });
    }
  }

  // By gradient, only the new parameters.
  void descend(const FitOptions& options) {
    if (trained_.empty()) return;
    torch::optim::Adam optimiser(trained_, torch::optim::AdamOptions(options.lr).betas({0.9, 0.98}));
    std::vector<Tensor> best = copies(trained_);
    double min = error();
    const int64_t rows = kept_.input.size(0), batch = std::min(rows, options.batch);
    for (int64_t step = 0; step < options.steps; ++step) {
      const double way = static_cast<double>(step) / static_cast<double>(options.steps);
      for (auto& group : optimiser.param_groups()) {
        static_cast<torch::optim::AdamOptions&>(group.options()).lr(options.lr * (1 - way));
      }
      const int64_t begin = step * batch % (rows - batch + 1);
      for (const Tensor& tensor : trained_) tensor.mutable_grad() = Tensor();
      const Tensor out = fitted_->forward(kept_.input.narrow(0, begin, batch));
      relative(out, target_.narrow(0, begin, batch)).backward({}, c10::nullopt, false, trained_);
      torch::nn::utils::clip_grad_norm_(trained_, 1);
      optimiser.step();
    }
    // If the steps did not reduce the error, restore the parameters from before them.
    if (const double now = error(); !(now < min)) {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < trained_.size(); ++i) Tensor(trained_[i]).copy_(best[i]);
    }
    for (const Tensor& tensor : trained_) tensor.mutable_grad() = Tensor();
  }

 private:
  // [B, T, H, d] -> [G]
  Tensor per_group(const Tensor& x) const {
    return x.to(at::kDouble).unflatten(2, {groups_, x.size(2) / groups_}).square().mean({0, 1, 3, 4});
  }

  static Tensor relative(const Tensor& out, const Tensor& target) {
    return (out - target).square().mean() / target.square().mean();
  }

  static std::vector<Tensor> copies(const std::vector<Tensor>& tensors) {
    std::vector<Tensor> all;
    for (const Tensor& tensor : tensors) all.push_back(tensor.detach().clone());
    return all;
  }

  // Rows of `tensor` belong to key heads, or to query heads: as many to each key head.
  template <size_t kCount, typename Meaning>
  void try_all(const Tensor& tensor, const double (&values)[kCount], Meaning meaning) {
    Tensor min = errors(), best = tensor.clone();
    for (const double value : values) {
      Tensor(tensor).fill_(meaning(value));
      const Tensor found = errors(), better = (found < min).logical_or(min.isnan());
      min = at::where(better, found, min);
      std::vector<int64_t> shape(static_cast<size_t>(tensor.dim()), 1);
      shape[0] = tensor.size(0);
      best = at::where(better.repeat_interleave(tensor.size(0) / groups_).reshape(shape), tensor, best);
    }
    Tensor(tensor).copy_(best);
  }

  Attention fitted_;
  std::vector<Tensor> trained_;  // what only the new attention has
  nn::AttentionImpl::Kept kept_;
  Tensor target_;  // [B, T, E]
  Tensor size_;    // [G]: mean square of the exact outputs
  int64_t groups_ = 1;
};

}  // namespace

ModelConfig converted_config(const ModelConfig& source, const std::vector<Estimator>& estimators, uint64_t seed) {
  require(source.task == Task::lm, "convert: the model is for {}, expected lm", name_of(source.task));
  for (const Estimator& estimator : source.estimators) {
    require(traits_of(estimator).is_exact, "convert: the model has {} attention, expected softmax", to_string(estimator));
  }
  require(estimators.size() == 1 || static_cast<int64_t>(estimators.size()) == source.layers,
          "convert: {} estimators are given, expected 1 or {} (one per layer)", estimators.size(), source.layers);
  const bool changes =
      std::any_of(estimators.begin(), estimators.end(), [](const Estimator& one) { return !traits_of(one).is_exact; });
  require(changes, "convert: every layer would stay softmax, expected a change");
  ModelConfig config = source;
  config.estimators = estimators;
  config.seed = seed;
  config.learned_sigma = true;
  config.pool = 0;  // fitting and finetuning use the matrix that evaluation uses
  config.check("convert");
  return config;
}

std::shared_ptr<nn::LanguageModelImpl> make_converted(const nn::LanguageModelImpl& source, const ModelConfig& config) {
  torch::manual_seed(config.seed);
  auto converted = std::make_shared<nn::LanguageModelImpl>(config);
  const at::NoGradGuard no_grad;
  auto parameters = converted->named_parameters();
  for (const auto& item : source.named_parameters()) parameters[item.key()].copy_(item.value());
  converted->eval();
  return converted;
}

std::vector<LayerFit> fit_attention(nn::LanguageModelImpl& source, nn::LanguageModelImpl& converted, std::span<const int32_t> ids,
                                    const FitOptions& options) {
  const Tensor text = segments_of(ids, options);
  const auto exact = source.attentions(), fitted = converted.attentions();
  const std::vector<std::vector<Tensor>> trained = new_parameters(source, converted);
  const auto layers = static_cast<int64_t>(fitted.size());
  source.eval();
  converted.eval();
  {
    const EvaluationMode evaluation(source);
    for (const Attention& attention : exact) attention->keep(true);
    source.hidden(text);
  }
  std::vector<LayerFit> fits;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto i = static_cast<size_t>(layer);
    if (options.progress) options.progress(layer, layers);
    const Estimator& estimator = fitted[i]->options().estimator;
    if (traits_of(estimator).is_exact) continue;
    LayerFitting fitting(exact[i], fitted[i], trained[i]);
    LayerFit fit{.layer = layer, .estimator = converted.config().estimator(layer)};
    fit.error_at_first = fitting.error();
    fitting.search();
    fit.error_searched = fitting.error();
    if (!std::isfinite(fit.error_searched)) {
      throw Error(
          fmt::format("layer {}: the error of the fitted attention is {}, expected a finite number: the weights of the model "
                      "are damaged",
                      layer, fit.error_searched));
    }
    if (options.steps > 0) fitting.descend(options);
    fit.error = fitting.error();
    fit.sigma = fitted[i]->monitor().sigma;
    fits.push_back(fit);
  }
  for (const Attention& attention : exact) attention->keep(false);
  return fits;
}

}  // namespace raffia::internal::train
