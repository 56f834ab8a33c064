#include "torch/train/init.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/split.h"
#include "raffia/estimator.h"
#include "raffia/tokenizer.h"
#include "torch/train/checkpoint.h"
#include "torch/train/trainer.h"

namespace raffia::internal::train {
namespace {

// Options that a model directory sets.
constexpr const char* kOfModel[] = {"estimator", "positions",   "layers",       "width",    "heads",      "kv-heads",
                                    "ffn",       "norm",        "feed-forward", "no-bias",  "untied",     "conv",
                                    "head-norm", "fixed-sigma", "span-min",     "span-max", "max-length", "tokenizer"};

std::string joined(const std::vector<Estimator>& estimators) {
  std::vector<std::string> texts;
  for (const Estimator& estimator : estimators) texts.push_back(to_string(estimator));
  return fmt::format("{}", fmt::join(texts, ";"));
}

// Normalises equivalent texts: the order of keys, and a vocabulary size that is not given.
std::string canonical(const std::string& name, const std::string& text) {
  if (name == "tokenizer") return text.substr(0, text.find(':'));
  if (name != "estimator") return text;
  std::vector<Estimator> estimators;
  for (const std::string_view one : split(text, ';')) estimators.push_back(parse_estimator_option("estimator", one));
  return joined(estimators);
}

}  // namespace

void take_model(TrainOptions& options) {
  const RunFiles files{options.init};
  const ModelConfig config = load_model_config(files.config());
  require(config.task == options.kind.task, "--init: {} is a model for {}, expected {}", options.init, name_of(config.task),
          name_of(options.kind.task));
  options.estimator = joined(config.estimators);
  options.positions = name_of(config.positions);
  options.layers = config.layers;
  options.width = config.width;
  options.heads = config.heads;
  options.kv_heads = config.kv_heads;
  options.ffn = config.ffn;
  options.norm = name_of(config.norm);
  options.feed_forward = name_of(config.feed_forward);
  options.no_bias = !config.bias;
  options.untied = !config.tied;
  options.conv = config.conv;
  options.head_norm = config.head_norm;
  options.fixed_sigma = !config.learned_sigma;
  options.span_min = config.span_min;
  options.span_max = config.span_max;
  options.max_length = config.max_length;
  options.pool = config.pool;
  options.dropout = config.dropout;
  options.tokenizer = load_tokenizer(options.init)->kind();
}

void require_same_model(const TrainOptions& taken, const TrainOptions& options) {
  for (const char* name : kOfModel) {
    const OptionInfo& info = *find_option(options.kind, name);
    const std::string has = value_text(taken, info), asked = value_text(options, info);
    require(canonical(name, has) == canonical(name, asked),
            "--{} is {}, but the model in {} (--init) has {}: omit the flag, or start a new model without --init", name, asked,
            options.init, has);
  }
}

ModelConfig config_of_start(const TrainOptions& options, bool goes_on) {
  ModelConfig config = load_model_config(RunFiles{goes_on ? options.out : options.init}.config());
  config.pool = options.pool;
  config.dropout = options.dropout;
  return config;
}

void load_start(nn::ModelImpl& model, const TrainOptions& options, bool goes_on) {
  const bool has_checkpoint = goes_on && !CheckpointStore(RunFiles{options.out}.checkpoints()).steps().empty();
  if (!has_checkpoint) nn::load_weights(model, RunFiles{options.init}.weights());
}

}  // namespace raffia::internal::train
