// Multi-query associative recall: how much an attention remembers, and over which distance. The data are generated.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/split.h"
#include "io/formats/text.h"
#include "torch/train/data.h"
#include "torch/train/fingerprint.h"
#include "torch/train/task.h"

namespace raffia::internal::train {
namespace {

constexpr int64_t kEvaluationBatches = 8;  // of each number of pairs
constexpr int64_t kEvaluationRows = 4;     // in a batch: its sequences may be long

std::vector<int64_t> parse_distances(const std::string& text) {
  std::vector<int64_t> distances;
  const OptionInfo& integer = *find_option(kRecall, "queries");
  TrainOptions scratch;
  for (const std::string_view distance : split(text, ',')) {
    set_from_text(scratch, integer, std::string(distance));
    distances.push_back(scratch.recall_queries);
  }
  return distances;
}

class RecallTrainingTask : public TrainingTask {
 public:
  explicit RecallTrainingTask(TrainOptions& options) {
    const RecallOptions data{.batch = options.batch,
                             .length = options.segment,
                             .pairs = options.recall_pairs,
                             .queries = options.recall_queries,
                             .distances = parse_distances(options.recall_distances),
                             .keys = options.recall_alphabet,
                             .values = options.recall_alphabet,
                             .seed = options.seed};
    train_ = std::make_unique<RecallTask>(data, shard_of(options));
    // Fewer pairs than in training, too, and other distances; sequences that training never sees.
    const std::vector<int64_t> distances = parse_distances(options.recall_eval_distances);
    const int64_t length = std::max(data.length, *std::ranges::max_element(distances) + 2 * data.pairs);
    for (const int64_t pairs :
         std::set<int64_t>{std::max<int64_t>(1, data.pairs / 4), std::max<int64_t>(1, data.pairs / 2), data.pairs}) {
      RecallOptions other = data;
      other.batch = kEvaluationRows;
      other.length = length;
      other.distances = distances;
      other.pairs = pairs;
      other.queries = std::min(pairs, data.queries);
      other.seed = ~data.seed;
      valid_.emplace_back(other);
    }
    ModelConfig config = model_config(options);
    config.vocabulary = train_->vocabulary();
    if (config.positions == Positions::learned) config.max_length = length;
    check_config(config, options);
    seed_for_weights(options);
    model_ = std::make_shared<nn::LanguageModelImpl>(config);
  }

  nn::ModelImpl& model() override { return *model_; }
  Objective objective() const override { return {.metric = "accuracy", .higher_is_better = true}; }
  int64_t batches_per_epoch() const override { return 1; }
  Fingerprints fingerprints() const override { return {}; }  // everything is in the options
  std::string describe() const override {
    const RecallOptions& data = train_->options();
    return fmt::format("{} pairs in {} tokens, queries {} tokens later; {} parameters", data.pairs, data.length,
                       fmt::join(data.distances, ", "), grouped(static_cast<uint64_t>(model_->parameter_count())));
  }

  LossSum loss(int64_t index) override {
    model_->redraw(static_cast<uint64_t>(index));
    const auto batch = train_->at(index);
    const Tensor places = batch.target.ne(kIgnore);
    // Of the queries alone: [N, E].
    const Tensor hidden = model_->hidden(batch.input).index({places});
    const Tensor expected = batch.target.index({places});
    return {.sum = model_->loss(hidden, expected).sum, .count = expected.numel(), .tokens = batch.input.numel()};
  }

  // Accuracy over all, then by number of pairs and distance.
  Metrics evaluate(const OnProgress& progress) override {
    const EvaluationMode evaluation(*model_);
    Metrics parts;
    int64_t correct = 0, count = 0, done = 0;
    const auto total = static_cast<int64_t>(valid_.size()) * kEvaluationBatches;
    for (const RecallTask& data : valid_) {
      std::map<int64_t, LabelScore> by_distance;
      for (int64_t i = 0; i < kEvaluationBatches; ++i) {
        const auto batch = data.at(i);
        const Tensor hidden = model_->hidden(batch.input);
        for (const int64_t distance : data.options().distances) {
          const Tensor places = batch.distance.eq(distance);
          const Tensor expected = batch.target.index({places});
          if (expected.numel() == 0) continue;
          by_distance[distance] += score_labels(model_->logits(hidden.index({places})), expected);
        }
        if (progress) progress(++done, total);
      }
      for (const auto& [distance, score] : by_distance) {
        parts.emplace_back(fmt::format("accuracy_pairs{}_distance{}", data.options().pairs, distance), score.accuracy());
        correct += score.correct;
        count += score.count;
      }
    }
    Metrics metrics = {{"accuracy", count == 0 ? 0.0 : static_cast<double>(correct) / static_cast<double>(count)}};
    metrics.insert(metrics.end(), parts.begin(), parts.end());
    return metrics;
  }

 private:
  std::unique_ptr<RecallTask> train_;
  std::vector<RecallTask> valid_;
  std::shared_ptr<nn::LanguageModelImpl> model_;
};

}  // namespace

std::unique_ptr<TrainingTask> make_recall_task(TrainOptions& options) { return std::make_unique<RecallTrainingTask>(options); }

}  // namespace raffia::internal::train
