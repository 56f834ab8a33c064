// raffia bench train: a forward and backward pass of an attention layer or of a whole model, against plain torch.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cli/bench.h"
#include "cli/shared/command.h"
#include "cli/shared/estimator_flags.h"
#include "cli/train_commands.h"
#include "cli/train_ops.h"

namespace raffia::cli {
namespace {

enum class What : uint8_t { layer, model };

constexpr Named<What> kWhats[] = {{"layer", What::layer}, {"model", What::model}};

struct TrainBenchFlags {
  BenchOptions bench = {.ops = {"softmax", "torch_softmax", "rfa_gate", "torch_chunked"},
                        .lengths = {512, 2048, 8192},
                        .repeats = 5,
                        .softmax_max_length = std::numeric_limits<int64_t>::max()};
  What what = What::layer;
  int64_t torch_max_length = 8192;
  ModelShape model;
};

// Attention in plain torch whose time and memory grow with the square of the length.
bool is_measured(const TrainBenchFlags& flags, const TrainOp& op, int64_t length) {
  return !op.is_plain || !op.form.traits().is_exact || length <= flags.torch_max_length;
}

std::vector<BenchGroup> groups_of(const TrainBenchFlags& flags) {
  const BenchShape& shape = flags.bench.shape;
  const auto models = make_models(shape, flags.model);
  std::vector<BenchGroup> groups;
  for (const int64_t length : flags.bench.lengths) {
    BenchGroup& group = groups.emplace_back(BenchGroup{.length = length});
    const auto inputs = make_layer_inputs(shape, length);
    for (const int64_t threads : flags.bench.threads) {
      for (const std::string& spec : flags.bench.ops) {
        const TrainOp op = train_op_of(shape, spec);
        if (!is_measured(flags, op, length)) continue;
        const int count = static_cast<int>(threads);
        BenchCase bench{.record = describe(shape, op, length, threads), .tokens = shape.batch * length};
        if (flags.what == What::layer) {
          bench.flops = layer_flops(shape, op, length);
          bench.prepare = [op, inputs, count](Executor&) { return prepare_layer(op, inputs, count); };
        } else {
          bench.record.layers = flags.model.layers;
          bench.flops = model_flops(shape, flags.model, op, length);
          bench.prepare = [op, models, length, count](Executor&) { return prepare_model(op, models, length, count); };
        }
        group.cases.push_back(std::move(bench));
      }
    }
  }
  return groups;
}

void run(TrainBenchFlags& flags) {
  check(flags.bench);
  run_bench(groups_of(flags), flags.bench);
}

}  // namespace

Run add_bench_train(CommandLine& command) {
  const auto flags = std::make_shared<TrainBenchFlags>();
  BenchShape& shape = flags->bench.shape;
  add_name(command, "--what", kWhats, flags->what, "layer: only the attention op; model: a language model and its loss");
  add_estimators(
      command, "--ops", flags->bench.ops,
      fmt::format("Estimators to compare, with settings as in raffia approx: {}; torch_softmax and torch_chunked (RFA-Gate) "
                  "in plain torch",
                  names_of_estimators()),
      plain_torch_names());
  add_positives(command, "--lengths", flags->bench.lengths, "Tokens of a sequence");
  add_positive(command, "--batch", shape.batch, "Sequences per batch");
  add_positive(command, "--heads", shape.heads, "Heads");
  add_positive(command, "--head-dim", shape.head_dim, "d: size of a query, key or value; models are --heads times as wide");
  add_positive(command, "--random-features", shape.random_features,
               "Rows D of the random projection (2 D features); eva: number of features that hold folded summaries");
  add_positive(command, "--samples", shape.samples, "lara: samples (128); eva: summaries kept (256); ra: draws (1)");
  add_positive(command, "--window", shape.window, "window, hybrid, eva, lara: tokens of a window, seen exactly");
  add_positive(command, "--chunk", shape.chunk, "eva and lara: tokens per summary or proposal, a divisor of --window");
  add_positive(command, "--layers", flags->model.layers, "model: layers");
  add_positive(command, "--vocabulary", flags->model.vocabulary, "model: number of token ids");
  add_positives(command, "--threads", flags->bench.threads, "Numbers of threads to measure with", kMaxThreads);
  add_positive(command, "--repeats", flags->bench.repeats, "Repetitions per contender; the fastest is reported");
  add_seed(command, "--seed", shape.seed, "Seed of the data and the maps");
  add_positive(command, "--torch-max-length", flags->torch_max_length, "Measure torch_softmax only up to this length");
  add_format_flags(command, flags->bench.output);
  return [flags] { run(*flags); };
}

}  // namespace raffia::cli
