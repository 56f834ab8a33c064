#include "torch/train/labels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/text.h"

namespace raffia::train {

bool is_held_out(size_t i, double share) {
  const auto kept = [share](size_t count) { return std::floor(static_cast<double>(count) * share); };
  return kept(i + 1) > kept(i);
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

void save_classes(const std::vector<std::string>& classes, const std::filesystem::path& directory) {
  write_file(directory / "classes.txt", fmt::format("{}\n", fmt::join(classes, "\n")));
}

std::vector<std::string> load_classes(const std::filesystem::path& directory) {
  const std::string text = read_text_file(directory / "classes.txt");
  const auto lines = lines_of(text);
  return {lines.begin(), lines.end()};
}

}  // namespace raffia::train
