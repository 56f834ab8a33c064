// raffia bench prefill: whole models read prompts.
#include <memory>

#include "cli/model_bench.h"
#include "cli/shared/command.h"

namespace raffia::cli {
namespace {

struct PrefillFlags {
  ModelBenchOptions bench{.repeats = 3};
  std::vector<int64_t> lengths = {512, 2048, 8192};
};

}  // namespace

Run add_bench_prefill(CommandLine& command) {
  const auto flags = std::make_shared<PrefillFlags>();
  add_model_flags(command, flags->bench.models);
  add_positives(command, "--lengths", flags->lengths, "Tokens of a prompt");
  add_run_flags(command, flags->bench);
  return [flags] {
    std::vector<ModelTest> tests;
    for (const int64_t length : flags->lengths) tests.push_back({.kind = ModelTest::Kind::prefill, .tokens = length});
    run_model_bench(tests, flags->bench);
  };
}

}  // namespace raffia::cli
