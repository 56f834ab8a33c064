// What every op does before its kernels run: finds the tokens that attend to each other, the rows of a head, and the workers.
#ifndef RAFFIA_ESTIMATORS_SHARED_SEQUENCES_H_
#define RAFFIA_ESTIMATORS_SHARED_SEQUENCES_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "core/scratch.h"
#include "core/sibling_api.h"
#include "kernels/rows.h"
#include "raffia/attention.h"

namespace raffia::internal {

// Tokens that attend to each other, in entry `batch` of q, k, v. Its index in the list is its batch entry in a state.
struct Sequence {
  int64_t batch;
  int64_t first_query, queries;
  int64_t first_key, keys;
};

// Checks the layout against the shapes. `lengths` apply to keys, and also to queries if there are as many of them.
RAFFIA_SIBLING_API std::vector<Sequence> sequences_of(const char* function, const Layout& layout, int64_t batch, int64_t queries,
                                                      int64_t keys);

// Sets tokens [begin, T) of a batch entry, which are outside of all sequences, to zero (or another value).
void fill_rest(MutView4 view, int64_t b, int64_t begin);
void fill_rest(MutView3 view, int64_t b, int64_t begin, float value);

// A view [B, T, H] of one number per token and head, as rows of one column.
template <class AnyRows, class AnyView>
AnyRows column_of(const AnyView& view, int64_t b, int64_t t, int64_t h) {
  if (view.absent()) return {};
  auto* bytes = static_cast<std::conditional_t<std::is_same_v<AnyRows, MutRows>, std::byte, const std::byte>*>(view.data());
  bytes += view.offset(b, t, h) * static_cast<int64_t>(size_of(view.dtype()));
  return {bytes, view.dtype(), view.stride(1), 1};
}

// One row of fp32 with contiguous columns.
inline float* row(const MutView4& view, int64_t b, int64_t t, int64_t h) { return rows_of<MutRows>(view, b, t, h).direct_row(0); }

// Floats read by a step of one token, below which waking other threads costs more than it saves.
inline constexpr int64_t kMinParallelFloats = 1 << 17;

// Calls of one token, [B, H, D], with a time axis of 1.
inline View4 with_time(View3 view) {
  return View4(view.data(), view.dtype(), {view.extent(0), 1, view.extent(1), view.extent(2)},
               {view.stride(0), 0, view.stride(1), view.stride(2)});
}
inline MutView4 with_time(MutView3 view) {
  return MutView4(view.data(), view.dtype(), {view.extent(0), 1, view.extent(1), view.extent(2)},
                  {view.stride(0), 0, view.stride(1), view.stride(2)});
}

// The executor and number of workers from the options of an op.
class Workers {
 public:
  explicit Workers(const RunOptions& run)
      : executor_(run.executor != nullptr ? *run.executor : default_executor()),
        count_(run.threads > 0 ? std::min(run.threads, executor_.concurrency()) : executor_.concurrency()) {}

  int count() const { return count_; }

  // body(index of the task, scratch of the worker)
  template <class Body>
  void run(int64_t tasks, const Scratch& scratch, const Body& body) const {
    executor_.run(tasks, count_, [&](int64_t index, int worker) { body(index, scratch.of(worker)); });
  }

  // kernel(task, scratch of the worker)
  template <class Task, class Kernel>
  void run(const std::vector<Task>& tasks, const Scratch& scratch, const Kernel& kernel) const {
    run(static_cast<int64_t>(tasks.size()), scratch,
        [&](int64_t index, float* memory) { kernel(tasks[static_cast<size_t>(index)], memory); });
  }

 private:
  Executor& executor_;
  int count_;
};

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_SHARED_SEQUENCES_H_
