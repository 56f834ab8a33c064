// raffia bench attention|step|decode|prefill|session|isa: flags of what src/bench measures.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "bench/attention_bench.h"
#include "bench/crossover_plot.h"
#include "bench/decode_plot.h"
#include "bench/gnuplot.h"
#include "bench/isa_bench.h"
#include "bench/kernel_ops.h"
#include "bench/model_bench.h"
#include "bench/session_bench.h"
#include "bench/step_bench.h"
#include "cli/shared/command.h"
#include "cli/shared/estimator_flags.h"
#include "cli/shared/flags.h"
#include "cli/shared/model_commands.h"
#include "cli/shared/progress.h"
#include "core/weight_matrix.h"
#include "raffia/error.h"

namespace raffia::internal::cli {
namespace {

constexpr Named<MapKind> kMaps[] = {{"trig", MapKind::trig},         {"arccos", MapKind::arccos},
                                    {"positive", MapKind::positive}, {"positive2", MapKind::positive2},
                                    {"elu", MapKind::elu},           {"relu", MapKind::relu}};
constexpr Named<DType> kDTypes[] = {{"f32", DType::f32}, {"bf16", DType::bf16}};
constexpr Named<bench::ArrayLayout> kLayouts[] = {{"bthd", bench::ArrayLayout::bthd}, {"bhtd", bench::ArrayLayout::bhtd}};
constexpr Named<Isa> kIsas[] = {
    {"scalar", Isa::scalar}, {"neon", Isa::neon}, {"sse4", Isa::sse4}, {"avx2", Isa::avx2}, {"avx512", Isa::avx512}};

void add_op_flags(CommandLine& command, bench::BenchOptions& options) {
  bench::BenchShape& shape = options.shape;
  add_estimators(
      command, "--ops", options.ops,
      fmt::format("Estimators to compare, with settings as in raffia approx (lara:samples=64): {}", names_of_estimators()));
  add_names(command, "--input", bench::kInputs, options.inputs,
            "features: phi(q) and phi(k) are given; qk: the op computes the map");
  add_positives(command, "--lengths", options.lengths, "Tokens of a sequence");
  add_positive(command, "--batch", shape.batch, "Sequences per batch");
  add_positive(command, "--heads", shape.heads, "Query heads");
  add_positive(command, "--kv-heads", shape.kv_heads, "Key/value heads, a divisor of --heads (default: --heads)");
  add_positive(command, "--head-dim", shape.head_dim, "d: size of a query or key");
  add_positive(command, "--value-dim", shape.value_dim, "dv: size of a value (default: --head-dim)");
  add_positive(
      command, "--random-features", shape.random_features,
      "Rows D of the random projection (trig has 2 D features); causal eva: number of features that hold folded summaries");
  add_positive(command, "--samples", shape.samples,
               "Samples of estimators without a map. lara: samples (64; causal 128); eva: chunks (64), or summaries kept (causal "
               "256); ra: draws (1)");
  add_positive(command, "--window", shape.window, "hybrid, eva, causal lara: tokens of a window, seen exactly");
  add_positive(command, "--chunk", shape.chunk, "causal eva and lara: tokens per summary or proposal, a divisor of --window");
  add_name(command, "--map", kMaps, shape.map, "Feature map: trig, arccos, positive, positive2, elu, relu");
  add_positives(command, "--threads", options.threads, "Numbers of threads to measure with", kMaxThreads);
  add_positive(command, "--repeats", options.repeats, "Repetitions per contender; the fastest is reported");
  add_name(command, "--dtype", kDTypes, shape.dtype, "Elements of inputs and outputs: f32, bf16");
  add_name(command, "--layout", kLayouts, shape.layout, "Order of axes in memory: bthd, bhtd");
  add_seed(command, "--seed", shape.seed, "Seed of the data and the map");
  command
      .add_parsed(
          "--isa", [&options](const std::string& text) { options.isa = parse_name("--isa", text, kIsas); },
          "Widest instruction set to use (default: the widest that the CPU supports)")
      .type_name("NAME");
  command.add_switch("--no-softmax", options.no_softmax, "Do not measure softmax; ratio_to_softmax is null");
  add_positive(command, "--softmax-max-length", options.softmax_max_length, "Measure softmax only up to this length");
}

void add_model_flags(CommandLine& command, bench::ModelChoice& models) {
  std::vector<Flag> of_random = {add_positive(command, "--layers", models.layers, "Layers of the models"),
                                 add_positive(command, "--width", models.width, "Width E of the models"),
                                 add_positive(command, "--heads", models.heads, "Heads, a divisor of --width"),
                                 add_positive(command, "--vocabulary", models.vocabulary, "Number of token ids")};
  std::vector<std::string> defaults;
  for (const Estimator& estimator : models.estimators) defaults.push_back(to_string(estimator));
  of_random.push_back(command
                          .add_parsed(
                              "--estimators",
                              [&models](const std::string& text) {
                                models.estimators.clear();
                                for (const std::string& spec : split_estimators("--estimators", text)) {
                                  models.estimators.push_back(parse_estimator_of("--estimators", spec));
                                }
                              },
                              "Estimators to compare, one model of each")
                          .type_name("LIST")
                          .default_text(fmt::format("{}", fmt::join(defaults, ","))));
  of_random.push_back(add_names(command, "--type", kWeightTypes, models.types,
                                fmt::format("Storage type of weights: {}", joined_names(kWeightTypes))));
  of_random.push_back(add_seed(command, "--seed", models.seed, "Seed of the weights"));
  const Flag model = command
                         .add_repeated(
                             "--model", [&models](const std::string& directory) { models.directories.push_back(directory); },
                             "Measure the model in this directory instead; may be repeated")
                         .type_name("DIR");
  for (Flag option : of_random) option.excludes(model);
  add_no_mmap(command, models.no_mmap);
}

void add_run_flags(CommandLine& command, bench::ModelBenchOptions& options) {
  add_positives(command, "--threads", options.threads, "Numbers of threads to measure with", kMaxThreads);
  add_positive(command, "--repeats", options.repeats, "Repetitions per contender; the fastest is reported");
  add_positive(command, "--cache-limit", options.cache_limit, "Skip contenders whose sessions need more memory than this, in GB");
}

// A process that loads the model, reads a prompt, writes one token and ends.
void generate_one_token(const bench::BenchModel& model, int64_t threads) {
  const std::string& directory = model.directory;
  const std::string count = std::to_string(threads);
  const pid_t child = fork();
  if (child < 0) throw IoError(fmt::format("fork: {}", std::strerror(errno)));
  if (child == 0) {
    const int nowhere = open("/dev/null", O_RDWR);
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nowhere, stream);
    execl("/proc/self/exe", "raffia", "generate", directory.c_str(), "--prompt", "A", "--tokens", "1", "--greedy", "--threads",
          count.c_str(), model.no_mmap ? "--no-mmap" : nullptr, nullptr);
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw IoError(fmt::format("waitpid: {}", std::strerror(errno)));
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw Error(fmt::format("raffia generate {} failed, expected one token; run it to see why", directory));
  }
}

}  // namespace

Run add_bench_attention(CommandLine& command) {
  struct AttentionFlags {
    bench::AttentionBenchOptions options;
    std::string plot;
    FormatFlags output;
  };
  const auto flags = std::make_shared<AttentionFlags>();
  add_op_flags(command, flags->options.bench);
  add_format_flags(command, flags->output);
  add_names(command, "--passes", bench::kPasses, flags->options.passes, "forward, backward, forward+backward");
  command.add_switch("--causal", flags->options.causal, "Causal attention; estimators without another form are always causal");
  add_integers(command, "--segment", flags->options.segments,
               "Tokens per parallel segment; 0: chosen from the shape; -1: no segments");
  command.add("--plot", flags->plot, "Write PREFIX.svg and PREFIX.png: time against length (needs gnuplot)").type_name("PREFIX");
  return [flags] {
    if (!flags->plot.empty()) bench::require_gnuplot("--plot");
    const auto records = with_progress([&](Progress& progress) { return bench::measure_attention(flags->options, progress); });
    bench::print_records(records, flags->output.format(), std::cout);
    if (!flags->plot.empty()) bench::plot_crossover(records, flags->plot);
  };
}

Run add_bench_step(CommandLine& command) {
  struct StepFlags {
    bench::StepBenchOptions options;
    FormatFlags output;
  };
  const auto flags = std::make_shared<StepFlags>();
  add_op_flags(command, flags->options.bench);
  add_format_flags(command, flags->output);
  return [flags] {
    const auto records = with_progress([&](Progress& progress) { return bench::measure_steps(flags->options, progress); });
    bench::print_records(records, flags->output.format(), std::cout);
  };
}

Run add_bench_decode(CommandLine& command) {
  struct DecodeFlags {
    bench::ModelBenchOptions options;
    std::vector<int64_t> batch = {1}, depths = {0, 512, 4096, 32768};
    int64_t tokens = 32;
    std::string plot;
    FormatFlags output;
  };
  const auto flags = std::make_shared<DecodeFlags>();
  add_model_flags(command, flags->options.models);
  add_positives(command, "--batch", flags->batch, "Sessions stepped together");
  add_counts(command, "--depths", flags->depths, "Tokens that each session has read before");
  add_positive(command, "--tokens", flags->tokens, "Tokens generated by each session in a run");
  add_run_flags(command, flags->options);
  add_format_flags(command, flags->output);
  command.add("--plot", flags->plot, "Write PREFIX.svg and PREFIX.png: speed and memory against depth (needs gnuplot)")
      .type_name("PREFIX");
  return [flags] {
    std::vector<bench::ModelTest> tests;
    for (const int64_t batch : flags->batch) {
      for (const int64_t depth : flags->depths) {
        tests.push_back({.kind = bench::ModelTest::Kind::decode, .tokens = flags->tokens, .depth = depth, .batch = batch});
      }
    }
    if (!flags->plot.empty()) {
      bench::require_gnuplot("--plot");
      if (std::ranges::all_of(flags->depths, [](int64_t depth) { return depth == 0; })) {
        throw UsageError("--plot: all depths are 0, expected one above 0 (the axis is logarithmic)");
      }
    }
    const auto records =
        with_progress([&](Progress& progress) { return bench::measure_models(tests, flags->options, progress); });
    bench::print_records(records, flags->output.format(), std::cout);
    if (!flags->plot.empty()) bench::plot_decode(records, flags->plot);
  };
}

Run add_bench_prefill(CommandLine& command) {
  struct PrefillFlags {
    bench::ModelBenchOptions options{.repeats = 3};
    std::vector<int64_t> lengths = {512, 2048, 8192};
    FormatFlags output;
  };
  const auto flags = std::make_shared<PrefillFlags>();
  add_model_flags(command, flags->options.models);
  add_positives(command, "--lengths", flags->lengths, "Tokens of a prompt");
  add_run_flags(command, flags->options);
  add_format_flags(command, flags->output);
  return [flags] {
    std::vector<bench::ModelTest> tests;
    for (const int64_t length : flags->lengths) tests.push_back({.kind = bench::ModelTest::Kind::prefill, .tokens = length});
    const auto records =
        with_progress([&](Progress& progress) { return bench::measure_models(tests, flags->options, progress); });
    bench::print_records(records, flags->output.format(), std::cout);
  };
}

Run add_bench_session(CommandLine& command) {
  struct SessionFlags {
    bench::SessionBenchOptions options{.start = generate_one_token};
    FormatFlags output;
  };
  const auto flags = std::make_shared<SessionFlags>();
  bench::SessionBenchOptions& options = flags->options;
  add_model_flags(command, options.bench.models);
  add_counts(command, "--depths", options.depths, "Tokens that a session has read before it is saved, restored and forked");
  add_positive(command, "--prompt-tokens", options.prompt, "Length of the prompt in the prefix cache, in tokens");
  add_run_flags(command, options.bench);
  add_format_flags(command, flags->output);
  return [flags] {
    const auto records = with_progress([&](Progress& progress) { return bench::measure_sessions(flags->options, progress); });
    bench::print_records(records, flags->output.format(), std::cout);
  };
}

Run add_bench_isa(CommandLine& command) {
  struct IsaFlags {
    bench::IsaBenchOptions options;
    FormatFlags output;
  };
  const auto flags = std::make_shared<IsaFlags>();
  bench::IsaBenchOptions& options = flags->options;
  bench::BenchShape& shape = options.shape;
  const std::vector<std::string> kernels = bench::kernel_op_names();
  add_estimators(command, "--ops", options.ops,
                 fmt::format("Ops to measure: estimators, with settings as in raffia approx ({}); {}", names_of_estimators(),
                             fmt::join(kernels, ", ")),
                 kernels)
      .default_text("all");
  command.add_switch("--scalar", options.scalar, "Also measure without vector instructions, which takes several times as long");
  add_positive(command, "--length", options.length, "Tokens of a sequence; of a step, tokens read before");
  add_positive(command, "--heads", shape.heads, "Heads; products and layer ops are --heads times --head-dim wide");
  add_positive(command, "--head-dim", shape.head_dim, "d: size of a query, key or value");
  add_positive(command, "--random-features", shape.random_features, "Rows D of the random projection (trig has 2 D features)");
  add_positives(command, "--threads", options.threads, "Numbers of threads to measure with; layer ops run on one", kMaxThreads);
  add_positive(command, "--repeats", options.repeats, "Repetitions per contender; the fastest is reported");
  add_name(command, "--dtype", kDTypes, shape.dtype, "Elements of inputs and outputs of attention and feature maps: f32, bf16");
  add_format_flags(command, flags->output);
  return [flags] {
    const auto records = with_progress([&](Progress& progress) { return bench::measure_isas(flags->options, progress); });
    bench::print_records(records, flags->output.format(), std::cout);
  };
}

}  // namespace raffia::internal::cli
