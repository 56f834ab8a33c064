#include "torch/train/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/check.h"
#include "core/split.h"
#include "raffia/error.h"
#include "raffia/estimator.h"
#include "torch/train/distributed.h"
#include "torch/train/trainer.h"

namespace raffia::internal::train {
namespace {

std::vector<Estimator> parse_estimators(const std::string& text) {
  std::vector<Estimator> estimators;
  for (const std::string_view one : split(text, ';')) estimators.push_back(parse_estimator_option("estimator", one));
  return estimators;
}

Positions positions_of(const TrainOptions& options, const std::vector<Estimator>& estimators) {
  if (options.positions != "auto") return parse_option("positions", options.positions, parse_positions);
  const bool no_positions =
      std::all_of(estimators.begin(), estimators.end(), [](const Estimator& e) { return !traits_of(e).wants_positions; });
  return no_positions ? Positions::none : Positions::rotary;
}

// A resumed run samples in evaluation as before: older runs did not save this option, but their models have it.
void keep_means(ModelConfig& config, const std::filesystem::path& run) {
  const ModelConfig began = load_model_config(RunFiles{run}.config());
  if (began.estimators.size() != config.estimators.size()) return;
  for (size_t i = 0; i < config.estimators.size(); ++i) config.estimators[i].mean = began.estimators[i].mean;
  config.cross.mean = began.cross.mean;
}

}  // namespace

std::unique_ptr<TrainingTask> make_task(TrainOptions& options, bool goes_on) {
  if (options.kind == kRecall) return make_recall_task(options);
  switch (options.kind.task) {
    case Task::lm:
      return make_lm_task(options, goes_on);
    case Task::translate:
      return make_translate_task(options, goes_on);
    case Task::classify:
      return make_classify_task(options, goes_on);
    case Task::image:
      return make_image_task(options, goes_on);
  }
  throw InvalidArgument("make_task: unknown task");
}

ModelConfig model_config(const TrainOptions& options) {
  const std::vector<Estimator> estimators = parse_estimators(options.estimator);
  require(estimators.size() == 1 || static_cast<int64_t>(estimators.size()) == options.layers,
          "--estimator: {} are given, expected 1 or {} (one per layer)", estimators.size(), options.layers);
  require(options.width % options.heads == 0, "width is {}, expected a multiple of heads ({})", options.width, options.heads);
  ModelConfig config{.task = options.kind.task,
                     .width = options.width,
                     .heads = options.heads,
                     .kv_heads = options.kv_heads,
                     .layers = options.layers,
                     .ffn = options.ffn,
                     .norm = parse_option("norm", options.norm, parse_norm),
                     .feed_forward = parse_option("feed-forward", options.feed_forward, parse_feed_forward),
                     .bias = !options.no_bias,
                     .tied = !options.untied,
                     .estimators = estimators,
                     .cross = parse_estimator_option("cross", options.cross),
                     .positions = positions_of(options, estimators),
                     .conv = options.conv,
                     .head_norm = options.head_norm,
                     .learned_sigma = !options.fixed_sigma,
                     .pool = options.pool < 0 ? ModelConfig{}.pool : options.pool,
                     .span_min = options.span_min,
                     .span_max = options.span_max,
                     .dropout = options.dropout,
                     .seed = options.seed};
  if (options.resume) keep_means(config, options.out);
  return config;
}

void check_config(const ModelConfig& config, TrainOptions& options) {
  try {
    config.check(fmt::format("raffia train {}", name_of(options.kind)));
  } catch (const FormatError& error) {
    throw InvalidArgument(error.what());
  }
  options.positions = name_of(config.positions);
  options.pool = config.pool;
}

Shard shard_of(const TrainOptions& options) {
  require(options.parallel == "data" || options.parallel == "sequence", "parallel: '{}' is unknown, expected data or sequence",
          options.parallel);
  if (options.group == nullptr || options.parallel == "sequence") return {};
  return {.rank = options.group->rank(), .world = options.group->size()};
}

void seed_for_weights(const TrainOptions& options) { torch::manual_seed(options.seed); }

}  // namespace raffia::internal::train
