#include "torch/train/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "core/check.h"
#include "raffia/error.h"

namespace raffia::internal::train {
namespace {

using O = TrainOptions;
constexpr auto kSilent = OnResume::silent;
constexpr auto kNoted = OnResume::noted;
constexpr unsigned kLm = only({Task::lm}), kTranslate = only({Task::translate}), kClassify = only({Task::classify}),
                   kImage = only({Task::image}), kMadeUp = only(kRecall);
constexpr unsigned kText = kLm | kTranslate | kClassify, kFiles = kText | kImage;
constexpr bool kByRank = true;
constexpr double kMaxLayers = 1000, kMaxWidth = 1 << 20, kMaxSteps = 1e12;

const OptionInfo kTable[] = {
    {"data", &O::data, "Text to train on", 0, 0, kSilent, kLm, kByRank},
    {"data", &O::data, "Common prefix of the two files to train on: DATA.en and DATA.de (or .gz, .xz)", 0, 0, kSilent, kTranslate,
     kByRank},
    {"data", &O::data, "File of labelled texts to train on", 0, 0, kSilent, kClassify, kByRank},
    {"data", &O::data, "Directory of images to train on", 0, 0, kSilent, kImage, kByRank},
    {"valid", &O::valid, "Text to evaluate on (default: the last 5% of --data, which are not used for training)", 0, 0, kSilent,
     kLm, kByRank},
    {"valid", &O::valid,
     "Common prefix of the two files to evaluate on (default: every 20th pair of --data, which is not used for training)", 0, 0,
     kSilent, kTranslate, kByRank},
    {"valid", &O::valid, "File to evaluate on (default: every 20th example of --data, which is not used for training)", 0, 0,
     kSilent, kClassify, kByRank},
    {"valid", &O::valid,
     "Directory of images to evaluate on (default: every 20th training image of --data, which is not used for training)", 0, 0,
     kSilent, kImage, kByRank},
    {"test", &O::test, "Text to evaluate on once, at the end", 0, 0, kSilent, kLm, kByRank},
    {"test", &O::test, "Common prefix of two files to evaluate on once, at the end", 0, 0, kSilent, kTranslate, kByRank},
    {"test", &O::test, "File of labelled texts to evaluate on once, at the end", 0, 0, kSilent, kClassify, kByRank},
    {"test", &O::test, "Directory with test files to evaluate on once, at the end (default: --data)", 0, 0, kSilent, kImage,
     kByRank},
    {"out", &O::out, "Model directory to write", 0, 0, kSilent, kEveryKind, kByRank},
    {"init", &O::init, "Model directory to start from: its weights, sizes, estimators and tokenizer", 0, 0, kSilent, kLm,
     kByRank},
    {"valid-share", &O::valid_share, "Fraction of --data, at its end, that is kept for evaluation", 1e-6, 0.9, OnResume::same,
     kLm},
    {"valid-share", &O::valid_share, "Fraction of --data, spread evenly, that is kept for evaluation", 1e-6, 0.9, OnResume::same,
     kTranslate | kClassify | kImage},
    {"tokenizer", &O::tokenizer,
     "byte, char, word, word:N, sp:N (SentencePiece of N pieces); auto: sp:4000 above 1 MB of text, char below", 0, 0,
     OnResume::same, kText},

    {"estimator", &O::estimator, "Attention of all layers, or one per layer separated by ';': rfa_gate, hybrid, softmax, ..."},
    {"cross", &O::cross, "Cross attention of the decoder: softmax, rfa, lara, ...", 0, 0, OnResume::same, kTranslate},
    {"positions", &O::positions, "none, rotary or learned; auto: none if no layer wants them (as rfa_gate), else rotary"},
    {"layers", &O::layers, "Layers", 1, kMaxLayers},
    {"width", &O::width, "Width of the model", 1, kMaxWidth},
    {"heads", &O::heads, "Attention heads, a divisor of the width", 1, kMaxWidth},
    {"kv-heads", &O::kv_heads, "Key/value heads, a divisor of --heads; 0: the same as --heads", 0, kMaxWidth},
    {"ffn", &O::ffn, "Inner width of the feed-forward layer; 0: 4 times the width", 0, kMaxWidth},
    {"feed-forward", &O::feed_forward, "Feed-forward layer: gelu, or swiglu (with a gate)"},
    {"norm", &O::norm, "Normalisation: layer, or rms"},
    {"no-bias", &O::no_bias, "No biases in the linear layers of attention and feed-forward"},
    {"untied", &O::untied, "Separate output matrix, not tied to the embedding", 0, 0, OnResume::same, kLm | kTranslate},
    {"conv", &O::conv, "Width of a short causal convolution on q, k and v; 0: none", 0, 64},
    {"head-norm", &O::head_norm, "RMS norm of each head's output"},
    {"fixed-sigma", &O::fixed_sigma, "Do not train the scale sigma of random maps"},
    {"pool", &O::pool, "Number of random matrices that training picks from; 0: always the stored one; -1: 200, or 0 if stateful",
     -1, 1e6},
    {"span-min", &O::span_min, "Shortest initial span of a gate, in tokens; 0: default of the estimator"},
    {"span-max", &O::span_max, "Longest initial span of a gate, in tokens; 0: default of the estimator"},
    {"max-length", &O::max_length, "With --positions learned: number of positions; 0: the length of a segment", 0, 1e9},
    {"dropout", &O::dropout, "Dropout probability", 0, 0.99, kNoted},

    {"steps", &O::steps, "Optimiser steps; 0: from --epochs, or 1000", 0, kMaxSteps, kNoted},
    {"epochs", &O::epochs, "Passes over the data, instead of --steps", 0, kMaxSteps, kNoted},
    {"batch", &O::batch, "Sequences per step", 1, 1e6},
    {"segment", &O::segment, "Tokens per sequence", 1, 1e9, OnResume::same, kLm | kMadeUp},
    {"segment", &O::segment, "Maximum length of a sentence, in tokens; pairs with a longer one are skipped", 1, 1e9,
     OnResume::same, kTranslate},
    {"segment", &O::segment, "Maximum length of a text, in tokens; longer ones are truncated", 1, 1e9, OnResume::same, kClassify},
    {"accumulate", &O::accumulate, "Batches per step (gradient accumulation)", 1, 1e6},
    {"stateful", &O::stateful, "Carry the memory from segment to segment: true, false; auto: if the memory of every layer decays",
     0, 0, OnResume::same, kLm},
    {"lr", &O::lr, "Peak learning rate; 0: 3e-3, less for widths above 128", 0, 100, kNoted},
    {"warmup", &O::warmup, "Fraction of the steps for learning rate warmup", 0, 1, kNoted},
    {"final-lr", &O::final_lr, "Learning rate at the end of the cosine decay, as a fraction of --lr", 0, 1, kNoted},
    {"weight-decay", &O::weight_decay, "Weight decay of matrices (not of norms, biases, gates, scales)", 0, 100, kNoted},
    {"beta1", &O::beta1, "AdamW: decay of the mean of gradients", 0, 0.9999999, kNoted},
    {"beta2", &O::beta2, "AdamW: decay of the mean of squared gradients", 0, 0.9999999, kNoted},
    {"clip", &O::clip, "Maximum norm of the gradient; 0: no clipping", 0, 1e9, kNoted},
    {"label-smoothing", &O::label_smoothing, "Label smoothing: fraction of the target that is spread over all tokens", 0, 0.99,
     kNoted, kText | kImage},
    {"seed", &O::seed, "Seed of weights, random matrices, dropout and order of batches"},

    {"source", &O::source, "Suffix of the source files: en for DATA.en", 0, 0, OnResume::same, kTranslate},
    {"target", &O::target, "Suffix of the target files: de for DATA.de", 0, 0, OnResume::same, kTranslate},
    {"pairs", &O::pairs, "Two texts per label", 0, 0, OnResume::same, kClassify},
    {"header", &O::header, "The first line of the files has column names", 0, 0, OnResume::same, kClassify},
    {"label-column", &O::label_column, "Column of the label: a number from 1, or a name in the first line", 0, 0, OnResume::same,
     kClassify},
    {"text-column", &O::text_column, "Column of the text, counted from 1; 0: the one after the label, or 1 if the label is last",
     0, 1000, OnResume::same, kClassify},
    {"classes", &O::classes, "Number of classes; 0: taken from the data", 0, 1e6, OnResume::same, kClassify | kImage},
    {"patch", &O::patch, "Pixels per side of a patch", 1, 4096, OnResume::same, kImage},
    {"pairs", &O::recall_pairs, "Key-value pairs per sequence", 1, 1e6, OnResume::same, kMadeUp},
    {"queries", &O::recall_queries, "Queries per sequence", 1, 1e6, OnResume::same, kMadeUp},
    {"alphabet", &O::recall_alphabet, "Number of different keys, and of different values", 2, 1e6, OnResume::same, kMadeUp},
    {"distances", &O::recall_distances, "Distances from a pair to its query in tokens, a list", 0, 0, OnResume::same, kMadeUp},
    {"eval-distances", &O::recall_eval_distances, "Distances in evaluations in tokens, whose sequences are as long as needed", 0,
     0, OnResume::same, kMadeUp},

    {"eval-every", &O::eval_every, "Steps between evaluations; 0: a tenth of the run", 0, kMaxSteps, kSilent},
    {"checkpoint-every", &O::checkpoint_every, "Steps between checkpoints; 0: a tenth of the run", 0, kMaxSteps, kSilent},
    {"log-every", &O::log_every, "Steps between lines of log.jsonl", 1, kMaxSteps, kSilent},
    {"keep", &O::keep, "Number of checkpoints to keep", 1, 1e6, kSilent},
    {"patience", &O::patience, "Stop after this many evaluations without a better result; 0: never", 0, 1e9, kSilent},
    {"threads", &O::threads, "Threads; 0: one per idle core, at least half of the cores", 0, 1024, kSilent, kEveryKind, kByRank},
    {"parallel", &O::parallel,
     "What is divided among several processes: data (rows of batches) or sequence (tokens; needs rfa_gate)", 0, 0, kNoted, kLm},
    {"rank-timeout", &O::rank_timeout, "Seconds that processes wait for each other, including evaluations", 1, 1e6, kSilent},
};

template <typename Number>
bool parse_whole(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

template <typename Number>
void check_range(const OptionInfo& info, Number value) {
  if constexpr (std::is_same_v<Number, uint64_t>) return;
  const auto number = static_cast<double>(value);
  require(std::isfinite(number) && number >= info.min && number <= info.max, "{} is out of range, expected {} to {}", value,
          info.min, info.max);
}

// Of the values of an option, in messages.
template <typename Value>
constexpr const char* noun_of() {
  return std::is_same_v<Value, std::string> ? "a string"
         : std::is_same_v<Value, bool>      ? "true or false"
         : std::is_same_v<Value, double>    ? "a number"
         : std::is_same_v<Value, uint64_t>  ? "an integer from 0 to 2^64 - 1"
                                            : "an integer";
}

}  // namespace

std::string_view name_of(TrainKind kind) {
  return kind.data == DataSource::recall ? std::string_view("recall") : name_of(kind.task);
}

TrainOptions default_options(TrainKind kind) {
  TrainOptions options{.kind = kind};
  if (kind == kRecall) {
    options.batch = 32;
    options.segment = 512;
    options.width = 128;
    options.layers = 2;
    return options;
  }
  switch (kind.task) {
    case Task::lm:
      break;
    case Task::translate:
      options.batch = 64;
      options.segment = 128;
      options.positions = "rotary";  // a bidirectional encoder has no order without positions
      options.label_smoothing = 0.1;
      break;
    case Task::classify:
      options.batch = 32;
      options.segment = 1024;
      options.estimator = "rfa";
      break;
    case Task::image:
      options.batch = 64;
      options.estimator = "rfa";
      break;
  }
  return options;
}

std::span<const OptionInfo> option_table() { return kTable; }

const OptionInfo* find_option(TrainKind kind, std::string_view name) {
  const auto* found = std::find_if(std::begin(kTable), std::end(kTable),
                                   [&](const OptionInfo& info) { return name == info.name && (info.kinds & only(kind)) != 0; });
  return found == std::end(kTable) ? nullptr : found;
}

std::string value_text(const TrainOptions& options, const OptionInfo& info) {
  return std::visit([&](auto field) { return fmt::format("{}", options.*field); }, info.field);
}

void set_from_text(TrainOptions& options, const OptionInfo& info, const std::string& text) {
  std::visit(
      [&](auto field) {
        using Value = std::remove_reference_t<decltype(options.*field)>;
        Value& value = options.*field;
        if constexpr (std::is_same_v<Value, std::string>) {
          value = text;
        } else if constexpr (std::is_same_v<Value, bool>) {
          require(text == "true" || text == "false", "'{}' is not {}", text, noun_of<Value>());
          value = text == "true";
        } else {
          Value parsed = {};
          require(parse_whole(text, parsed), "'{}' is not {}", text, noun_of<Value>());
          check_range(info, parsed);
          value = parsed;
        }
      },
      info.field);
}

Estimator parse_estimator_option(std::string_view name, std::string_view text) {
  return parse_option(name, text, [](std::string_view one) { return parse_estimator(one); });
}

nlohmann::ordered_json to_json(const TrainOptions& options) {
  nlohmann::ordered_json json;
  json["task"] = name_of(options.kind);
  for (const OptionInfo& info : kTable) {
    if ((info.kinds & only(options.kind)) == 0) continue;
    std::visit([&](auto field) { json[info.name] = options.*field; }, info.field);
  }
  return json;
}

void read_json(TrainOptions& options, const nlohmann::ordered_json& json, std::string_view where) {
  const auto refuse = [&](const std::string& name, std::string_view what) {
    throw FormatError(fmt::format("{}: option \"{}\" {}", where, name, what));
  };
  if (!json.is_object()) throw FormatError(fmt::format("{}: options are not an object", where));
  for (const auto& [name, value] : json.items()) {
    if (name == "task") {
      if (value != name_of(options.kind))
        refuse(name, fmt::format("is {}, expected \"{}\"", value.dump(), name_of(options.kind)));
      continue;
    }
    const OptionInfo* info = find_option(options.kind, name);
    if (info == nullptr) refuse(name, "is unknown");
    try {
      std::visit(
          [&](auto field) {
            using Value = std::remove_reference_t<decltype(options.*field)>;
            options.*field = value.get<Value>();
            if constexpr (std::is_arithmetic_v<Value> && !std::is_same_v<Value, bool>) check_range(*info, options.*field);
          },
          info->field);
    } catch (const nlohmann::json::exception&) {
      std::visit(
          [&](auto field) {
            using Value = std::remove_reference_t<decltype(options.*field)>;
            refuse(name, fmt::format("is {}, expected {}", value.dump(), noun_of<Value>()));
          },
          info->field);
    } catch (const InvalidArgument& error) {
      refuse(name, error.what());
    }
  }
}

std::vector<OptionChange> changes(const TrainOptions& before, const TrainOptions& now) {
  std::vector<OptionChange> all;
  for (const OptionInfo& info : kTable) {
    if ((info.kinds & only(now.kind)) == 0 || info.on_resume == OnResume::silent) continue;
    OptionChange change{.info = &info, .before = value_text(before, info), .now = value_text(now, info)};
    if (change.before != change.now) all.push_back(std::move(change));
  }
  return all;
}

}  // namespace raffia::internal::train
