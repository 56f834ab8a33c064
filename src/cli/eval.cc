// raffia eval: how good a trained model is on data that it was not trained on.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/table.h"
#include "cli/shared/command.h"
#include "cli/shared/flags.h"
#include "cli/shared/progress.h"
#include "cli/shared/unknown_tokens.h"
#include "core/message.h"
#include "io/data/bleu.h"
#include "io/data/datasets.h"
#include "io/formats/json_fields.h"
#include "io/formats/text.h"
#include "model/model_directory.h"
#include "raffia/error.h"
#include "raffia/model_config.h"
#include "raffia/tokenizer.h"
#include "torch/libtorch.h"
#include "torch/nn/models.h"
#include "torch/tensor_file.h"
#include "torch/train/checkpoint.h"
#include "torch/train/data.h"
#include "torch/train/evaluate.h"
#include "torch/train/image_files.h"
#include "torch/train/labels.h"
#include "torch/train/texts.h"

namespace raffia::internal::cli {
namespace {

using bench::json_of;
using bench::Style;

enum class Memory : uint8_t { reset, carried };

constexpr Named<Memory> kMemories[] = {{"reset", Memory::reset}, {"carried", Memory::carried}};

struct EvalFlags {
  std::filesystem::path model, data;
  int64_t batch = 8, threads = 0;
  FormatFlags output;

  // Language models.
  std::vector<int64_t> segments = {};  // none: as trained
  std::vector<Memory> memory = {};     // none: both, where the memory of the model can be carried
  std::filesystem::path dump;
  std::optional<int64_t> layer;

  // Translators: endings of both files; none: as trained.
  std::string source, target;

  // Classifiers of texts; none: as trained.
  std::string label_column;
  std::optional<int64_t> text_column;
  bool header = false;
};

// The training options saved beside the model; defaults if there is no such file.
struct TrainedWith {
  int64_t segment = 256;
  std::string source = "en", target = "de";
  std::string label_column = "1";
  int64_t text_column = 0;  // 0: the one after the label
};

TrainedWith trained_with(const std::filesystem::path& model) {
  TrainedWith trained;
  const std::filesystem::path path = model / "trainer" / "options.json";
  if (!std::filesystem::exists(path)) return trained;
  JsonFields options = JsonFields::parse(read_file(path, train::kMaxBytesOfRunJson), path.string());
  if (options.has("segment")) trained.segment = options.integer("segment", 1, INT64_MAX);
  if (options.has("source")) trained.source = options.string("source");
  if (options.has("target")) trained.target = options.string("target");
  if (options.has("label-column")) trained.label_column = options.string("label-column");
  if (options.has("text-column")) trained.text_column = options.integer("text-column", 0, INT64_MAX);
  return trained;
}

// Throws Error if the loss is not finite, which can happen even with finite weights.
void require_finite_nll(double nll) {
  if (std::isfinite(nll)) return;
  throw Error(
      fmt::format("the negative log-likelihood is {}, expected a finite number: the weights of the model are damaged", nll));
}

// A progress bar over several parts, each of which counts from 0.
class PartsProgress {
 public:
  PartsProgress(int64_t parts, int64_t each) : bar_(static_cast<double>(parts * each)) {}

  train::OnProgress begin(const std::string& what) {
    bar_.begin(what);
    done_ = 0;
    return [this](int64_t done, int64_t) {
      bar_.advance(static_cast<double>(done - done_));
      done_ = done;
    };
  }

 private:
  Progress bar_;
  int64_t done_ = 0;
};

// Language models: likelihoods of a text, and queries, keys and values for raffia approx.

using at::Tensor;

struct LmRecord {
  std::string memory;
  int64_t segment = 0;
  train::TextFacts facts;
  train::NllScore score;
  double seconds = 0;
};

template <int kDigits>
std::string human_number(const Json& value) {
  return fmt::format("{:.{}f}", value.get<double>(), kDigits);
}

const bench::RecordColumn<LmRecord> kLmColumns[] = {
    {"task", [](const LmRecord&) { return json_of(name_of(Task::lm)); }},
    {"memory", [](const LmRecord& r) { return json_of(r.memory); }, Style::key},
    {"segment", [](const LmRecord& r) { return json_of(r.segment); }, Style::key},
    {"tokens", [](const LmRecord& r) { return json_of(r.facts.tokens); }},
    {"words", [](const LmRecord& r) { return json_of(r.facts.words); }},
    {"bytes", [](const LmRecord& r) { return json_of(r.facts.bytes); }},
    {"nll", [](const LmRecord& r) { return json_of(r.score.per_token()); }, Style::measured, human_number<4>},
    {"perplexity", [](const LmRecord& r) { return json_of(r.score.perplexity()); }, Style::measured, human_number<2>},
    {"word_perplexity", [](const LmRecord& r) { return json_of(r.score.word_perplexity(r.facts)); }, Style::measured,
     human_number<2>},
    {"bits_per_byte", [](const LmRecord& r) { return json_of(r.score.bits_per_byte(r.facts)); }, Style::measured,
     human_number<4>},
    {"seconds", [](const LmRecord& r) { return json_of(r.seconds); }, Style::measured, bench::human_time},
};

// A tensor that --dump-qkv wrote.
struct DumpRecord {
  std::string file;
  int64_t layer = 0;
  std::string tensor;
  std::vector<int64_t> shape;
};

const bench::RecordColumn<DumpRecord> kDumpColumns[] = {
    {"file", [](const DumpRecord& r) { return json_of(r.file); }},
    {"layer", [](const DumpRecord& r) { return json_of(r.layer); }, Style::key},
    {"tensor", [](const DumpRecord& r) { return json_of(r.tensor); }, Style::key},
    {"shape", [](const DumpRecord& r) { return json_of(r.shape); }, Style::key},
};

void check_ids(std::span<const int32_t> ids, const ModelConfig& config) {
  for (const int32_t id : ids) {
    if (id >= config.vocabulary)
      throw Error(fmt::format("the tokenizer gives token {}, but the vocabulary of the model is {}", id, config.vocabulary));
  }
}

// Segments that are asked for, or the one that the model was trained with.
std::vector<int64_t> segments_of(const EvalFlags& flags) {
  if (!flags.segments.empty()) return flags.segments;
  return {trained_with(flags.model).segment};
}

std::vector<Memory> memory_of(const EvalFlags& flags, const ModelConfig& config) {
  const bool can_carry = train::can_carry(config);
  if (flags.memory.empty()) return can_carry ? std::vector{Memory::reset, Memory::carried} : std::vector{Memory::reset};
  for (const Memory memory : flags.memory) {
    if (memory == Memory::carried && !can_carry)
      throw UsageError(fmt::format("--memory: the memory of '{}' with positions {} cannot be carried, expected reset",
                                   to_string(config.estimator(0)), name_of(config.positions)));
  }
  return flags.memory;
}

// Tokens that a carried memory takes per call: a matter of speed.
constexpr int64_t kCarriedSegment = 512;

void score_text(const EvalFlags& flags, nn::LanguageModelImpl& model, const train::ScoredText& text) {
  struct Part {
    Memory memory;
    int64_t segment;
  };
  std::vector<Part> parts;
  for (const Memory memory : memory_of(flags, model.config())) {
    if (memory == Memory::carried) {
      parts.push_back({memory, kCarriedSegment});
      continue;
    }
    for (const int64_t segment : segments_of(flags)) parts.push_back({memory, segment});
  }
  std::vector<LmRecord> records;
  {
    PartsProgress progress(static_cast<int64_t>(parts.size()), text.facts.tokens);
    for (const auto& [memory, segment] : parts) {
      const bool carried = memory == Memory::carried;
      const auto start = std::chrono::steady_clock::now();
      LmRecord record{.memory = std::string(name_in(kMemories, memory)), .segment = carried ? 0 : segment, .facts = text.facts};
      record.score = train::score_lm(
          model, text.ids,
          {.segment = segment,
           .carried = carried,
           .batch = flags.batch,
           .progress = progress.begin(carried ? "memory carried through the text" : fmt::format("segments of {}", segment))});
      require_finite_nll(record.score.per_token());
      record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      records.push_back(record);
    }
  }
  print_table(kLmColumns, std::span<const LmRecord>(records), flags.output.format(), std::cout);
}

// q, k and v of the first segment of the text, as layer 0, 1, .. or --layer saw them, [B, T, H, d].
void dump_qkv(const EvalFlags& flags, nn::LanguageModelImpl& model, std::span<const int32_t> ids) {
  const auto attentions = model.attentions();
  const auto layers = static_cast<int64_t>(attentions.size());
  if (flags.layer && (*flags.layer < 0 || *flags.layer >= layers))
    throw UsageError(fmt::format("--layer: there is no layer {}, expected 0 to {}", *flags.layer, layers - 1));
  const auto segment = std::min(segments_of(flags).front(), static_cast<int64_t>(ids.size()));
  const train::EvaluationMode evaluation(model);
  for (const auto& attention : attentions) attention->keep(true);
  model.hidden(torch::tensor(std::vector<int64_t>(ids.begin(), ids.begin() + segment)).unsqueeze(0));

  NamedTensors tensors;
  std::vector<DumpRecord> records;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (flags.layer && layer != *flags.layer) continue;
    const auto& kept = attentions[static_cast<size_t>(layer)]->kept();
    const std::pair<const char*, const Tensor*> parts[] = {{"q", &kept.q}, {"k", &kept.k}, {"v", &kept.v}};
    for (const auto& [name, tensor] : parts) {
      tensors.emplace_back(flags.layer ? name : fmt::format("layers.{}.{}", layer, name), tensor->to(at::kFloat));
      records.push_back({flags.dump.string(), layer, tensors.back().first, tensor->sizes().vec()});
    }
  }
  save_tensors(flags.dump, tensors);
  // The table would repeat the message: it is left out, unless a program is to read it.
  if (const bench::Format format = flags.output.format(); format != bench::Format::markdown) {
    print_table(kDumpColumns, std::span<const DumpRecord>(records), format, std::cout);
  }
  say("{}: q, k and v of {} tokens, for raffia approx --causal --input {}{}", flags.dump.string(), segment, flags.dump.string(),
      flags.layer ? "" : " --names layers.0.q,layers.0.k,layers.0.v");
}

void evaluate_lm(const EvalFlags& flags, const ModelConfig& config) {
  if (flags.layer && flags.dump.empty()) throw UsageError("--layer: is for --dump-qkv, which is not given");
  if (is_file_of_model(flags.dump, flags.model)) {
    throw UsageError(fmt::format("--dump-qkv: {} is a file of a model: expected another name", flags.dump.string()));
  }
  if (is_same_file(flags.dump, flags.data)) {
    throw UsageError(fmt::format("--dump-qkv: {} is the data (--data): expected another name", flags.dump.string()));
  }
  nn::LanguageModelImpl model(config);
  nn::load_weights(model, flags.model / kWeightsFile);
  const auto tokenizer = load_tokenizer(flags.model);
  const std::string read = read_for(tokenizer->kind(), flags.data);
  const train::ScoredText text = train::scored_text(*tokenizer, read);
  check_ids(text.ids, config);
  UnknownTokens unknown(*tokenizer);
  unknown.add(read, text.ids);
  if (const std::string summary = unknown.summary(); !summary.empty()) say("{}: {}", flags.data.string(), summary);
  if (!flags.dump.empty()) return dump_qkv(flags, model, text.ids);
  score_text(flags, model, text);
}

// Translators and classifiers.

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct TranslationRecord {
  Bleu bleu;
  int64_t sentences = 0;
  double seconds = 0;
};

std::string human_score(const Json& value) { return fmt::format("{:.2f}", value.get<double>()); }

const bench::RecordColumn<TranslationRecord> kTranslationColumns[] = {
    {"task", [](const TranslationRecord&) { return json_of(name_of(Task::translate)); }},
    {"sentences", [](const TranslationRecord& r) { return json_of(r.sentences); }, Style::key},
    {"bleu", [](const TranslationRecord& r) { return json_of(r.bleu.score); }, Style::measured, human_score},
    {"brevity_penalty", [](const TranslationRecord& r) { return json_of(r.bleu.brevity_penalty); }, Style::measured, human_score},
    {"signature", [](const TranslationRecord&) { return json_of(bleu_signature()); }},
    {"seconds", [](const TranslationRecord& r) { return json_of(r.seconds); }, Style::measured, bench::human_time},
};

struct LabelRecord {
  Task task = Task::classify;
  train::LabelScore score;
  double seconds = 0;
};

const bench::RecordColumn<LabelRecord> kLabelColumns[] = {
    {"task", [](const LabelRecord& r) { return json_of(name_of(r.task)); }},
    {"examples", [](const LabelRecord& r) { return json_of(r.score.count); }, Style::key},
    {"accuracy", [](const LabelRecord& r) { return json_of(r.score.accuracy()); }, Style::measured,
     [](const Json& value) { return fmt::format("{:.2f}%", 100 * value.get<double>()); }},
    {"nll", [](const LabelRecord& r) { return json_of(r.score.per_example()); }, Style::measured,
     [](const Json& value) { return fmt::format("{:.4f}", value.get<double>()); }},
    {"seconds", [](const LabelRecord& r) { return json_of(r.seconds); }, Style::measured, bench::human_time},
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

void run(const EvalFlags& flags) {
  if (flags.threads > 0) at::set_num_threads(static_cast<int>(flags.threads));
  const ModelConfig config = load_model_config(flags.model / kConfigFile);
  switch (config.task) {
    case Task::lm:
      return evaluate_lm(flags, config);
    case Task::translate:
      return evaluate_translator(flags, config);
    case Task::classify:
      return evaluate_classifier(flags, config);
    case Task::image:
      return evaluate_images(flags, config);
  }
}

}  // namespace

Run add_eval(CommandLine& command) {
  const auto flags = std::make_shared<EvalFlags>();
  command.add("model", flags->model, "Directory of the model").type_name("DIR").required();
  command
      .add("--data", flags->data,
           "Data to evaluate on: a text; the prefix of two files of sentences; a file of lines label TAB text; a directory "
           "of images")
      .type_name("PATH")
      .required();
  add_positive(command, "--batch", flags->batch, "Segments, sentences, texts or images per batch");
  add_positive(command, "--threads", flags->threads, "Threads (default: chosen by torch)", kMaxThreads);
  add_positives(command, "--segments,--segment", flags->segments,
                "lm: tokens per segment, each read from empty memory; one evaluation per length (default: as trained)");
  add_names(command, "--memory", kMemories, flags->memory,
            "lm: memory reset at the start of each segment, or carried through the whole text (default: both, if the model can)");
  command
      .add("--dump-qkv", flags->dump,
           "lm: write queries, keys and values of the first segment to a .safetensors file for raffia approx, and stop")
      .type_name("FILE");
  command
      .add_parsed(
          "--layer", [flags](const std::string& text) { flags->layer = parse_integer("--layer", text); },
          "With --dump-qkv: only this layer, counted from 0, as q, k and v (default: all layers, as layers.0.q and so on)")
      .type_name("N");
  command.add("--source", flags->source, "translate: suffix of the source file (default: as trained)").type_name("TEXT");
  command.add("--target", flags->target, "translate: suffix of the target file (default: as trained)").type_name("TEXT");
  command
      .add("--label-column", flags->label_column,
           "classify: column of the label, a number from 1 or a name in the first line (default: as trained)")
      .type_name("TEXT");
  add_positive(command, "--text-column", flags->text_column, "classify: column of the text (default: as trained)");
  command.add_switch("--header", flags->header, "classify: skip the first line, which has column names");
  add_format_flags(command, flags->output);
  return [flags] { run(*flags); };
}

}  // namespace raffia::internal::cli
