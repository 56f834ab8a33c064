// Common to the benchmarks of attention, steps and training: what is measured, and the run itself.
#ifndef RAFFIA_BENCH_OP_BENCH_H_
#define RAFFIA_BENCH_OP_BENCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/observer.h"
#include "bench/op_form.h"
#include "bench/records.h"
#include "raffia/isa.h"
#include "raffia/threads.h"

namespace raffia::internal::bench {

struct BenchOptions {
  BenchShape shape;
  std::vector<std::string> ops;  // estimators
  std::vector<OpInput> inputs = {OpInput::qk};
  std::vector<int64_t> lengths;
  std::vector<int64_t> threads = {1};
  int64_t repeats = 7;
  bool no_softmax = false;
  int64_t softmax_max_length = 0;
  std::optional<Isa> isa;
};

// Checks the shape, and limits the ISA. Throws OptionError if options contradict each other.
void check(BenchOptions& options);

// One contender at one shape.
struct BenchCase {
  Record record;                                                     // all fields that are known before measuring
  double flops = 0;                                                  // of one run
  int64_t tokens = 0;                                                // of one run; 0: tokens per second are not reported
  bool is_printed = true;                                            // false: softmax, measured only for the ratios
  std::function<std::function<void()>(Executor& executor)> prepare;  // allocates its arrays and returns the function to time
};

// Cases that are interleaved: same length.
struct BenchGroup {
  int64_t length = 0;
  std::vector<BenchCase> cases;
  // Optional: reads the bytes of the softmax cases once, to compute the fraction of the bandwidth that they reach.
  std::function<std::function<void()>(Executor& executor, int threads)> prepare_read;
};

// Whether softmax runs at this length, printed or not.
bool measures_softmax(const BenchOptions& options, int64_t length);
bool asks_for_softmax(const BenchOptions& options);

// The inputs that an estimator runs with: those without a map run once for any.
std::vector<OpInput> inputs_of(const BenchOptions& options, const std::string& spec);

// Measures memory, then time. Call it before the first thread is started: it forks.
std::vector<Record> run_bench(std::vector<BenchGroup> groups, const BenchOptions& options, Observer& observer);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_OP_BENCH_H_
