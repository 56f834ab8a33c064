#include "torch/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/check.h"
#include "io/formats/json_fields.h"
#include "io/formats/text.h"
#include "model/model_directory.h"
#include "raffia/error.h"
#include "torch/train/checkpoint.h"
#include "torch/train/distributed.h"
#include "torch/train/distributed_reducer.h"
#include "torch/train/distributed_run.h"
#include "torch/train/fingerprint.h"
#include "torch/train/log.h"
#include "torch/train/optimiser.h"
#include "torch/train/run_lock.h"

namespace raffia::internal::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int64_t kStepsByDefault = 1000;
constexpr int64_t kPartsOfRun = 10;      // evaluations and checkpoints of a run, by default
constexpr int64_t kMonitorEvery = 50;    // steps
constexpr double kHighClampRate = 0.01;  // of denominators: attention is noise if they are clamped

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int64_t total_steps(const TrainOptions& options, const TrainingTask& task) {
  if (options.steps > 0) return options.steps;
  if (options.epochs == 0) return kStepsByDefault;
  return (options.epochs * task.batches_per_epoch() + options.accumulate - 1) / options.accumulate;
}

int64_t every(int64_t asked, int64_t steps) { return asked > 0 ? asked : std::max<int64_t>(1, steps / kPartsOfRun); }

uint64_t seed_of_batch(uint64_t seed, int64_t index, int rank) {
  Fingerprint mixed;
  mixed.add_number(seed);
  mixed.add_number(static_cast<uint64_t>(index));
  if (rank > 0) mixed.add_number(static_cast<uint64_t>(rank));  // other ranks have other rows and other dropout
  return mixed.value();
}

// The metrics of a task always include the metric of its objective.
double value_of(const Metrics& metrics, const std::string& name) {
  const auto found = std::find_if(metrics.begin(), metrics.end(), [&](const auto& metric) { return metric.first == name; });
  require(found != metrics.end(), "there is no metric \"{}\"", name);
  return found->second;
}

// JSON has no infinities: numbers that are not finite are written as null, and read as NaN.
ordered_json to_json(const Metrics& metrics) {
  ordered_json json = ordered_json::object();
  for (const auto& [name, value] : metrics) json[name] = value;
  return json;
}

constexpr double kMax = std::numeric_limits<double>::max();

// `tree` has the order of the metrics, `fields` the same values.
Metrics metrics_from(const ordered_json& tree, JsonFields fields) {
  Metrics metrics;
  for (const auto& [name, value] : tree.items()) {
    metrics.emplace_back(name,
                         fields.has_value(name) ? fields.number(name, -kMax, kMax) : std::numeric_limits<double>::quiet_NaN());
  }
  return metrics;
}

// The contents of a checkpoint besides tensors.
struct Progress {
  int64_t step = 0;
  int64_t tokens = 0;
  double seconds = 0;        // of all processes that worked on the run
  double train_seconds = 0;  // of which in steps
  int64_t best_step = 0;
  double best = std::numeric_limits<double>::quiet_NaN();  // not finite: every result is better
  Metrics best_metrics = {};
  int64_t evaluations_since_best = 0;
  // Since the last line of the log.
  double loss = 0, loss_count = 0;
  bool warned_of_clamps = false;
  bool evaluation_due = false;  // the evaluation after this step was abandoned, or not begun
};

// Thrown out of an evaluation to end it.
struct Abandoned {
  int signal;
};

// With several ranks, all run the steps; only the first one evaluates and writes.
class Run {
 public:
  Run(const TrainOptions& options, TrainingTask& task, Observer& observer, Group& group)
      : options_(options),
        task_(task),
        observer_(observer),
        group_(group),
        files_{options.out},
        store_(files_.checkpoints()),
        optimiser_(task.model(), options),
        reducer_(group, task.model().parameters(), {.average = false}),
        steps_(total_steps(options, task)),
        eval_every_(every(options.eval_every, steps_)),
        checkpoint_every_(every(options.checkpoint_every, steps_)) {
    group_.share("ready", "");  // the others have read the directory: now the first one may write
    if (group_.first()) {
      lock_ = std::make_unique<RunLock>(files_.checkpoints());
      store_.remove_unfinished();
    }
    const bool restored = options.resume && restore();
    checkpoint_ = restored ? progress_.step : -1;
    share_start();
    if (!group_.first()) return;
    if (!restored) {
      task_.save(files_.directory);
      save_model_config(task_.model().config(), files_.config());
    }
    // Last: it marks the directory as complete. Names of files may not be UTF-8.
    write_file(files_.options(), json_text(to_json(options_), 2) + "\n");
    log_ = std::make_unique<RunLog>(files_.log(), progress_.step, progress_.evaluation_due);
  }

  Summary run(const StopSignal& stop) {
    stop_ = stop;
    task_.model().train();
    observer_.started(progress_.step, steps_);
    // Once a step, so that all ranks stop at the same one.
    const auto asked_to_stop = [&] { return highest_of_ranks(group_, own_signal()); };
    int64_t signal = asked_to_stop();
    const auto out_of_patience = [&] { return options_.patience > 0 && progress_.evaluations_since_best >= options_.patience; };
    try {
      if (progress_.evaluation_due && signal == 0) {
        evaluate();
        signal = asked_to_stop();
        if (!progress_.evaluation_due) checkpoint();
      }
      while (progress_.step < steps_ && !out_of_patience() && signal == 0) {
        group_.at_step(progress_.step, checkpoint_);
        step();
        signal = asked_to_stop();
        const bool is_last = progress_.step == steps_;
        if (progress_.step % options_.log_every == 0 || is_last) write_log();
        if (progress_.step % eval_every_ == 0 || is_last) {
          progress_.evaluation_due = true;
          if (signal == 0) evaluate();
          signal = asked_to_stop();  // it may have come during a long evaluation
        }
        if (progress_.step % checkpoint_every_ == 0 || is_last || out_of_patience() || signal != 0) checkpoint();
      }
    } catch (const IoError& error) {  // a full disk
      throw IoError(fmt::format("step {}: {}; {}", progress_.step, error.what(), last_checkpoint()));
    }
    const End end = progress_.evaluation_due   ? End::interrupted
                    : progress_.step == steps_ ? End::complete
                    : out_of_patience()        ? End::patience
                                               : End::interrupted;
    return summary(end, static_cast<int>(signal));
  }

 private:
  int own_signal() const { return stop_ ? stop_() : 0; }

  // For evaluations, which may take longer than all steps between them: a signal ends them.
  OnProgress evaluation_progress() {
    return [this](int64_t done, int64_t total) {
      observer_.evaluating(done, total);
      const int own = own_signal();
      // The other ranks wait meanwhile: one of them may have been asked to end.
      if (const int signal = own != 0 ? own : group_.signal(); signal != 0) throw Abandoned{signal};
    };
  }

  double elapsed() const { return earlier_seconds_ + seconds_since(start_); }

  void share_start() {
    require_same(group_, "the step to resume from", fmt::format("{}", progress_.step),
                 "--out must be one directory that all ranks share");
    require_same(group_, "the fingerprint of the data", fmt::format("{:016x}", task_.fingerprints().data),
                 "all ranks must read the same --data");
    require_same(group_, "the fingerprint of the tokenizer", fmt::format("{:016x}", task_.fingerprints().tokenizer),
                 "all ranks must use the same tokenizer");
    share_weights(group_, task_.model());
  }

  bool restore() {
    for (const int64_t step : store_.steps()) {
      ordered_json facts;
      try {
        facts = store_.verify(step);
      } catch (const Error& error) {
        observer_.note(fmt::format("warning: {}; trying the checkpoint before it", error.what()));
        continue;
      }
      restore(step, facts);
      observer_.note(fmt::format("resuming from step {} ({})", step, store_.path(step).string()));
      return true;
    }
    if (!store_.steps().empty()) {
      throw FormatError(fmt::format("{}: every checkpoint is damaged (see above): start a new run in another directory",
                                    files_.checkpoints().string()));
    }
    observer_.note(fmt::format("{}: no checkpoint yet, starting at step 0", files_.checkpoints().string()));
    return false;
  }

  void restore(int64_t step, const ordered_json& facts) {
    const fs::path directory = store_.path(step);
    JsonFields fields = JsonFields::of(facts, (directory / "trainer.json").string());
    refuse_others(fields.string("tokenizer"), task_.fingerprints().tokenizer, "another tokenizer", directory);
    refuse_others(fields.string("data"), task_.fingerprints().data, "other data", directory);
    progress_.step = fields.integer("step", 0, INT64_MAX);
    progress_.tokens = fields.integer("tokens", 0, INT64_MAX);
    progress_.seconds = earlier_seconds_ = fields.number("seconds", 0, kMax);
    progress_.train_seconds = fields.number("train_seconds", 0, kMax);
    progress_.loss = fields.number("loss_sum", -kMax, kMax);
    progress_.loss_count = fields.number("loss_count", 0, kMax);
    progress_.evaluations_since_best = fields.integer("evaluations_since_best", 0, INT64_MAX);
    progress_.warned_of_clamps = fields.truth("warned_of_clamps");
    progress_.evaluation_due = fields.has("evaluation_due") && fields.truth("evaluation_due");  // older checkpoints: never
    monitored_ = progress_.step - progress_.step % options_.log_every;
    if (!fields.value("best").is_null()) {
      JsonFields best = fields.object("best");
      progress_.best_step = best.integer("step", 0, INT64_MAX);
      const JsonFields metrics = best.object("metrics");  // which shows that the tree has them
      progress_.best_metrics = metrics_from(facts["best"]["metrics"], metrics);
      try {
        progress_.best = value_of(progress_.best_metrics, task_.objective().metric);
      } catch (const InvalidArgument& error) {
        throw FormatError(fmt::format("{}: best.metrics: {}", fields.where(), error.what()));
      }
    }
    nn::load_weights(task_.model(), directory / kWeightsFile);
    optimiser_.set_state(load_tensors(directory / "optimiser.safetensors"), (directory / "optimiser.safetensors").string());
    task_.set_carried(rows_of_rank(group_, load_tensors(directory / "carried.safetensors")),
                      (directory / "carried.safetensors").string());
    auto generator = at::detail::getDefaultCPUGenerator();
    const NamedTensors states = load_tensors(directory / "generator.safetensors");
    if (states.size() != 1)
      throw FormatError(fmt::format("{}: {} tensors, expected 1", (directory / "generator.safetensors").string(), states.size()));
    generator.set_state(states.front().second);
  }

  static void refuse_others(const std::string& before, uint64_t now, std::string_view what, const fs::path& directory) {
    const std::string found = fmt::format("{:016x}", now);
    if (before == found) return;
    throw FormatError(fmt::format("{}: was written with {} (fingerprint {}, now {}): resume with the same, or start a new run",
                                  directory.string(), what, before, found));
  }

  void step() {
    const Clock::time_point start = Clock::now();
    Tensor sums = at::zeros({3}, at::kDouble);  // loss, what was predicted, tokens read
    for (int64_t micro = 0; micro < options_.accumulate; ++micro) {
      const int64_t index = progress_.step * options_.accumulate + micro;
      torch::manual_seed(seed_of_batch(options_.seed, index, group_.rank()));
      const LossSum part = task_.loss(index);
      if (micro + 1 == options_.accumulate) reducer_.arm();
      if (part.count > 0) part.sum.backward();  // a rank may have no row of a small batch
      sums[0] += part.sum.item<double>();
      sums[1] += part.count;
      sums[2] += part.tokens;
    }
    group_.all_reduce(sums);
    reducer_.finish();
    double loss = sums[0].item<double>();
    const auto count = sums[1].item<int64_t>(), tokens = sums[2].item<int64_t>();
    lr_ = learning_rate(options_, progress_.step, steps_);
    grad_norm_ = optimiser_.step(lr_, 1.0 / static_cast<double>(std::max<int64_t>(1, count)));
    loss /= static_cast<double>(std::max<int64_t>(1, count));
    if (!std::isfinite(loss) || !std::isfinite(grad_norm_)) {
      throw Error(fmt::format("step {}: loss {} and norm of the gradient {} are not finite: try a lower --lr (it is {:g}); {}",
                              progress_.step + 1, loss, grad_norm_, lr_, last_checkpoint()));
    }
    ++progress_.step;
    progress_.tokens += tokens;
    progress_.loss += loss;
    progress_.loss_count += 1;
    const double seconds = seconds_since(start);
    progress_.train_seconds += seconds;
    interval_tokens_ += static_cast<double>(tokens);
    interval_seconds_ += seconds;
    observer_.stepped({.step = progress_.step,
                       .steps = steps_,
                       .loss = progress_.loss / progress_.loss_count,
                       .lr = lr_,
                       .grad_norm = grad_norm_,
                       .tokens_per_second = interval_tokens_ / interval_seconds_});
  }

  std::string last_checkpoint() const {
    const auto steps = store_.steps();
    return steps.empty() ? "there is no checkpoint yet" : fmt::format("the last checkpoint is step {}", steps.front());
  }

  void write_log() {
    if (group_.first()) append_to_log();
    progress_.loss = progress_.loss_count = 0;
    interval_tokens_ = interval_seconds_ = 0;
  }

  void append_to_log() {
    ordered_json record = {{"step", progress_.step},
                           {"loss", progress_.loss / progress_.loss_count},
                           {"lr", lr_},
                           {"grad_norm", grad_norm_},
                           {"tokens", progress_.tokens},
                           {"tokens_per_second", std::round(interval_tokens_ / interval_seconds_)},
                           {"seconds", std::round(elapsed() * 1000) / 1000}};
    if (!group_.alone()) {
      for (const Collective kind : {Collective::all_reduce, Collective::all_gather}) {
        record["bytes_sent"][std::string(to_string(kind))] = group_.traffic(kind).bytes;
      }
    }
    if (progress_.step / kMonitorEvery != monitored_ / kMonitorEvery) add_monitors(record);
    log_->append(record);
  }

  void add_monitors(ordered_json& record) {
    monitored_ = progress_.step;
    std::vector<double> sigmas;
    std::vector<std::vector<double>> spans;
    double clamp_rate = 0;
    for (const auto& attention : task_.model().attentions()) {
      const nn::Monitor monitor = attention->monitor();
      sigmas.push_back(monitor.sigma);
      spans.push_back(monitor.spans);
      clamp_rate = std::max(clamp_rate, monitor.clamp_rate);
    }
    record["clamp_rate"] = clamp_rate;
    record["sigma"] = sigmas;
    record["spans"] = spans;
    if (clamp_rate >= kHighClampRate && !progress_.warned_of_clamps) {
      progress_.warned_of_clamps = true;
      observer_.note(
          fmt::format("warning: step {}: {:.1f}% of the denominators of a layer are clamped: more random features "
                      "(--estimator rfa_gate:samples=N) or --fixed-sigma may help",
                      progress_.step, 100 * clamp_rate));
    }
  }

  // After a signal, the evaluation is still due when this returns.
  void evaluate() {
    if (group_.first()) {
      try {
        evaluate_and_keep_best();
        progress_.evaluation_due = false;
      } catch (const Abandoned&) {  // it stays due
      }
    }
    const Tensor outcome = torch::tensor({progress_.evaluations_since_best, int64_t{progress_.evaluation_due}}, at::kLong);
    group_.broadcast(outcome);
    progress_.evaluations_since_best = outcome[0].item<int64_t>();
    progress_.evaluation_due = outcome[1].item<int64_t>() != 0;
  }

  void evaluate_and_keep_best() {
    const Metrics metrics = task_.evaluate(evaluation_progress());
    const Objective objective = task_.objective();
    const double value = value_of(metrics, objective.metric);
    const bool is_best =
        !std::isfinite(progress_.best) || (objective.higher_is_better ? value > progress_.best : value < progress_.best);
    if (is_best) {
      progress_.best = value;
      progress_.best_step = progress_.step;
      progress_.best_metrics = metrics;
      nn::save_weights(task_.model(), files_.weights(), task_.fingerprints().tokenizer);
    }
    progress_.evaluations_since_best = is_best ? 0 : progress_.evaluations_since_best + 1;
    ordered_json record = {{"step", progress_.step}};
    for (const auto& [name, number] : metrics) record["valid_" + name] = number;
    record["best"] = is_best;
    record["seconds"] = std::round(elapsed() * 1000) / 1000;
    log_->append(record);
    write_log_csv(files_.log(), files_.csv());
    observer_.evaluated(progress_.step, metrics, is_best);
  }

  void checkpoint() {
    const NamedTensors carried = gather_rows(group_, task_.carried());
    if (group_.first()) write_checkpoint(carried);
    checkpoint_ = progress_.step;
  }

  void write_checkpoint(const NamedTensors& carried) {
    log_->sync();
    progress_.seconds = elapsed();
    ordered_json facts = {{"step", progress_.step},
                          {"steps", steps_},
                          {"tokens", progress_.tokens},
                          {"seconds", progress_.seconds},
                          {"train_seconds", progress_.train_seconds},
                          {"loss_sum", progress_.loss},
                          {"loss_count", progress_.loss_count},
                          {"evaluations_since_best", progress_.evaluations_since_best},
                          {"warned_of_clamps", progress_.warned_of_clamps},
                          {"evaluation_due", progress_.evaluation_due},
                          {"best", nullptr},
                          {"tokenizer", fmt::format("{:016x}", task_.fingerprints().tokenizer)},
                          {"data", fmt::format("{:016x}", task_.fingerprints().data)},
                          {"options", to_json(options_)}};
    if (progress_.best_step > 0) {
      facts["best"] = {{"step", progress_.best_step}, {"metrics", to_json(progress_.best_metrics)}};
    }
    const auto write_files = [&](const fs::path& directory) {
      nn::save_weights(task_.model(), directory / kWeightsFile, task_.fingerprints().tokenizer);
      save_tensors(directory / "optimiser.safetensors", optimiser_.state());
      save_tensors(directory / "carried.safetensors", carried);
      save_tensors(directory / "generator.safetensors", {{"cpu", at::detail::getDefaultCPUGenerator().get_state()}});
    };
    store_.write(progress_.step, write_files, std::move(facts));
    store_.remove_all_but(options_.keep);
  }

  Summary summary(End end, int signal) {
    Summary summary{.end = end,
                    .signal = end == End::interrupted ? signal : 0,
                    .step = progress_.step,
                    .best_step = progress_.best_step,
                    .checkpoint = checkpoint_,
                    .valid = progress_.best_metrics,
                    .parameters = task_.model().parameter_count(),
                    .tokens = progress_.tokens,
                    .seconds = elapsed(),
                    .tokens_per_second = static_cast<double>(progress_.tokens) / std::max(1e-9, progress_.train_seconds)};
    if (group_.first() && end != End::interrupted && progress_.best_step > 0) {
      nn::load_weights(task_.model(), files_.weights());
      try {
        summary.test = task_.test(evaluation_progress());
      } catch (const Abandoned& abandoned) {
        summary.signal = abandoned.signal;
      }
    }
    summary.signal = static_cast<int>(highest_of_ranks(group_, summary.signal));
    if (summary.signal != 0) summary.end = End::interrupted;
    group_.barrier();  // the store is on the first rank, so it ends last
    return summary;
  }

  const TrainOptions& options_;
  TrainingTask& task_;
  Observer& observer_;
  Group& group_;
  RunFiles files_;
  std::unique_ptr<RunLock> lock_;
  CheckpointStore store_;
  Optimiser optimiser_;
  GradientReducer reducer_;
  const int64_t steps_, eval_every_, checkpoint_every_;
  StopSignal stop_;
  Progress progress_;
  std::unique_ptr<RunLog> log_;
  const Clock::time_point start_ = Clock::now();
  double earlier_seconds_ = 0;
  double lr_ = 0, grad_norm_ = 0;
  double interval_tokens_ = 0, interval_seconds_ = 0;
  int64_t monitored_ = 0;
  int64_t checkpoint_ = -1;  // step of the newest; -1: none
};

}  // namespace

Summary train(const TrainOptions& options, TrainingTask& task, Observer& observer, const StopSignal& stop) {
  Group alone;
  return Run(options, task, observer, options.group == nullptr ? alone : *options.group).run(stop);
}

}  // namespace raffia::internal::train
