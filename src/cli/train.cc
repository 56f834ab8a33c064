// raffia train lm|translate|classify|image|recall: flags from the table of options, progress on stderr, figures on stdout.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "bench/table.h"
#include "bench/torch/blas.h"
#include "cli/shared/command.h"
#include "cli/shared/flags.h"
#include "cli/shared/interrupt.h"
#include "cli/shared/progress.h"
#include "cli/shared/train_plot.h"
#include "cli/shared/train_ranks.h"
#include "core/message.h"
#include "io/formats/json_fields.h"
#include "raffia/error.h"
#include "torch/libtorch.h"
#include "torch/train/distributed.h"
#include "torch/train/distributed_run.h"
#include "torch/train/trainer.h"

namespace raffia::internal::cli {
namespace {

using train::OptionInfo;
using train::TrainKind;
using train::TrainOptions;

// Before the first step there is nothing to save: the process ends at once. It needs a handler for this, since a signal does not
// end the first process of a container by default.
void end_now(int signal) { ::_exit(128 + signal); }

// From the first step on, a signal is handled at the end of a step, or in an evaluation. All ranks handle it, only the first one
// prints.
class Listener : public train::Observer {
 public:
  Listener() {
    for (const int signal : ending_signals()) std::signal(signal, end_now);
  }
  void started(int64_t /*step*/, int64_t /*steps*/) override { interrupts_.emplace(); }
  int signal() const { return interrupts_ ? interrupts_->signal() : 0; }

 private:
  std::optional<Interrupts> interrupts_;
};

struct TrainFlags {
  std::map<std::string, std::string> given;  // by name of the option
  std::string config;
  bool resume = false, json = false, no_plot = false;
  int64_t local_ranks = 1;
};

std::string type_name(const OptionInfo& info) {
  if (std::holds_alternative<std::string TrainOptions::*>(info.field)) return "TEXT";
  return std::holds_alternative<double TrainOptions::*>(info.field) ? "X" : "N";
}

void add_option_flags(CommandLine& command, TrainKind kind, std::map<std::string, std::string>& given) {
  const TrainOptions defaults = train::default_options(kind);
  for (const OptionInfo& info : train::option_table()) {
    if ((info.kinds & train::only(kind)) == 0) continue;
    const std::string name = info.name;
    const auto set = [&given, name](const std::string& value) { given[name] = value; };
    if (name == "stateful") {
      command.add_switch(
          "--stateful", [set] { set("true"); },
          "Carry the memory from segment to segment (default: if the memory of every layer decays)");
      command.add_switch(
          "--no-stateful", [set] { set("false"); }, "Start every segment from empty memory");
    } else if (std::holds_alternative<bool TrainOptions::*>(info.field)) {
      command.add_switch(
          "--" + name, [set] { set("true"); }, info.description);
    } else {
      const std::string value = train::value_text(defaults, info);
      command
          .add_parsed(
              "--" + name,
              [set, name, info, kind](const std::string& text) {
                TrainOptions scratch{.kind = kind};
                try {
                  train::set_from_text(scratch, info, text);
                } catch (const InvalidArgument& error) {
                  throw FlagError("--" + name, error.what());
                }
                set(text);
              },
              info.description)
          .type_name(type_name(info))
          .default_text(std::holds_alternative<double TrainOptions::*>(info.field)
                            ? fmt::format("{:.3g}", defaults.*std::get<double TrainOptions::*>(info.field))
                            : value);
    }
  }
}

constexpr size_t kMetricsInWords = 4;  // recall has dozens, and a table for them

std::string in_words(const train::Metrics& metrics) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : std::span(metrics).first(std::min(kMetricsInWords, metrics.size()))) {
    parts.push_back(fmt::format("{} {:.4g}", name, value));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

class Screen : public Listener {
 public:
  void plot_into(const std::string& directory, const std::string& metric) {
    directory_ = directory;
    metric_ = metric;
  }

  void started(int64_t step, int64_t steps) override {
    Listener::started(step, steps);
    if (step == steps) return note(fmt::format("the run is complete: step {} of {}", step, steps));
    progress_.emplace(static_cast<double>(steps));
    progress_->skip(static_cast<double>(step));
    progress_->begin(fmt::format("step {}/{}", step, steps));
  }
  void ended() { progress_.reset(); }  // clears the bar before the result is printed
  void stepped(const train::StepReport& report) override {
    words_ = fmt::format("step {}/{}, loss {:.4f}, lr {:.2e}, {:.0f} tokens/s", report.step, report.steps, report.loss, report.lr,
                         report.tokens_per_second);
    progress_->describe(words_);
    progress_->advance(1);
  }
  void evaluating(int64_t done, int64_t total) override {
    if (!progress_ || total == 0) return;
    progress_->describe(fmt::format("{}; evaluating {}%", words_, 100 * done / total));
    progress_->advance(0);
  }
  void evaluated(int64_t step, const train::Metrics& metrics, bool is_best) override {
    note(fmt::format("step {}: {}{}", step, in_words(metrics), is_best ? "" : " (not the best)"));
    if (directory_.empty()) return;
    try {
      plot_loss(directory_, metric_);
    } catch (const Error& error) {
      note(fmt::format("note: {}", error.what()));
      directory_.clear();  // only once
    }
  }
  void note(const std::string& message) override {
    if (progress_) {
      progress_->note(message);
    } else {
      say("{}", message);
    }
  }

 private:
  std::optional<Progress> progress_;
  std::string words_, directory_, metric_;
};

Json to_json(const train::Metrics& metrics) {
  Json json = Json::object();
  for (const auto& [name, value] : metrics) json[name] = value;
  return json;
}

std::string_view name_of(train::End end) {
  return end == train::End::complete ? "complete" : end == train::End::patience ? "patience" : "interrupted";
}

// Accuracies by number of pairs and distance, which recall names "accuracy_pairs16_distance64".
void print_recall(const train::Metrics& metrics) {
  const bench::TableColumn columns[] = {
      {"pairs", bench::Style::key}, {"distance", bench::Style::key}, {"accuracy", bench::Style::measured, [](const Json& value) {
                                                                        return fmt::format("{:.3f}", value.get<double>());
                                                                      }}};
  std::vector<bench::TableRow> rows;
  for (const auto& [name, value] : metrics) {
    long long pairs = 0, distance = 0;
    if (std::sscanf(name.c_str(), "accuracy_pairs%lld_distance%lld", &pairs, &distance) == 2)
      rows.push_back({pairs, distance, value});
  }
  print_table(columns, rows, bench::Format::markdown, std::cout);
}

void print_summary(const train::Summary& summary, const TrainOptions& options, bool json) {
  if (json) {
    const Json summarised = {{"task", train::name_of(options.kind)},
                             {"out", options.out},
                             {"end", name_of(summary.end)},
                             {"step", summary.step},
                             {"best_step", summary.best_step},
                             {"valid", to_json(summary.valid)},
                             {"test", summary.test.empty() ? Json(nullptr) : to_json(summary.test)},
                             {"parameters", summary.parameters},
                             {"tokens", summary.tokens},
                             {"seconds", summary.seconds},
                             {"tokens_per_second", summary.tokens_per_second}};
    std::cout << json_text(summarised, 2) << '\n';
    return;
  }
  std::cout << fmt::format("{}: step {}, {}\n", options.out, summary.best_step, in_words(summary.valid));
  if (options.kind == train::kRecall) print_recall(summary.valid);
  if (!summary.test.empty()) std::cout << fmt::format("test: {}\n", in_words(summary.test));
}

std::string how_it_was_interrupted(const train::Summary& summary) {
  if (summary.checkpoint < 0) return "interrupted before the first step: there is no checkpoint yet";
  return fmt::format("interrupted; a checkpoint was written at step {}: --resume continues from there", summary.checkpoint);
}

void run_training(TrainKind kind, const TrainFlags& flags) {
  Screen screen;
  Listener silent;  // of the other ranks
  TrainOptions options;
  std::unique_ptr<train::Group> group;
  std::unique_ptr<train::TrainingTask> task;
  try {
    const train::Place place = train::place_from_environment();
    Listener& observer = place.rank == 0 ? screen : silent;
    options = train::resolve_options(kind, flags.config, flags.given, flags.resume, observer);
    if (flags.local_ranks > 1 && place.size == 1) return run_as_local_ranks(flags.local_ranks, options.threads);
    // A new run stores how many it chose: the same number gives the same bits when it is resumed. Runs that stored none had one
    // per core.
    if (options.threads == 0 && place.size == 1 && !flags.resume) {
      options.threads = threads_of_new_run([&](const std::string& text) { observer.note(text); });
    }
    at::set_num_threads(options.threads > 0 ? static_cast<int>(options.threads) : default_threads());
    if (const std::string warning = bench::blas_warning(); !warning.empty()) observer.note(warning);
    group = std::make_unique<train::Group>(place, train::GroupOptions{.timeout = std::chrono::seconds(options.rank_timeout),
                                                                      .note = [&](const std::string& text) { screen.note(text); },
                                                                      .signal = [&] { return observer.signal(); }});
    train::require_same_options(*group, options);
    options.group = group.get();
    task = train::make_task(options, options.resume);
  } catch (const InvalidArgument& error) {
    throw UsageError(error.what());
  }
  Listener& observer = group->first() ? screen : silent;
  observer.note(task->describe());
  if (!flags.no_plot) screen.plot_into(options.out, task->objective().metric);
  train::Summary summary;
  try {
    summary = train::train(options, *task, observer, [&] { return observer.signal(); });
  } catch (const train::GroupInterrupted& interrupted) {
    throw Interrupted(interrupted.signal, interrupted.what());
  }
  screen.ended();
  if (summary.end == train::End::interrupted) throw Interrupted(summary.signal, how_it_was_interrupted(summary));
  if (!group->first()) return;
  print_summary(summary, options, flags.json);
}

Run add_train(CommandLine& command, TrainKind kind) {
  const auto flags = std::make_shared<TrainFlags>();
  command.add("--config", flags->config, "TOML file with options; flags override it").type_name("FILE");
  add_option_flags(command, kind, flags->given);
  command.add_switch("--resume", flags->resume, "Continue from the newest checkpoint in --out");
  command.add_switch("--no-plot", flags->no_plot, "Do not draw loss.svg and loss.png");
  add_positive(command, "--local-ranks", flags->local_ranks, "Number of processes on this machine that train together",
               kMaxThreads);
  command.add_switch("--json", flags->json, "Print the result as JSON");
  return [flags, kind] { run_training(kind, *flags); };
}

}  // namespace

Run add_train_lm(CommandLine& command) { return add_train(command, {Task::lm}); }
Run add_train_translate(CommandLine& command) { return add_train(command, {Task::translate}); }
Run add_train_classify(CommandLine& command) { return add_train(command, {Task::classify}); }
Run add_train_image(CommandLine& command) { return add_train(command, {Task::image}); }
Run add_train_recall(CommandLine& command) { return add_train(command, train::kRecall); }

}  // namespace raffia::internal::cli
