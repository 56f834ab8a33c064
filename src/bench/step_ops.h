// One decoding step of any op with a state, for timing.
#ifndef RAFFIA_BENCH_STEP_OPS_H_
#define RAFFIA_BENCH_STEP_OPS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "bench/arrays.h"
#include "bench/op_form.h"
#include "raffia/threads.h"

namespace raffia::internal::bench {

enum class StepArray : uint32_t { query, key, value, gate, far_query, far_key, out };

// [batch, length, heads, dim], of variance 1; features are positive, so that denominators are, too.
Array4 random_array(const BenchShape& shape, int64_t length, int64_t heads, int64_t dim, StepArray which,
                    OpInput input = OpInput::qk);

// The keys and values of `depth` tokens.
struct KvCache {
  Array4 k, v;

  KvCache(const BenchShape& shape, int64_t depth);
};

// One token for each session of `shape.batch`, whose cache is full.
std::function<void()> prepare_softmax_step(const BenchShape& shape, std::shared_ptr<const KvCache> cache, int threads,
                                           Executor& executor);

// One token for each session of `shape.batch`, after `depth` others. A State advances by the token; memories with windows stay at
// their depth.
std::function<void()> prepare_step(const BenchShape& shape, const OpForm& form, int64_t depth, int threads, Executor& executor);

// Steps from one that ends a window to the next: their mean is the cost of a step. 1: every step costs the same.
int64_t steps_of_window(const OpForm& form);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_STEP_OPS_H_
