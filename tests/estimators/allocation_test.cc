// What a decoding step allocates. Every allocation of this program is counted, which sanitizers cannot share: it is not built
// with them.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

#include "core/weight_matrix.h"
#include "estimators/shared/products.h"
#include "raffia/threads.h"
#include "support/arrays.h"

static std::atomic<size_t> allocation_count = 0;
void* operator new(size_t bytes, std::align_val_t alignment) {
  ++allocation_count;
  const size_t unit = static_cast<size_t>(alignment);
  void* memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t bytes) { return operator new (bytes, std::align_val_t{alignof(std::max_align_t)}); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace raffia::internal {
namespace {

TEST(Linear, AStepAllocatesNothing) {
  const std::unique_ptr<Executor> pool = make_thread_pool(2);
  const int64_t rows = 400, columns = 3072;
  const std::vector<float> weights = normals(static_cast<size_t>(rows * columns), 1), x = normals(columns, 2),
                           other = normals(columns, 3);
  for (const auto& [name, type] : kWeightTypes) {
    const StoredWeights stored = store_weights("weights", View2(weights.data(), {rows, columns}), type);
    std::vector<float> y(static_cast<size_t>(3 * rows));
    const auto task = [&](const std::vector<float>& from, int64_t place) {
      return LinearTask{
          .weights = stored.matrix, .x = View2(from.data(), {1, columns}), .y = MutView2(y.data() + place * rows, {1, rows})};
    };
    const LinearTask tasks[] = {task(x, 0), task(other, 1), task(x, 2)};
    for (int threads : {1, 2}) {
      linear(tasks, {.threads = threads, .executor = pool.get()});
      const size_t before = allocation_count;
      linear(tasks, {.threads = threads, .executor = pool.get()});
      EXPECT_EQ(allocation_count, before) << name << ", threads " << threads;
    }
  }
}

}  // namespace
}  // namespace raffia::internal
