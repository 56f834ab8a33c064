// What `raffia bench attention` measures: attention over whole sequences.
#ifndef RAFFIA_BENCH_ATTENTION_BENCH_H_
#define RAFFIA_BENCH_ATTENTION_BENCH_H_

#include <cstdint>
#include <vector>

#include "bench/op_bench.h"

namespace raffia::internal::bench {

struct AttentionBenchOptions {
  BenchOptions bench = {.ops = {"softmax", "rfa", "rfa_gate"}, .lengths = {512, 2048, 8192}, .softmax_max_length = 16384};
  std::vector<Pass> passes = {Pass::forward};
  bool causal = false;
  std::vector<int64_t> segments = {0};
};

std::vector<Record> measure_attention(AttentionBenchOptions options, Observer& observer);  // see run_bench()

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_ATTENTION_BENCH_H_
