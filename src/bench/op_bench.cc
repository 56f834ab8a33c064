#include "bench/op_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "bench/error.h"
#include "bench/interleave.h"
#include "bench/machine.h"
#include "bench/machine_probe.h"
#include "raffia/estimator.h"

namespace raffia::internal::bench {
namespace {

// One run of each case in a child process. The result is accurate only while this process is small and has no threads.
void measure_memory(std::vector<BenchGroup>& groups, Observer& observer) {
  for (BenchGroup& group : groups) {
    observer.begin(fmt::format("memory at length {}", group.length));
    for (BenchCase& bench : group.cases) {
      bench.record.peak_rss_bytes = peak_rss_of([&bench] {
        const std::unique_ptr<Executor> executor = make_thread_pool(static_cast<int>(bench.record.threads));
        bench.prepare (*executor)();
      });
      observer.advance(bench.flops);
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

void measure_time(BenchGroup& group, Executor& executor, const BenchOptions& options, Peaks& peaks, Observer& observer) {
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

  interleave(contenders, static_cast<int>(options.repeats), observer);

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

void check(BenchOptions& options) {
  check(options.shape);
  if (options.no_softmax && options.ops == std::vector<std::string>{std::string(kSoftmax)}) {
    throw OptionError("--no-softmax with --ops softmax: there is nothing to measure");
  }
  if (options.isa) {
    std::vector<std::string_view> names;
    for (const Isa isa : available_isas()) names.push_back(name_of(isa));
    if (std::find(names.begin(), names.end(), name_of(*options.isa)) == names.end()) {
      throw OptionError(fmt::format("--isa: '{}' is not supported on this CPU, expected one of {}", name_of(*options.isa),
                                    fmt::join(names, ", ")));
    }
    set_max_isa(*options.isa);
  }
}

bool measures_softmax(const BenchOptions& options, int64_t length) {
  return !options.no_softmax && length <= options.softmax_max_length;
}

bool asks_for_softmax(const BenchOptions& options) {
  return std::find(options.ops.begin(), options.ops.end(), kSoftmax) != options.ops.end();
}

std::vector<OpInput> inputs_of(const BenchOptions& options, const std::string& spec) {
  return traits_of(parse_estimator(spec)).has_map ? options.inputs : std::vector<OpInput>{OpInput::qk};
}

std::vector<Record> run_bench(std::vector<BenchGroup> groups, const BenchOptions& options, Observer& observer) {
  std::vector<Record> records;
  std::vector<double> flops;
  Peaks peaks;
  observer.start(total_work(groups, options.repeats));
  for (const BenchGroup& group : groups) {
    if (options.no_softmax || measures_softmax(options, group.length)) continue;
    observer.note(fmt::format("softmax is skipped at length {}, which is above --softmax-max-length {}", group.length,
                              options.softmax_max_length));
  }
  measure_memory(groups, observer);
  const auto max_threads = *std::max_element(options.threads.begin(), options.threads.end());
  const std::unique_ptr<Executor> executor = make_thread_pool(static_cast<int>(max_threads));
  for (BenchGroup& group : groups) {
    observer.begin(fmt::format("time at length {}", group.length));
    measure_time(group, *executor, options, peaks, observer);
    for (const BenchCase& bench : group.cases) {
      if (!bench.is_printed) continue;
      records.push_back(bench.record);
      flops.push_back(bench.flops);
    }
    group = {};  // frees its arrays
  }
  for (const auto& [threads, peak] : peaks) {
    observer.note(
        fmt::format("multiply-add peak with {} thread{}: {:.1f} GFLOP/s", threads, threads == 1 ? "" : "s", 1e-9 * peak));
  }
  for (size_t i = 0; i < records.size(); ++i) {
    records[i].gflops = 1e-9 * flops[i] / records[i].seconds;
    records[i].peak_fraction = flops[i] / records[i].seconds / peaks[records[i].threads];
  }
  return records;
}

}  // namespace raffia::internal::bench
