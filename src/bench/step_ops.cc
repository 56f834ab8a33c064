#include "bench/step_ops.h"

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "raffia/attention.h"
#include "raffia/estimator.h"

namespace raffia::internal::bench {
namespace {

// One token of every session, and their memories. q and k are features where these are all that the op reads.
struct Step {
  Estimator estimator;
  const EstimatorModule& module;
  std::vector<float> log_scale;
  std::optional<FeatureMap> map;
  std::deque<Array4> arrays;
  AttendInputs inputs;
  std::optional<Array4> out;
  std::vector<Memory> memories;
  std::vector<Memory*> sessions;
  AttendOptions options;

  Step(const BenchShape& shape, const OpForm& form, int threads, Executor& executor);
  void run() { module.step(estimator, inputs, sessions, out->view(), options); }  // as the runtime does
  void count_as(int64_t tokens);

 private:
  View4 token(const BenchShape& shape, int64_t heads, int64_t dim, StepArray which, OpInput input = OpInput::qk) {
    return arrays.emplace_back(random_array(shape, 1, heads, dim, which, input)).view();
  }
};

Step::Step(const BenchShape& shape, const OpForm& form, int threads, Executor& executor)
    : estimator(form.estimator),
      module(module_of(estimator)),
      options{.causal = true, .run = {.threads = threads, .executor = &executor}} {
  const EstimatorTraits traits = form.traits();
  if (traits.has_map) inputs.map = &map.emplace(make_map(shape, estimator, form.input));
  const bool reads_features = traits.has_map && !traits.blends;
  const OpInput input = reads_features ? form.input : OpInput::qk;
  const int64_t dim = reads_features ? map->dim() : shape.head_dim;
  inputs.q = token(shape, shape.heads, dim, StepArray::query, input);
  inputs.k = token(shape, shape.kv_heads, dim, StepArray::key, input);
  inputs.v = token(shape, shape.kv_heads, shape.value_dim, StepArray::value);
  if (traits.is_gated) {
    inputs.gate_logits = arrays.emplace_back(random_array(shape, 1, shape.kv_heads, 1, StepArray::gate)).without_dim();
  }
  if (traits.blends) {
    log_scale.assign(static_cast<size_t>(shape.heads), -2.0F);  // where training starts
    inputs.log_scale = {log_scale.data(), {shape.heads}};
  }
  if (traits.blends && form.input == OpInput::features) {
    inputs.q_far = token(shape, shape.heads, map->dim(), StepArray::far_query, form.input);
    inputs.k_far = token(shape, shape.kv_heads, map->dim(), StepArray::far_key, form.input);
  }
  out.emplace(random_array(shape, 1, shape.heads, shape.value_dim, StepArray::out));
  MemorySizes sizes = memory_sizes(shape, inputs.map, !inputs.k_far.absent());
  sizes.batch = 1;
  memories.assign(static_cast<size_t>(shape.batch), empty_memory(estimator, sizes));
  for (Memory& memory : memories) sessions.push_back(&memory);
}

void Step::count_as(int64_t tokens) {
  for (Memory& memory : memories) {
    if (WindowState* window = memory.window_state()) window->tokens(0) = tokens;
    if (KeyCache* cache = memory.key_cache()) cache->count_as(0, tokens);
  }
}

// After so many tokens, more of them fill nothing that was empty: samples or summaries, and two windows to fold some and begin
// one. 0: nothing has to be filled.
int64_t filling_tokens(const Estimator& estimator, int64_t window) {
  return module_of(estimator).sizes(estimator, true).samples.value_or(0) * estimator.chunk + 3 * window;
}

}  // namespace

Array4 random_array(const BenchShape& shape, int64_t length, int64_t heads, int64_t dim, StepArray which, OpInput input) {
  Array4 array({shape.batch, length, heads, dim}, shape.dtype, shape.layout);
  array.fill({.seed = shape.seed, .layer = static_cast<uint32_t>(which)}, input == OpInput::features ? 0.0F : -kUnitVariance,
             kUnitVariance);
  return array;
}

KvCache::KvCache(const BenchShape& shape, int64_t depth)
    : k(random_array(shape, depth, shape.kv_heads, shape.head_dim, StepArray::key)),
      v(random_array(shape, depth, shape.kv_heads, shape.value_dim, StepArray::value)) {}

std::function<void()> prepare_softmax_step(const BenchShape& shape, std::shared_ptr<const KvCache> cache, int threads,
                                           Executor& executor) {
  struct SoftmaxStep {
    Array4 q, out;
    std::shared_ptr<const KvCache> cache;
    std::vector<int64_t> lengths;
  };
  const int64_t depth = cache->k.view().extent(1);
  const auto step =
      std::make_shared<SoftmaxStep>(SoftmaxStep{.q = random_array(shape, 1, shape.heads, shape.head_dim, StepArray::query),
                                                .out = random_array(shape, 1, shape.heads, shape.value_dim, StepArray::out),
                                                .cache = std::move(cache),
                                                .lengths = std::vector<int64_t>(static_cast<size_t>(shape.batch), depth)});
  return [step, options = SoftmaxOptions{.run = {.threads = threads, .executor = &executor}}] {
    softmax_step(step->q.without_tokens(), step->cache->k.view(), step->cache->v.view(), step->lengths,
                 step->out.without_tokens(), options);
  };
}

int64_t steps_of_window(const OpForm& form) { return module_of(form.estimator).sizes(form.estimator, true).window.value_or(1); }

std::function<void()> prepare_step(const BenchShape& shape, const OpForm& form, int64_t depth, int threads, Executor& executor) {
  const auto step = std::make_shared<Step>(shape, form, threads, executor);
  const std::optional<int64_t> window = module_of(form.estimator).sizes(form.estimator, true).window;
  if (!window) return [step] { step->run(); };  // every step costs the same
  const int64_t filling = filling_tokens(form.estimator, *window);
  const int64_t steps = depth <= filling ? depth : filling + (depth - filling) % *window;
  for (int64_t i = 0; i < steps; ++i) step->run();
  step->count_as(depth);
  // What follows goes through one window after the other, and back to the depth after each.
  return [step, depth, window = *window, taken = int64_t{0}]() mutable {
    step->run();
    if (++taken % window == 0) step->count_as(depth);
  };
}

}  // namespace raffia::internal::bench
