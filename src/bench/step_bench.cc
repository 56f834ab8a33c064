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
#include "raffia/attention.h"

namespace raffia::internal::bench {
namespace {

// The keys and values of `depth` tokens, shared by the softmax steps and by what measures the bandwidth.
struct KvCache {
  Array4 k, v;

  KvCache(const BenchShape& shape, int64_t depth)
      : k(random_array(shape, depth, shape.kv_heads, shape.head_dim, StepArray::key)),
        v(random_array(shape, depth, shape.kv_heads, shape.value_dim, StepArray::value)) {}
};

// Made when first asked for.
class LazyCache {
 public:
  LazyCache(const BenchShape& shape, int64_t depth) : shape_(shape), depth_(depth) {}
  const KvCache& get() {
    if (!cache_) cache_ = std::make_unique<KvCache>(shape_, depth_);
    return *cache_;
  }

 private:
  BenchShape shape_;
  int64_t depth_;
  std::unique_ptr<KvCache> cache_;
};

std::function<void()> prepare_softmax(const BenchShape& shape, int64_t depth, const std::shared_ptr<LazyCache>& cache,
                                      int threads, Executor& executor) {
  struct Step {
    Array4 q, out;
    std::vector<int64_t> lengths;
  };
  const auto step = std::make_shared<Step>(Step{.q = random_array(shape, 1, shape.heads, shape.head_dim, StepArray::query),
                                                .out = random_array(shape, 1, shape.heads, shape.value_dim, StepArray::out),
                                                .lengths = std::vector<int64_t>(static_cast<size_t>(shape.batch), depth)});
  return [step, cache, &kv = cache->get(), options = SoftmaxOptions{.run = {.threads = threads, .executor = &executor}}] {
    softmax_step(step->q.without_tokens(), kv.k.view(), kv.v.view(), step->lengths, step->out.without_tokens(), options);
  };
}

BenchCase softmax_case(const BenchOptions& options, int64_t depth, const std::shared_ptr<LazyCache>& cache, int64_t threads) {
  const BenchShape& shape = options.shape;
  const OpForm form{.causal = true};
  Record record = describe(shape, form, depth, threads);
  record.bytes_read = record.state_bytes;
  return {.record = std::move(record),
          .flops = step_flops(shape, form, depth),
          .is_printed = asks_for_softmax(options),
          .prepare = [shape, depth, cache, threads](Executor& executor) {
            return prepare_softmax(shape, depth, cache, static_cast<int>(threads), executor);
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
      return [cache, &kv = cache->get(), &executor, threads] {
        read_bytes(kv.k.bytes(), executor, threads);
        read_bytes(kv.v.bytes(), executor, threads);
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
