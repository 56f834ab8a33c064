#include "bench/torch/train_bench.h"

#include <string>
#include <utility>

namespace raffia::internal::bench {
namespace {

// Attention in plain torch whose time and memory grow with the square of the length.
bool is_measured(const TrainBenchOptions& options, const TrainOp& op, int64_t length) {
  return !op.is_plain || !op.form.traits().is_exact || length <= options.torch_max_length;
}

std::vector<BenchGroup> groups_of(const TrainBenchOptions& options) {
  const BenchShape& shape = options.bench.shape;
  const auto models = make_models(shape, options.model);
  std::vector<BenchGroup> groups;
  for (const int64_t length : options.bench.lengths) {
    BenchGroup& group = groups.emplace_back(BenchGroup{.length = length});
    const auto inputs = make_layer_inputs(shape, length);
    for (const int64_t threads : options.bench.threads) {
      for (const std::string& spec : options.bench.ops) {
        const TrainOp op = train_op_of(shape, spec);
        if (!is_measured(options, op, length)) continue;
        const int count = static_cast<int>(threads);
        BenchCase bench{.record = describe(shape, op, length, threads), .tokens = shape.batch * length};
        if (options.what == TrainBenchOptions::What::layer) {
          bench.flops = layer_flops(shape, op, length);
          bench.prepare = [op, inputs, count](Executor&) { return prepare_layer(op, inputs, count); };
        } else {
          bench.record.layers = options.model.layers;
          bench.flops = model_flops(shape, options.model, op, length);
          bench.prepare = [op, models, length, count](Executor&) { return prepare_model(op, models, length, count); };
        }
        group.cases.push_back(std::move(bench));
      }
    }
  }
  return groups;
}

}  // namespace

std::vector<Record> measure_training(TrainBenchOptions options, Observer& observer) {
  check(options.bench);
  return run_bench(groups_of(options), options.bench, observer);
}

}  // namespace raffia::internal::bench
