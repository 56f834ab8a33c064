// What `raffia bench session` measures: what it costs to start, keep, move and copy a session.
#ifndef RAFFIA_BENCH_SESSION_BENCH_H_
#define RAFFIA_BENCH_SESSION_BENCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "bench/format.h"
#include "bench/model_bench.h"
#include "bench/observer.h"
#include "raffia/estimator.h"

namespace raffia::internal::bench {

struct SessionBenchOptions {
  // A language model of bytes with 20 MB of weights.
  ModelBenchOptions bench = {
      .models = {.layers = 6, .width = 256, .heads = 4, .vocabulary = 260, .estimators = {parse_estimator("rfa_gate")}},
      .cache_limit = 1};
  std::vector<int64_t> depths = {100, 100000};
  int64_t prompt = 8192;  // tokens of the prompt in the prefix cache
  // Starts a process that loads the model in the directory, reads a prompt, writes one token and ends; returns after its end.
  std::function<void(const BenchModel& bench, int64_t threads)> start;
};

// The fields with the names they are printed under; docs/cli.md explains them.
struct SessionRecord {
  std::string test, op;
  std::optional<std::string> model;
  int64_t depth = 0, threads = 0, weight_bytes = 0;
  std::optional<int64_t> bytes;  // of the file, or of the snapshot
  double seconds = 0;
};

// Throws OptionError for models that there are not.
std::vector<SessionRecord> measure_sessions(const SessionBenchOptions& options, Observer& observer);

void print_records(std::span<const SessionRecord> records, Format format, std::ostream& out);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_SESSION_BENCH_H_
