#include "cli/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>

#include "cli/interleave.h"
#include "cli/machine.h"
#include "cli/machine_probe.h"
#include "cli/shared/command.h"
#include "cli/shared/estimator_flags.h"
#include "cli/shared/progress.h"
#include "core/message.h"
#include "raffia/error.h"

namespace raffia::cli {
namespace {

constexpr Named<MapKind> kMaps[] = {{"trig", MapKind::trig},         {"arccos", MapKind::arccos},
                                    {"positive", MapKind::positive}, {"positive2", MapKind::positive2},
                                    {"elu", MapKind::elu},           {"relu", MapKind::relu}};
constexpr Named<DType> kDTypes[] = {{"f32", DType::f32}, {"bf16", DType::bf16}};
constexpr Named<ArrayLayout> kLayouts[] = {{"bthd", ArrayLayout::bthd}, {"bhtd", ArrayLayout::bhtd}};
constexpr Named<Isa> kIsas[] = {
    {"scalar", Isa::scalar}, {"neon", Isa::neon}, {"sse4", Isa::sse4}, {"avx2", Isa::avx2}, {"avx512", Isa::avx512}};

FeatureMap random_relu_map(const BenchShape& shape, int64_t features) {
  const Extents<3> weight_shape{shape.kv_heads, features, shape.head_dim};
  const auto rows = static_cast<size_t>(shape.kv_heads * features);
  std::vector<float> weight(rows * static_cast<size_t>(shape.head_dim)), bias(rows);
  RandomStream random({.seed = shape.seed, .draw = 1});
  const auto scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  for (float& w : weight) w = static_cast<float>(scale * random.next_normal());
  return FeatureMap::relu({weight.data(), weight_shape}, {bias.data(), {shape.kv_heads, features}});
}

// One run of each case in a child process. The result is accurate only while this process is small and has no threads.
void measure_memory(std::vector<BenchGroup>& groups, Progress& progress) {
  for (BenchGroup& group : groups) {
    progress.begin(fmt::format("memory at length {}", group.length));
    for (BenchCase& bench : group.cases) {
      bench.record.peak_rss_bytes = peak_rss_of([&bench] {
        const std::unique_ptr<Executor> executor = make_thread_pool(static_cast<int>(bench.record.threads));
        bench.prepare (*executor)();
      });
      progress.advance(bench.flops);
    }
  }
}

// Best of the run by number of threads.
using Peaks = std::map<int64_t, double>;

// Seconds of the contender `op` over those of `record`, if it ran in the same form.
std::optional<double> ratio_to(const char* op, const Record& record, const std::vector<BenchCase>& cases) {
  for (const BenchCase& other : cases) {
    const bool same = other.record.op == op && other.record.causal == record.causal && other.record.pass == record.pass &&
                      other.record.threads == record.threads;
    if (same) return other.record.seconds / record.seconds;
  }
  return std::nullopt;
}

// Adds the ratios that need the other contenders of the group.
void compare(Record& record, const std::vector<BenchCase>& cases) {
  record.ratio_to_softmax = ratio_to("softmax", record, cases);
  record.ratio_to_torch_softmax = ratio_to("torch_softmax", record, cases);
}

void measure_time(BenchGroup& group, Executor& executor, const BenchOptions& options, Peaks& peaks, Progress& progress) {
  std::vector<Contender> contenders;
  for (const BenchCase& bench : group.cases) contenders.push_back({.run = bench.prepare(executor), .work = bench.flops});

  std::vector<double> peak_flops;
  for (const int64_t threads : options.threads) {
    const int count = static_cast<int>(threads);
    peak_flops.push_back(run_multiply_adds(executor, count));
    contenders.push_back({.run = [&executor, count] { run_multiply_adds(executor, count); }});
  }
  if (group.prepare_read) {
    for (const int64_t threads : options.threads) {
      contenders.push_back({.run = group.prepare_read(executor, static_cast<int>(threads))});
    }
  }

  interleave(contenders, static_cast<int>(options.repeats), progress);

  const Contender* peak = contenders.data() + group.cases.size();
  const Contender* read = peak + options.threads.size();
  for (size_t i = 0; i < group.cases.size(); ++i) {
    BenchCase& bench = group.cases[i];
    bench.record.seconds = contenders[i].seconds;
    if (bench.tokens > 0) bench.record.tokens_per_second = static_cast<double>(bench.tokens) / bench.record.seconds;
  }
  for (BenchCase& bench : group.cases) compare(bench.record, group.cases);
  for (size_t i = 0; i < options.threads.size(); ++i) {
    double& best = peaks[options.threads[i]];
    best = std::max(best, peak_flops[i] / peak[i].seconds);
    if (!group.prepare_read) continue;
    for (BenchCase& bench : group.cases) {
      if (bench.record.bytes_read && bench.record.threads == options.threads[i]) {
        bench.record.bandwidth_fraction = read[i].seconds / bench.record.seconds;
      }
    }
  }
}

double total_work(const std::vector<BenchGroup>& groups, int64_t repeats) {
  double flops = 0;
  for (const BenchGroup& group : groups) {
    for (const BenchCase& bench : group.cases) flops += bench.flops;
  }
  return flops * static_cast<double>(repeats + 2);  // one run for memory, one to warm up
}

}  // namespace

void add_bench_flags(CommandLine& command, BenchOptions& options) {
  BenchShape& shape = options.shape;
  add_estimators(
      command, "--ops", options.ops,
      fmt::format("Estimators to compare, with settings as in raffia approx (lara:samples=64): {}", names_of_estimators()));
  add_names(command, "--input", kInputs, options.inputs, "features: phi(q) and phi(k) are given; qk: the op computes the map");
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
  add_format_flags(command, options.output);
}

void check(BenchOptions& options) {
  BenchShape& shape = options.shape;
  if (shape.kv_heads == 0) shape.kv_heads = shape.heads;
  if (shape.value_dim == 0) shape.value_dim = shape.head_dim;
  if (shape.heads % shape.kv_heads != 0) {
    throw UsageError(fmt::format("--kv-heads: {} does not divide --heads {}", shape.kv_heads, shape.heads));
  }
  if (options.no_softmax && options.ops == std::vector<std::string>{std::string(kSoftmax)}) {
    throw UsageError("--no-softmax with --ops softmax: there is nothing to measure");
  }
  if (options.isa) {
    std::vector<std::string_view> names;
    for (const Isa isa : available_isas()) names.push_back(name_of(isa));
    if (std::find(names.begin(), names.end(), name_of(*options.isa)) == names.end()) {
      throw UsageError(fmt::format("--isa: '{}' is not supported on this CPU, expected one of {}", name_of(*options.isa),
                                   fmt::join(names, ", ")));
    }
    set_max_isa(*options.isa);
  }
}

OpForm form_of(const BenchShape& shape, const std::string& spec, OpInput input, bool causal) {
  const Estimator defaults{
      .map = shape.map, .window = shape.window, .chunk = shape.chunk, .features = shape.random_features, .seed = shape.seed};
  OpForm form{.name = spec, .estimator = parse_estimator_of("--ops", spec, defaults), .input = input, .causal = causal};
  Estimator& estimator = form.estimator;
  const EstimatorTraits traits = form.traits();
  if (causal ? !traits.causal : !traits.bidirectional) {
    throw UsageError(causal ? fmt::format("--causal: {} has no causal form", spec) : fmt::format("--ops: {} is causal", spec));
  }
  if (!estimator.samples && traits.has_map) estimator.samples = shape.random_features;
  if (!estimator.samples && traits.has_samples) estimator.samples = shape.samples;
  estimator = module_of(estimator).used(estimator, causal);
  if (causal && traits.has_memory) {
    const std::optional<FeatureMap> map = traits.has_map ? std::optional(make_map(shape, estimator, OpInput::qk)) : std::nullopt;
    try {
      (void)memory_bytes(estimator, memory_sizes(shape, map ? &*map : nullptr, false), 1);
    } catch (const InvalidArgument& error) {
      const std::string said = error.what();  // after the name of a function
      throw UsageError(fmt::format("--ops: {} cannot run with these settings (see --window, --chunk, --samples): {}", spec,
                                   said.substr(said.find(": ") + 2)));
    }
  }
  return form;
}

FeatureMap make_map(const BenchShape& shape, const Estimator& estimator, OpInput input) {
  const FeatureMap map = estimator.map == MapKind::relu
                             ? random_relu_map(shape, estimator.samples.value_or(shape.random_features))
                             : estimator.make_map(shape.head_dim, shape.kv_heads);
  return input == OpInput::qk ? map : FeatureMap::identity(map.features(), shape.kv_heads);
}

MemorySizes memory_sizes(const BenchShape& shape, const FeatureMap* map, bool has_far) {
  return {.batch = shape.batch,
          .query_heads = shape.heads,
          .heads = shape.kv_heads,
          .dim = shape.head_dim,
          .value_dim = shape.value_dim,
          .map = map,
          .has_far = has_far};
}

bool measures_softmax(const BenchOptions& options, int64_t length) {
  return !options.no_softmax && length <= options.softmax_max_length;
}

bool asks_for_softmax(const BenchOptions& options) {
  return std::find(options.ops.begin(), options.ops.end(), kSoftmax) != options.ops.end();
}

std::vector<OpInput> inputs_of(const BenchOptions& options, const std::string& spec) {
  return traits_of(parse_estimator_of("--ops", spec)).has_map ? options.inputs : std::vector<OpInput>{OpInput::qk};
}

std::vector<Record> run_bench(std::vector<BenchGroup> groups, const BenchOptions& options) {
  std::vector<Record> records;
  std::vector<double> flops;
  Peaks peaks;
  {
    Progress progress(total_work(groups, options.repeats));
    for (const BenchGroup& group : groups) {
      if (options.no_softmax || measures_softmax(options, group.length)) continue;
      progress.note(fmt::format("softmax is skipped at length {}, which is above --softmax-max-length {}", group.length,
                                options.softmax_max_length));
    }
    measure_memory(groups, progress);
    const auto max_threads = *std::max_element(options.threads.begin(), options.threads.end());
    const std::unique_ptr<Executor> executor = make_thread_pool(static_cast<int>(max_threads));
    for (BenchGroup& group : groups) {
      progress.begin(fmt::format("time at length {}", group.length));
      measure_time(group, *executor, options, peaks, progress);
      for (const BenchCase& bench : group.cases) {
        if (!bench.is_printed) continue;
        records.push_back(bench.record);
        flops.push_back(bench.flops);
      }
      group = {};  // frees its arrays
    }
    for (const auto& [threads, peak] : peaks) {
      progress.note(
          fmt::format("multiply-add peak with {} thread{}: {:.1f} GFLOP/s", threads, threads == 1 ? "" : "s", 1e-9 * peak));
    }
  }
  for (size_t i = 0; i < records.size(); ++i) {
    records[i].gflops = 1e-9 * flops[i] / records[i].seconds;
    records[i].peak_fraction = flops[i] / records[i].seconds / peaks[records[i].threads];
  }
  print_records(records, options.output.format(), std::cout);
  return records;
}

}  // namespace raffia::cli
