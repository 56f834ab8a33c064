// raffia bench train: a forward and backward pass of an attention layer or of a whole model, against plain torch.
#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "bench/torch/train_bench.h"
#include "cli/shared/command.h"
#include "cli/shared/estimator_flags.h"
#include "cli/shared/flags.h"
#include "cli/shared/progress.h"

namespace raffia::internal::cli {
namespace {

using What = bench::TrainBenchOptions::What;
constexpr Named<What> kWhats[] = {{"layer", What::layer}, {"model", What::model}};

struct TrainBenchFlags {
  bench::TrainBenchOptions options;
  FormatFlags output;
};

}  // namespace

Run add_bench_train(CommandLine& command) {
  const auto flags = std::make_shared<TrainBenchFlags>();
  bench::TrainBenchOptions& options = flags->options;
  bench::BenchShape& shape = options.bench.shape;
  add_name(command, "--what", kWhats, options.what, "layer: only the attention op; model: a language model and its loss");
  add_estimators(
      command, "--ops", options.bench.ops,
      fmt::format("Estimators to compare, with settings as in raffia approx: {}; torch_softmax and torch_chunked (RFA-Gate) "
                  "in plain torch",
                  names_of_estimators()),
      bench::plain_torch_names());
  add_positives(command, "--lengths", options.bench.lengths, "Tokens of a sequence");
  add_positive(command, "--batch", shape.batch, "Sequences per batch");
  add_positive(command, "--heads", shape.heads, "Heads");
  add_positive(command, "--head-dim", shape.head_dim, "d: size of a query, key or value; models are --heads times as wide");
  add_positive(command, "--random-features", shape.random_features,
               "Rows D of the random projection (2 D features); eva: number of features that hold folded summaries");
  add_positive(command, "--samples", shape.samples, "lara: samples (128); eva: summaries kept (256); ra: draws (1)");
  add_positive(command, "--window", shape.window, "window, hybrid, eva, lara: tokens of a window, seen exactly");
  add_positive(command, "--chunk", shape.chunk, "eva and lara: tokens per summary or proposal, a divisor of --window");
  add_positive(command, "--layers", options.model.layers, "model: layers");
  add_positive(command, "--vocabulary", options.model.vocabulary, "model: number of token ids");
  add_positives(command, "--threads", options.bench.threads, "Numbers of threads to measure with", kMaxThreads);
  add_positive(command, "--repeats", options.bench.repeats, "Repetitions per contender; the fastest is reported");
  add_seed(command, "--seed", shape.seed, "Seed of the data and the maps");
  add_positive(command, "--torch-max-length", options.torch_max_length, "Measure torch_softmax only up to this length");
  add_format_flags(command, flags->output);
  return [flags] {
    const auto records = with_progress([&](Progress& progress) { return bench::measure_training(flags->options, progress); });
    bench::print_records(records, flags->output.format(), std::cout);
  };
}

}  // namespace raffia::internal::cli
