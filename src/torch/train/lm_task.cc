// Language models: predict the next token of a text.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/check.h"
#include "io/formats/text.h"
#include "raffia/error.h"
#include "raffia/tokenizer.h"
#include "torch/train/data.h"
#include "torch/train/distributed.h"
#include "torch/train/fingerprint.h"
#include "torch/train/init.h"
#include "torch/train/sequence_parallel.h"
#include "torch/train/task.h"
#include "torch/train/texts.h"

namespace raffia::internal::train {
namespace {

bool stateful_of(const TrainOptions& options, const ModelConfig& config) {
  if (options.stateful == "auto") {
    return options.parallel != "sequence" && can_carry(config) &&
           std::all_of(config.estimators.begin(), config.estimators.end(),
                       [](const Estimator& estimator) { return traits_of(estimator).carried_by_default; });
  }
  require(options.stateful == "true" || options.stateful == "false", "stateful: '{}' is unknown, expected true, false or auto",
          options.stateful);
  require(options.stateful == "false" || can_carry(config),
          "stateful: memory of estimator '{}' with positions {} cannot be carried from segment to segment: it grows or does not "
          "decay",
          options.estimator, name_of(config.positions));
  require(options.stateful == "false" || options.parallel != "sequence",
          "stateful: memory cannot be carried if sequences are split over ranks (--parallel sequence), expected false");
  return options.stateful == "true";
}

// While this object exists, the model reads whole sequences instead of the part of this rank.
class WholeSequences {
 public:
  WholeSequences(nn::LanguageModelImpl& model, const std::shared_ptr<SequenceParallel>& split) : model_(model), split_(split) {
    model_.split_sequence(nullptr);
  }
  ~WholeSequences() { model_.split_sequence(split_); }
  WholeSequences(const WholeSequences&) = delete;
  WholeSequences& operator=(const WholeSequences&) = delete;

 private:
  nn::LanguageModelImpl& model_;
  const std::shared_ptr<SequenceParallel>& split_;
};

class LmTask : public TrainingTask {
 public:
  LmTask(TrainOptions& options, bool goes_on) : smoothing_(options.label_smoothing) {
    const Texts texts = read_texts(options);
    tokenizer_ = task_tokenizer(options, goes_on, std::array{std::string_view(texts.train)});
    std::vector<int32_t> ids = encode_text(*tokenizer_, texts.train);
    valid_ = scored_text(*tokenizer_, texts.valid);
    if (!texts.test.empty()) test_ = scored_text(*tokenizer_, texts.test);
    Fingerprint data;
    data.add(ids);
    data.add(valid_.ids);
    fingerprints_ = {.tokenizer = tokenizer_->fingerprint(), .data = data.value()};

    const bool is_new = options.init.empty();
    ModelConfig config = is_new ? config_of_new(options) : config_of_start(options, goes_on);
    require(config.vocabulary >= tokenizer_->vocabulary(), "--init: the model has {} tokens, its tokenizer {}", config.vocabulary,
            tokenizer_->vocabulary());
    stateful_ = stateful_of(options, config);
    // A state that was folded with one random matrix cannot be read with another, and evaluation uses the stored one.
    if (options.pool < 0 && stateful_) config.pool = 0;
    options.stateful = stateful_ ? "true" : "false";
    check_config(config, options);

    const size_t size = ids.size();
    require(static_cast<int64_t>(size) > options.batch * options.segment,
            "--data: {} tokens are too few for batch {} x segment {}: use more text, or a smaller --batch or --segment",
            grouped(size), options.batch, options.segment);
    require(valid_.ids.size() >= 2, "--valid: the text to evaluate on has {} tokens, expected at least 2", valid_.ids.size());
    segment_ = options.segment;
    const Shard shard = shard_of(options);
    require(!stateful_ || options.batch % shard.world == 0,
            "--batch is {}, expected a multiple of the number of ranks, {} (memory is carried)", options.batch, shard.world);
    streams_ = std::make_unique<TokenStreams>(std::move(ids), options.batch, options.segment, shard);
    seed_for_weights(options);
    model_ = std::make_shared<nn::LanguageModelImpl>(config);
    if (!is_new) load_start(*model_, options, goes_on);
    if (options.parallel == "sequence" && options.group != nullptr && !options.group->alone()) {
      const int ranks = options.group->size();
      require(options.segment % ranks == 0, "--segment is {}, expected a multiple of the number of ranks, {}", options.segment,
              ranks);
      split_ = std::make_shared<SequenceParallel>(*options.group, options.segment / ranks);
      model_->split_sequence(split_);
    }
    description_ =
        fmt::format("{} tokens ({} of {}, vocabulary {}), {} to evaluate on; {} parameters; {} steps per epoch{}", grouped(size),
                    options.data, tokenizer_->kind(), tokenizer_->vocabulary(), grouped(valid_.ids.size()),
                    grouped(static_cast<uint64_t>(model_->parameter_count())), streams_->steps_per_epoch() / options.accumulate,
                    stateful_ ? "; memory carried between segments" : "");
  }

  nn::ModelImpl& model() override { return *model_; }
  Objective objective() const override { return {.metric = "nll"}; }
  int64_t batches_per_epoch() const override { return streams_->steps_per_epoch(); }
  Fingerprints fingerprints() const override { return fingerprints_; }
  void save(const std::filesystem::path& directory) const override { tokenizer_->save(directory); }
  std::string describe() const override { return description_; }

  LossSum loss(int64_t index) override {
    auto batch = streams_->at(index);
    if (split_ != nullptr) {
      batch.input = split_->slice(batch.input).contiguous();
      batch.target = split_->slice(batch.target).contiguous();
    }
    Tensor hidden;
    if (stateful_) {
      if (batch.first_of_epoch) {
        state_.clear();
        model_->redraw(static_cast<uint64_t>(index / batches_per_epoch()));
      }
      hidden = model_->hidden(batch.input, &state_);
      for (nn::AttentionState& state : state_) state = state.detached();
    } else {
      model_->redraw(static_cast<uint64_t>(index));
      hidden = model_->hidden(batch.input);
    }
    return {
        .sum = model_->loss(hidden, batch.target, smoothing_).sum, .count = batch.target.numel(), .tokens = batch.target.numel()};
  }

  Metrics evaluate(const OnProgress& progress) override { return metrics(valid_, progress); }
  Metrics test(const OnProgress& progress) override { return test_.ids.empty() ? Metrics{} : metrics(test_, progress); }

  NamedTensors carried() const override {
    NamedTensors tensors;
    for (size_t i = 0; i < state_.size(); ++i) {
      const nn::AttentionState& state = state_[i];
      const std::pair<const char*, const Tensor*> parts[] = {
          {"memory", &state.memory}, {"keys", &state.keys}, {"values", &state.values}, {"tail", &state.tail}};
      for (const auto& [name, tensor] : parts) {
        if (tensor->defined()) tensors.emplace_back(fmt::format("{}.{}", i, name), *tensor);
      }
      tensors.emplace_back(fmt::format("{}.position", i), torch::tensor({state.position}, torch::kLong));
    }
    return tensors;
  }

  void set_carried(const NamedTensors& tensors, std::string_view where) override {
    state_.clear();
    for (const auto& [name, tensor] : tensors) {
      size_t layer = 0;
      const auto [dot, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
      require(error == std::errc() && layer < model_->attentions().size() && *dot == '.',
              "carried memory: \"{}\" belongs to none of {} layers", name, model_->attentions().size());
      if (state_.size() <= layer) state_.resize(layer + 1);
      nn::AttentionState& state = state_[layer];
      const std::string part = dot + 1;
      // Infinities are sound in some parts of a memory: the logarithm of a weight of 0, for example.
      if (part == "memory") {
        require_no_nan(tensor, name, where);
      } else {
        require_finite(tensor, name, where);
      }
      if (part == "memory") state.memory = tensor;
      if (part == "keys") state.keys = tensor;
      if (part == "values") state.values = tensor;
      if (part == "tail") state.tail = tensor;
      if (part == "position") state.position = tensor.item<int64_t>();
    }
  }

 private:
  ModelConfig config_of_new(const TrainOptions& options) const {
    ModelConfig config = model_config(options);
    config.vocabulary = tokenizer_->vocabulary();
    if (config.positions == Positions::learned)
      config.max_length = options.max_length == 0 ? options.segment : options.max_length;
    return config;
  }

  // One process evaluates, on whole sequences.
  Metrics metrics(const ScoredText& text, const OnProgress& progress) {
    // Carried memory works with any number of tokens per call; longer calls are faster.
    const int64_t segment = stateful_ ? std::max<int64_t>(segment_, 1024) : segment_;
    const WholeSequences whole(*model_, split_);
    const NllScore score = score_lm(*model_, text.ids, {.segment = segment, .carried = stateful_, .progress = progress});
    Metrics metrics = {{"nll", score.per_token()}, {"perplexity", score.perplexity()}};
    // Text with very few spaces has very few words: the perplexity per word is then meaningless and may be infinite.
    const double per_word = score.word_perplexity(text.facts);
    if (std::isfinite(per_word)) metrics.emplace_back("word_perplexity", per_word);
    metrics.emplace_back("bits_per_byte", score.bits_per_byte(text.facts));
    return metrics;
  }

  double smoothing_;
  int64_t segment_ = 0;
  bool stateful_ = false;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<TokenStreams> streams_;
  ScoredText valid_, test_;
  std::shared_ptr<nn::LanguageModelImpl> model_;
  std::shared_ptr<SequenceParallel> split_;  // null: whole sequences
  nn::ModelState state_;
  Fingerprints fingerprints_;
  std::string description_;
};

}  // namespace

std::unique_ptr<TrainingTask> make_lm_task(TrainOptions& options, bool goes_on) {
  return std::make_unique<LmTask>(options, goes_on);
}

}  // namespace raffia::internal::train
