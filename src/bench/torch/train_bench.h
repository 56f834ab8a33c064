// What `raffia bench train` measures: a forward and backward pass of an attention layer or of a whole model, against plain torch.
#ifndef RAFFIA_BENCH_TORCH_TRAIN_BENCH_H_
#define RAFFIA_BENCH_TORCH_TRAIN_BENCH_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "bench/op_bench.h"
#include "bench/torch/train_ops.h"

namespace raffia::internal::bench {

struct TrainBenchOptions {
  enum class What : uint8_t { layer, model };

  BenchOptions bench = {.ops = {"softmax", "torch_softmax", "rfa_gate", "torch_chunked"},
                        .lengths = {512, 2048, 8192},
                        .repeats = 5,
                        .softmax_max_length = std::numeric_limits<int64_t>::max()};
  What what = What::layer;
  int64_t torch_max_length = 8192;  // of contenders in plain torch whose cost grows with the square of the length
  ModelShape model;
};

std::vector<Record> measure_training(TrainBenchOptions options, Observer& observer);  // see run_bench()

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_TORCH_TRAIN_BENCH_H_
