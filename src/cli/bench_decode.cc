// raffia bench decode: whole models write tokens, at a given depth.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/command.h"
#include "cli/decode_plot.h"
#include "cli/gnuplot.h"
#include "cli/model_bench.h"

namespace raffia::cli {
namespace {

struct DecodeFlags {
  ModelBenchOptions bench;
  std::vector<int64_t> batch = {1}, depths = {0, 512, 4096, 32768};
  int64_t tokens = 32;
  std::string plot;
};

}  // namespace

Run add_bench_decode(CLI::App& app) {
  const auto flags = std::make_shared<DecodeFlags>();
  add_model_flags(app, flags->bench.models);
  add_positives(app, "--batch", flags->batch, "Sessions stepped at once");
  add_counts(app, "--depths", flags->depths, "Tokens that the sessions have read before");
  add_positive(app, "--tokens", flags->tokens, "Tokens written by each session in a turn");
  add_run_flags(app, flags->bench);
  app.add_option("--plot", flags->plot, "Write PREFIX.svg and PREFIX.png: speed and memory against depth (needs gnuplot)")
      ->type_name("PREFIX");
  return [flags] {
    std::vector<ModelTest> tests;
    for (const int64_t batch : flags->batch) {
      for (const int64_t depth : flags->depths) {
        tests.push_back({.kind = ModelTest::Kind::decode, .tokens = flags->tokens, .depth = depth, .batch = batch});
      }
    }
    if (!flags->plot.empty()) {
      require_gnuplot("--plot");
      if (std::ranges::all_of(flags->depths, [](int64_t depth) { return depth == 0; })) {
        throw UsageError("--plot: all depths are 0, expected one that the axis of logarithms can show");
      }
    }
    const std::vector<ModelRecord> records = run_model_bench(tests, flags->bench);
    if (!flags->plot.empty()) plot_decode(records, flags->plot);
  };
}

}  // namespace raffia::cli
