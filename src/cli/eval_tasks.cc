// raffia eval of translators and classifiers.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/eval.h"
#include "cli/shared/command.h"
#include "cli/shared/table.h"
#include "cli/shared/unknown_tokens.h"
#include "core/message.h"
#include "io/data/bleu.h"
#include "io/data/datasets.h"
#include "model/model_directory.h"
#include "raffia/error.h"
#include "raffia/tokenizer.h"
#include "torch/libtorch.h"
#include "torch/nn/models.h"
#include "torch/train/data.h"
#include "torch/train/evaluate.h"
#include "torch/train/image_files.h"
#include "torch/train/labels.h"
#include "torch/train/texts.h"

namespace raffia::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string human_seconds_of(const Json& value) { return human_seconds(value.get<double>()); }

struct TranslationRecord {
  Bleu bleu;
  int64_t sentences = 0;
  double seconds = 0;
};

std::string human_score(const Json& value) { return fmt::format("{:.2f}", value.get<double>()); }

const RecordColumn<TranslationRecord> kTranslationColumns[] = {
    {"task", [](const TranslationRecord&) { return json_of(name_of(Task::translate)); }},
    {"sentences", [](const TranslationRecord& r) { return json_of(r.sentences); }, Style::key},
    {"bleu", [](const TranslationRecord& r) { return json_of(r.bleu.score); }, Style::measured, human_score},
    {"brevity_penalty", [](const TranslationRecord& r) { return json_of(r.bleu.brevity_penalty); }, Style::measured, human_score},
    {"signature", [](const TranslationRecord&) { return json_of(bleu_signature()); }},
    {"seconds", [](const TranslationRecord& r) { return json_of(r.seconds); }, Style::measured, human_seconds_of},
};

struct LabelRecord {
  Task task = Task::classify;
  train::LabelScore score;
  double seconds = 0;
};

const RecordColumn<LabelRecord> kLabelColumns[] = {
    {"task", [](const LabelRecord& r) { return json_of(name_of(r.task)); }},
    {"examples", [](const LabelRecord& r) { return json_of(r.score.count); }, Style::key},
    {"accuracy", [](const LabelRecord& r) { return json_of(r.score.accuracy()); }, Style::measured,
     [](const Json& value) { return fmt::format("{:.2f}%", 100 * value.get<double>()); }},
    {"nll", [](const LabelRecord& r) { return json_of(r.score.per_example()); }, Style::measured,
     [](const Json& value) { return fmt::format("{:.4f}", value.get<double>()); }},
    {"seconds", [](const LabelRecord& r) { return json_of(r.seconds); }, Style::measured, human_seconds_of},
};

// Encodes parts of the same data, and says what is not in the vocabulary.
std::vector<train::Sequences> encode_and_report(const Tokenizer& tokenizer, const std::filesystem::path& data,
                                                std::initializer_list<std::span<const std::string>> parts) {
  UnknownTokens unknown(tokenizer);
  std::vector<train::Sequences> encoded;
  for (const std::span<const std::string> texts : parts) {
    encoded.push_back(train::encode_all(tokenizer, texts));
    for (size_t i = 0; i < texts.size(); ++i) unknown.add(texts[i], encoded.back()[i]);
  }
  if (const std::string summary = unknown.summary(); !summary.empty()) say("{}: {}", data.string(), summary);
  return encoded;
}

// Examples 0..count in parts of --batch, in evaluation mode.
void evaluate_labels(const EvalFlags& flags, nn::ModelImpl& model, int64_t count,
                     const std::function<train::LabelScore(int64_t begin, int64_t end)>& score) {
  const auto start = Clock::now();
  LabelRecord record{.task = model.config().task};
  {
    PartsProgress progress(1, count);
    record.score = train::score_in_parts(model, count, flags.batch, progress.begin("examples"), score);
  }
  require_finite_nll(record.score.per_example());
  record.seconds = seconds_since(start);
  print_table(kLabelColumns, std::span<const LabelRecord>(&record, 1), flags.output.format(), std::cout);
}

}  // namespace

void evaluate_translator(const EvalFlags& flags, const ModelConfig& config) {
  const TrainedWith trained = trained_with(flags.model);
  const ParallelText text = read_parallel_text(flags.data.string(), flags.source.empty() ? trained.source : flags.source,
                                               flags.target.empty() ? trained.target : flags.target);
  nn::TranslatorImpl model(config);
  nn::load_weights(model, flags.model / kWeightsFile);
  const auto tokenizer = load_tokenizer(flags.model);
  const train::Sequences sources = encode_and_report(*tokenizer, flags.data, {text.sources}).front();

  const auto start = Clock::now();
  TranslationRecord record{.sentences = static_cast<int64_t>(sources.size())};
  train::Sequences found;
  {
    PartsProgress progress(1, record.sentences);
    found = train::translate_greedily(model, sources, {.batch = flags.batch, .progress = progress.begin("sentences")});
  }
  std::vector<std::string> translations;
  for (const auto& ids : found) translations.push_back(tokenizer->decode(ids));
  record.bleu = corpus_bleu(translations, text.targets);
  record.seconds = seconds_since(start);
  print_table(kTranslationColumns, std::span<const TranslationRecord>(&record, 1), flags.output.format(), std::cout);
}

void evaluate_classifier(const EvalFlags& flags, const ModelConfig& config) {
  const TrainedWith trained = trained_with(flags.model);
  LabelledTextFormat format{.text_column = static_cast<int>(flags.text_column.value_or(trained.text_column)),
                            .pairs = config.pairs,
                            .header = flags.header};
  try {
    format.set_label(flags.label_column.empty() ? trained.label_column : flags.label_column);
  } catch (const InvalidArgument& error) {
    throw UsageError(error.what());
  }
  const LabelledTexts texts = read_labelled_texts(flags.data, format);
  const auto tokenizer = load_tokenizer(flags.model);
  std::vector<train::Sequences> encoded = encode_and_report(*tokenizer, flags.data, {texts.texts, texts.seconds});
  const train::LabelledTextBatches batches(std::move(encoded[0]), std::move(encoded[1]),
                                           class_ids(texts.labels, load_classes(flags.model), flags.data.string()),
                                           {.longest = trained.segment});
  nn::ClassifierImpl model(config);
  nn::load_weights(model, flags.model / kWeightsFile);
  evaluate_labels(flags, model, batches.size(), [&](int64_t begin, int64_t end) {
    const auto batch = batches.range(begin, end);
    const at::Tensor logits = batch.second.defined() ? model.forward(batch.ids, batch.second) : model.forward(batch.ids);
    return train::score_labels(logits, batch.labels);
  });
}

void evaluate_images(const EvalFlags& flags, const ModelConfig& config) {
  const bool has_names = std::filesystem::exists(flags.model / kClassesFile);
  LabelledImages images =
      train::read_images(flags.data, true, has_names ? load_classes(flags.model) : std::vector<std::string>());
  if (images.count == 0) {
    throw Error(
        fmt::format("{}: no images to test with, expected t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, or test_batch.bin",
                    flags.data.string()));
  }
  if (images.size != config.image_size || images.channels != config.channels) {
    throw Error(fmt::format("{}: images are {} x {} with {} channels, the model expects {} x {} with {}", flags.data.string(),
                            images.size, images.size, images.channels, config.image_size, config.image_size, config.channels));
  }
  const train::ImageBatches batches(std::move(images));
  nn::ImageClassifierImpl model(config);
  nn::load_weights(model, flags.model / kWeightsFile);
  evaluate_labels(flags, model, batches.size(), [&](int64_t begin, int64_t end) {
    const auto batch = batches.range(begin, end);
    return train::score_labels(model.forward(batch.pixels), batch.labels);
  });
}

}  // namespace raffia::cli
