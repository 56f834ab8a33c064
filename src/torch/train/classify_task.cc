// Classification of texts and of pairs of texts.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/check.h"
#include "io/data/datasets.h"
#include "io/formats/text.h"
#include "raffia/tokenizer.h"
#include "torch/train/data.h"
#include "torch/train/fingerprint.h"
#include "torch/train/labels.h"
#include "torch/train/task.h"
#include "torch/train/texts.h"

namespace raffia::internal::train {
namespace {

// Every n-th example is kept for evaluation: files are often sorted by label.
std::pair<LabelledTexts, LabelledTexts> split_off(const LabelledTexts& all, double share) {
  LabelledTexts train, valid;
  for (size_t i = 0; i < all.labels.size(); ++i) {
    LabelledTexts& part = is_held_out(i, share) ? valid : train;
    part.labels.push_back(all.labels[i]);
    part.texts.push_back(all.texts[i]);
    if (!all.seconds.empty()) part.seconds.push_back(all.seconds[i]);
  }
  return {std::move(train), std::move(valid)};
}

class ClassifyTask : public TrainingTask {
 public:
  ClassifyTask(TrainOptions& options, bool goes_on) : smoothing_(options.label_smoothing) {
    require(!options.data.empty(), "--data is missing: the file of labelled texts to train on");
    LabelledTexts train = read(options, options.data), valid;
    if (options.valid.empty()) {
      std::tie(train, valid) = split_off(train, options.valid_share);
    } else {
      valid = read(options, options.valid);
    }
    if (!goes_on) require_classes(train.labels, options.data);
    classes_ = classes_of(train.labels);
    if (!goes_on) require_number_of_names(options.classes, classes_, options.data);
    require(classes_.size() >= 2, "--data: {} has {} class, expected at least 2", options.data, classes_.size());
    require(!valid.labels.empty(), "--data: {} has too few examples to keep some for evaluation; use --valid", options.data);

    std::vector<std::string_view> texts(train.texts.begin(), train.texts.end());
    texts.insert(texts.end(), train.seconds.begin(), train.seconds.end());
    tokenizer_ = task_tokenizer(options, goes_on, texts);
    Fingerprint data;
    train_ = batches(options, train, options.data, &data);
    valid_ = batches(options, valid, options.valid.empty() ? options.data : options.valid, &data);
    if (!options.test.empty()) test_ = batches(options, read(options, options.test), options.test, nullptr);
    fingerprints_ = {.tokenizer = tokenizer_->fingerprint(), .data = data.value()};

    ModelConfig config = model_config(options);
    config.vocabulary = tokenizer_->vocabulary();
    config.classes = static_cast<int64_t>(classes_.size());
    config.pairs = options.pairs;
    if (config.positions == Positions::learned) config.max_length = options.segment;
    check_config(config, options);
    seed_for_weights(options);
    model_ = std::make_shared<nn::ClassifierImpl>(config);
    description_ = fmt::format("{} texts of {} classes ({}, vocabulary {}), {} to evaluate on; {} parameters",
                               grouped(train.labels.size()), classes_.size(), tokenizer_->kind(), tokenizer_->vocabulary(),
                               grouped(valid.labels.size()), grouped(static_cast<uint64_t>(model_->parameter_count())));
  }

  nn::ModelImpl& model() override { return *model_; }
  Objective objective() const override { return {.metric = "accuracy", .higher_is_better = true}; }
  int64_t batches_per_epoch() const override { return train_->steps_per_epoch(); }
  Fingerprints fingerprints() const override { return fingerprints_; }
  std::string describe() const override { return description_; }

  void save(const std::filesystem::path& directory) const override {
    tokenizer_->save(directory);
    save_classes(classes_, directory);
  }

  LossSum loss(int64_t index) override {
    model_->redraw(static_cast<uint64_t>(index));
    const auto batch = train_->at(index);
    if (batch.labels.numel() == 0) return no_rows();
    return label_loss(logits(batch), batch.labels, smoothing_, batch.ids.numel());
  }

  Metrics evaluate(const OnProgress& progress) override { return score(*valid_, progress); }
  Metrics test(const OnProgress& progress) override { return test_ ? score(*test_, progress) : Metrics{}; }

 private:
  static LabelledTexts read(const TrainOptions& options, const std::string& path) {
    LabelledTextFormat format{
        .text_column = static_cast<int>(options.text_column), .pairs = options.pairs, .header = options.header};
    format.set_label(options.label_column);
    return read_labelled_texts(path, format);
  }

  std::unique_ptr<LabelledTextBatches> batches(const TrainOptions& options, const LabelledTexts& texts, const std::string& where,
                                               Fingerprint* fingerprint) const {
    Sequences firsts = encode_all(*tokenizer_, texts.texts), seconds = encode_all(*tokenizer_, texts.seconds);
    std::vector<int64_t> labels = class_ids(texts.labels, classes_, where);
    if (fingerprint != nullptr) {
      fingerprint->add(labels);
      for (const auto& ids : firsts) fingerprint->add(ids);
      for (const auto& ids : seconds) fingerprint->add(ids);
    }
    return std::make_unique<LabelledTextBatches>(
        std::move(firsts), std::move(seconds), std::move(labels),
        BatchOptions{.batch = options.batch, .longest = options.segment, .seed = options.seed}, shard_of(options));
  }

  Tensor logits(const LabelledTextBatches::Batch& batch) {
    return batch.second.defined() ? model_->forward(batch.ids, batch.second) : model_->forward(batch.ids);
  }

  Metrics score(const LabelledTextBatches& data, const OnProgress& progress) {
    return label_metrics(score_in_parts(*model_, data.size(), kScoredAtOnce, progress, [&](int64_t begin, int64_t end) {
      const auto batch = data.range(begin, end);
      return score_labels(logits(batch), batch.labels);
    }));
  }

  double smoothing_;
  std::vector<std::string> classes_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<LabelledTextBatches> train_, valid_, test_;
  std::shared_ptr<nn::ClassifierImpl> model_;
  Fingerprints fingerprints_;
  std::string description_;
};

}  // namespace

std::unique_ptr<TrainingTask> make_classify_task(TrainOptions& options, bool goes_on) {
  return std::make_unique<ClassifyTask>(options, goes_on);
}

}  // namespace raffia::internal::train
