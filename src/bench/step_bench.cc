#include "bench/step_bench.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/arrays.h"
#include "bench/error.h"
#include "bench/machine_probe.h"
#include "bench/step_ops.h"

namespace raffia::internal::bench {
namespace {

// Made when first asked for; shared by the softmax steps and by what measures the bandwidth.
class LazyCache {
 public:
  LazyCache(const BenchShape& shape, int64_t depth) : shape_(shape), depth_(depth) {}
  const std::shared_ptr<const KvCache>& get() {
    if (!cache_) cache_ = std::make_shared<KvCache>(shape_, depth_);
    return cache_;
  }

 private:
  BenchShape shape_;
  int64_t depth_;
  std::shared_ptr<const KvCache> cache_;
};

BenchCase softmax_case(const BenchOptions& options, int64_t depth, const std::shared_ptr<LazyCache>& cache, int64_t threads) {
  const BenchShape& shape = options.shape;
  const OpForm form{.causal = true};
  Record record = describe(shape, form, depth, threads);
  record.bytes_read = record.state_bytes;
  return {.record = std::move(record),
          .flops = step_flops(shape, form, depth),
          .is_printed = asks_for_softmax(options),
          .prepare = [shape, cache, threads](Executor& executor) {
            return prepare_softmax_step(shape, cache->get(), static_cast<int>(threads), executor);
          }};
}

BenchCase stateful_case(const BenchShape& shape, const OpForm& form, int64_t depth, int64_t threads) {
  return {.record = describe(shape, form, depth, threads),
          .flops = step_flops(shape, form, depth),
          .prepare = [shape, form, depth, threads](Executor& executor) {
            return prepare_step(shape, form, depth, static_cast<int>(threads), executor);
          }};
}

BenchGroup group_at(const BenchOptions& options, int64_t depth) {
  BenchGroup group{.length = depth};
  const auto cache = std::make_shared<LazyCache>(options.shape, depth);
  const bool with_softmax = measures_softmax(options, depth);
  for (const int64_t threads : options.threads) {
    if (with_softmax) group.cases.push_back(softmax_case(options, depth, cache, threads));
    for (const std::string& op : options.ops) {
      if (op == kSoftmax) continue;
      for (const OpInput input : inputs_of(options, op)) {
        group.cases.push_back(stateful_case(options.shape, form_of(options.shape, op, input, true), depth, threads));
      }
    }
  }
  for (BenchCase& bench : group.cases) bench.record.pass = "step";
  if (with_softmax) {
    group.prepare_read = [cache](Executor& executor, int threads) -> std::function<void()> {
      return [kv = cache->get(), &executor, threads] {
        read_bytes(kv->k.bytes(), executor, threads);
        read_bytes(kv->v.bytes(), executor, threads);
      };
    };
  }
  return group;
}

}  // namespace

std::vector<Record> measure_steps(StepBenchOptions options, Observer& observer) {
  BenchOptions& bench = options.bench;
  check(bench);
  for (const std::string& op : bench.ops) {
    const EstimatorTraits traits = form_of(bench.shape, op, OpInput::qk, true).traits();
    if (op != kSoftmax && !(traits.has_memory && traits.constant_memory)) {
      throw OptionError(fmt::format("--ops: {} has no step of constant cost, expected softmax, {}", op,
                                    kinds_with(&EstimatorTraits::constant_memory)));
    }
  }
  std::vector<BenchGroup> groups;
  for (const int64_t depth : bench.lengths) groups.push_back(group_at(bench, depth));
  return run_bench(std::move(groups), bench, observer);
}

}  // namespace raffia::internal::bench
