// Translators: sentences that are aligned by line.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/check.h"
#include "io/data/bleu.h"
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

constexpr int64_t kPart = 32;  // pairs scored at once

class TranslateTask : public TrainingTask {
 public:
  TranslateTask(TrainOptions& options, bool goes_on) : smoothing_(options.label_smoothing) {
    require(!options.data.empty(), "--data is missing: the common prefix of both files (DATA.{}, DATA.{})", options.source,
            options.target);
    ParallelText train = read(options, options.data), valid;
    if (options.valid.empty()) {
      std::tie(train, valid) = split_off(train, options.valid_share);
    } else {
      valid = read(options, options.valid);
    }
    require(!valid.sources.empty(), "--data: {} has too few pairs to keep some for evaluation; use --valid", options.data);
    std::vector<std::string_view> texts(train.sources.begin(), train.sources.end());
    texts.insert(texts.end(), train.targets.begin(), train.targets.end());
    tokenizer_ = task_tokenizer(options, goes_on, texts);

    ModelConfig config = model_config(options);
    Fingerprint data;
    train_ = batches(options, train, options.segment, &data);
    // Evaluations use all pairs, as `raffia eval` does. Only learned positions limit their length.
    const int64_t longest_scored = config.positions == Positions::learned ? options.segment : 0;
    valid_ = {.text = std::move(valid)};
    valid_.batches = batches(options, valid_.text, longest_scored, &data);
    if (!options.test.empty()) {
      test_ = {.text = read(options, options.test)};
      test_.batches = batches(options, test_.text, longest_scored, nullptr);
    }
    fingerprints_ = {.tokenizer = tokenizer_->fingerprint(), .data = data.value()};

    config.vocabulary = tokenizer_->vocabulary();
    if (config.positions == Positions::learned) config.max_length = options.segment + 1;
    check_config(config, options);
    seed_for_weights(options);
    model_ = std::make_shared<nn::TranslatorImpl>(config);
    description_ = fmt::format("{} pairs ({}, vocabulary {}), {} to evaluate on; {} parameters",
                               grouped(static_cast<uint64_t>(train_->size())), tokenizer_->kind(), tokenizer_->vocabulary(),
                               grouped(static_cast<uint64_t>(valid_.batches->size())),
                               grouped(static_cast<uint64_t>(model_->parameter_count())));
    const size_t all = train.sources.size(), kept = static_cast<size_t>(train_->size());
    if (kept < all) {
      description_ += fmt::format(
          "\nnote: {} of {} pairs are longer than --segment {} tokens and were skipped: a larger --segment keeps them",
          grouped(all - kept), grouped(all), options.segment);
    }
  }

  nn::ModelImpl& model() override { return *model_; }
  Objective objective() const override { return {.metric = "nll"}; }
  int64_t batches_per_epoch() const override { return train_->steps_per_epoch(); }
  Fingerprints fingerprints() const override { return fingerprints_; }
  void save(const std::filesystem::path& directory) const override { tokenizer_->save(directory); }
  std::string describe() const override { return description_; }

  LossSum loss(int64_t index) override {
    model_->redraw(static_cast<uint64_t>(index));
    const auto batch = train_->at(index);
    if (batch.source.numel() == 0) return no_rows();
    return loss_of(batch, smoothing_);
  }

  Metrics evaluate(const OnProgress& progress) override { return score(valid_, progress); }
  Metrics test(const OnProgress& progress) override { return test_.batches ? score(test_, progress) : Metrics{}; }

 private:
  struct Scored {
    ParallelText text = {};
    std::unique_ptr<PairBatches> batches = {};
  };

  static ParallelText read(const TrainOptions& options, const std::string& prefix) {
    return read_parallel_text(prefix, options.source, options.target);
  }

  static std::pair<ParallelText, ParallelText> split_off(const ParallelText& all, double share) {
    std::pair<ParallelText, ParallelText> parts;
    for (size_t i = 0; i < all.sources.size(); ++i) {
      ParallelText& part = is_held_out(i, share) ? parts.second : parts.first;
      part.sources.push_back(all.sources[i]);
      part.targets.push_back(all.targets[i]);
    }
    return parts;
  }

  // longest: maximum length of the sentences that are kept, in tokens; 0: no limit.
  std::unique_ptr<PairBatches> batches(const TrainOptions& options, const ParallelText& text, int64_t longest,
                                       Fingerprint* fingerprint) const {
    Sequences sources = encode_all(*tokenizer_, text.sources), targets = encode_all(*tokenizer_, text.targets);
    for (size_t i = 0; fingerprint != nullptr && i < sources.size(); ++i) {
      fingerprint->add(sources[i]);
      fingerprint->add(targets[i]);
    }
    return std::make_unique<PairBatches>(std::move(sources), std::move(targets),
                                         BatchOptions{.batch = options.batch, .longest = longest, .seed = options.seed},
                                         shard_of(options));
  }

  LossSum loss_of(const PairBatches::Batch& batch, double smoothing) {
    return {.sum = model_->loss(batch.source, batch.target, batch.expected, smoothing).sum,
            .count = batch.expected.ne(kIgnore).sum().item<int64_t>(),
            .tokens = batch.source.numel() + batch.target.numel()};
  }

  // BLEU is that of all pairs, as `raffia eval` prints it.
  Metrics score(const Scored& data, const OnProgress& progress) {
    const EvaluationMode evaluation(*model_);
    NllScore nll;
    for (int64_t begin = 0; begin < data.batches->size(); begin += kPart) {
      const LossSum part = loss_of(data.batches->range(begin, std::min(data.batches->size(), begin + kPart)), 0);
      nll += {.nll = part.sum.item<double>(), .tokens = part.count};
      if (progress) progress(0, data.batches->size());  // translations, which take most of the time, are counted
    }
    const Sequences sources = encode_all(*tokenizer_, data.text.sources);
    std::vector<std::string> translations;
    for (const auto& ids : translate_greedily(*model_, sources, {.progress = progress}))
      translations.push_back(tokenizer_->decode(ids));
    const Bleu bleu = corpus_bleu(translations, data.text.targets);
    return {{"nll", nll.per_token()}, {"perplexity", nll.perplexity()}, {"bleu", bleu.score}};
  }

  double smoothing_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<PairBatches> train_;
  Scored valid_, test_;
  std::shared_ptr<nn::TranslatorImpl> model_;
  Fingerprints fingerprints_;
  std::string description_;
};

}  // namespace

std::unique_ptr<TrainingTask> make_translate_task(TrainOptions& options, bool goes_on) {
  return std::make_unique<TranslateTask>(options, goes_on);
}

}  // namespace raffia::internal::train
