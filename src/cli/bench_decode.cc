// raffia bench decode: one token for each session, at a given depth.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/arrays.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/machine_probe.h"
#include "raffia/attention.h"

namespace raffia::cli {
namespace {

enum Stream : uint32_t { kQuery, kKey, kValue, kGate };

constexpr float kUnitVariance = 1.7320508F;  // uniform in (-sqrt 3, sqrt 3)

Array4 random_array(const BenchShape& shape, int64_t length, int64_t heads, int64_t dim, Stream stream,
                    float low = -kUnitVariance) {
  Array4 array({shape.batch, length, heads, dim}, shape.dtype, shape.layout);
  array.fill({.seed = shape.seed, .layer = stream}, low, kUnitVariance);
  return array;
}

// The keys and values of `depth` tokens, shared by the softmax steps and by what measures the bandwidth.
struct KvCache {
  Array4 k, v;

  KvCache(const BenchShape& shape, int64_t depth)
      : k(random_array(shape, depth, shape.kv_heads, shape.head_dim, kKey)),
        v(random_array(shape, depth, shape.kv_heads, shape.value_dim, kValue)) {}
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
  const auto step = std::make_shared<Step>(Step{.q = random_array(shape, 1, shape.heads, shape.head_dim, kQuery),
                                                .out = random_array(shape, 1, shape.heads, shape.value_dim, kValue),
                                                .lengths = std::vector<int64_t>(static_cast<size_t>(shape.batch), depth)});
  return [step, cache, &kv = cache->get(), options = SoftmaxOptions{.threads = threads, .executor = &executor}] {
    softmax_step(step->q.without_tokens(), kv.k.view(), kv.v.view(), step->lengths, step->out.without_tokens(), options);
  };
}

std::function<void()> prepare_linear(const BenchShape& shape, Op op, Input input, int threads, Executor& executor) {
  struct Step {
    FeatureMap map;
    State state;
    Array4 q, k, v, gate_logits, out;
  };
  const FeatureMap map = make_map(shape, input);
  const float low = input == Input::features ? 0.0F : -kUnitVariance;  // features that are all positive keep denominators so
  const auto step = std::make_shared<Step>(Step{.map = map,
                                                .state = State(map, {.batch = shape.batch, .value_dim = shape.value_dim}),
                                                .q = random_array(shape, 1, shape.heads, map.dim(), kQuery, low),
                                                .k = random_array(shape, 1, shape.kv_heads, map.dim(), kKey, low),
                                                .v = random_array(shape, 1, shape.kv_heads, shape.value_dim, kValue),
                                                .gate_logits = random_array(shape, 1, shape.kv_heads, 1, kGate),
                                                .out = random_array(shape, 1, shape.heads, shape.value_dim, kValue)});
  const AttentionOptions options{.threads = threads, .executor = &executor};
  if (op == Op::rfa) {
    return [step, options] {
      causal_step(step->q.without_tokens(), step->k.without_tokens(), step->v.without_tokens(), step->map, step->state,
                  step->out.without_tokens(), options);
    };
  }
  const MutView3 gate = step->gate_logits.without_dim();  // [B, 1, G]
  const View2 gate_logits(gate.data(), gate.dtype(), {gate.extent(0), gate.extent(2)}, {gate.stride(0), gate.stride(2)});
  return [step, gate_logits, options] {
    gated_step(step->q.without_tokens(), step->k.without_tokens(), step->v.without_tokens(), gate_logits, step->map, step->state,
               step->out.without_tokens(), options);
  };
}

BenchCase softmax_case(const BenchOptions& options, int64_t depth, const std::shared_ptr<LazyCache>& cache, int64_t threads) {
  const BenchShape& shape = options.shape;
  Record record = describe(options, Op::softmax, Input::qk, depth, threads);
  record.state_bytes = kv_cache_bytes(shape, depth);
  record.bytes_read = record.state_bytes;
  return {.record = std::move(record),
          .flops = static_cast<double>(shape.batch) * softmax_flops(shape, depth),
          .is_printed = std::find(options.ops.begin(), options.ops.end(), Op::softmax) != options.ops.end(),
          .prepare = [shape, depth, cache, threads](Executor& executor) {
            return prepare_softmax(shape, depth, cache, static_cast<int>(threads), executor);
          }};
}

BenchCase linear_case(const BenchOptions& options, Op op, Input input, int64_t depth, int64_t threads) {
  const BenchShape& shape = options.shape;
  const FeatureMap map = make_map(shape, input);
  Record record = describe(options, op, input, depth, threads);
  record.state_bytes = static_cast<int64_t>(State(map, {.batch = shape.batch, .value_dim = shape.value_dim}).size_bytes());
  return {.record = std::move(record),
          .flops = static_cast<double>(shape.batch) * linear_flops(shape, map),
          .prepare = [shape, op, input, threads](Executor& executor) {
            return prepare_linear(shape, op, input, static_cast<int>(threads), executor);
          }};
}

BenchGroup group_at(const BenchOptions& options, int64_t depth) {
  BenchGroup group{.length = depth};
  const auto cache = std::make_shared<LazyCache>(options.shape, depth);
  const bool with_softmax = measures_softmax(options, depth);
  for (const int64_t threads : options.threads) {
    if (with_softmax) group.cases.push_back(softmax_case(options, depth, cache, threads));
    for (const Op op : options.ops) {
      if (op == Op::softmax) continue;
      for (const Input input : options.inputs) group.cases.push_back(linear_case(options, op, input, depth, threads));
    }
  }
  for (BenchCase& bench : group.cases) {
    bench.record.pass = "step";
    bench.record.causal = true;
  }
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

Run add_bench_decode(CLI::App& app) {
  const auto options = std::make_shared<BenchOptions>(BenchOptions{.ops = {Op::softmax, Op::rfa_gate},
                                                                   .inputs = {Input::features, Input::qk},
                                                                   .lengths = {512, 2048, 8192, 32768},
                                                                   .softmax_max_length = 131072});
  add_bench_flags(app, *options);
  return [options] {
    check(*options);
    std::vector<BenchGroup> groups;
    for (const int64_t depth : options->lengths) groups.push_back(group_at(*options, depth));
    run_bench(std::move(groups), *options);
  };
}

}  // namespace raffia::cli
