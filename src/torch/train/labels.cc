#include "torch/train/labels.h"

#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace raffia::internal::train {

bool is_held_out(size_t i, double share) {
  const auto kept = [share](size_t count) { return std::floor(static_cast<double>(count) * share); };
  return kept(i + 1) > kept(i);
}

void require_number_of_names(int64_t classes, std::span<const std::string> names, const std::string& data) {
  require(classes == 0 || classes == std::ssize(names),
          "--classes is {}, but {} has {} classes: they are its labels, so omit the flag", classes, data, names.size());
}

LossSum label_loss(const Tensor& logits, const Tensor& labels, double smoothing, int64_t tokens) {
  namespace F = torch::nn::functional;
  const auto options = F::CrossEntropyFuncOptions().reduction(torch::kSum).label_smoothing(smoothing);
  return {.sum = F::cross_entropy(logits, labels, options), .count = labels.numel(), .tokens = tokens};
}

LabelScore score_in_parts(nn::ModelImpl& model, int64_t count, int64_t part, const OnProgress& progress,
                          const std::function<LabelScore(int64_t begin, int64_t end)>& score) {
  const EvaluationMode evaluation(model);
  LabelScore sum;
  for (int64_t begin = 0; begin < count; begin += part) {
    const int64_t end = std::min(count, begin + part);
    sum += score(begin, end);
    if (progress) progress(end, count);
  }
  return sum;
}

Metrics label_metrics(const LabelScore& score) { return {{"accuracy", score.accuracy()}, {"nll", score.per_example()}}; }

}  // namespace raffia::internal::train
