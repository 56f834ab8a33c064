// Compiled with OpenMP and without the precompiled header: at::parallel_for is a template that runs serially otherwise.
#include "torch/ops/executor.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

#ifndef _OPENMP
#error "executor.cc needs OpenMP: at::parallel_for of this LibTorch is serial without it"
#endif

namespace raffia::internal::ops {
namespace {

class TorchExecutor final : public Executor {
 public:
  int concurrency() const override { return at::in_parallel_region() ? 1 : std::max(1, at::get_num_threads()); }

  // Each worker takes tasks from one counter until none is left. If torch starts fewer threads than workers, one thread runs
  // several workers one after another.
  void run(int64_t count, int max_workers, const std::function<void(int64_t index, int worker)>& task) override {
    const int64_t workers = std::min<int64_t>(std::min(max_workers, concurrency()), count);
    std::atomic<int64_t> next{0};
    std::mutex error_mutex;
    std::exception_ptr error;
    const auto work = [&](int64_t first, int64_t end) {
      for (int64_t worker = first; worker < end; ++worker) {
        for (int64_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
          try {
            task(index, static_cast<int>(worker));
          } catch (...) {
            const std::lock_guard lock(error_mutex);
            if (!error) error = std::current_exception();
          }
        }
      }
    };
    if (workers <= 1) {
      work(0, 1);
    } else {
      at::parallel_for(0, workers, 1, work);
    }
    if (error) std::rethrow_exception(error);
  }
};

}  // namespace

Executor& torch_executor() {
  static TorchExecutor executor;
  return executor;
}

}  // namespace raffia::internal::ops
