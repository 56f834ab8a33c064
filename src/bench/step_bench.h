// What `raffia bench step` measures: attention of one token for each session, at a given depth.
#ifndef RAFFIA_BENCH_STEP_BENCH_H_
#define RAFFIA_BENCH_STEP_BENCH_H_

#include <vector>

#include "bench/op_bench.h"

namespace raffia::internal::bench {

struct StepBenchOptions {
  BenchOptions bench = {.ops = {"softmax", "rfa_gate"},
                        .inputs = {OpInput::features, OpInput::qk},
                        .lengths = {512, 2048, 8192, 32768},  // depths
                        .softmax_max_length = 131072};
};

std::vector<Record> measure_steps(StepBenchOptions options, Observer& observer);  // see run_bench()

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_STEP_BENCH_H_
