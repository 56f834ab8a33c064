#include "estimators/shared/products.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/check.h"
#include "core/scratch.h"
#include "core/trace.h"
#include "kernels/weight_product.h"

namespace raffia::internal {
namespace {

// Bytes of weights (or the equivalent in multiply-adds) below which another thread costs more than it saves.
constexpr int64_t kMinParallel = 1 << 16;
constexpr int64_t kPiecesPerWorker = 4;

void require_task(const LinearTask& task) {
  constexpr const char* kName = "linear";
  const WeightMatrix& weights = task.weights;
  require(weights.rows >= 0 && weights.columns >= 0 && (weights.data != nullptr || weights.rows * weights.columns == 0),
          "{}: weights is [{}, {}] {} memory, expected sizes of at least 0 and memory", kName, weights.rows, weights.columns,
          weights.data == nullptr ? "without" : "with");
  require(weights.type != WeightType::int8 || weights.scales != nullptr || weights.rows == 0,
          "{}: weights is int8 without scales, expected one for each of {} rows", kName, weights.rows);
  const int64_t tokens = task.x.extent(0);
  require_dtype(kName, "x", task.x, {DType::f32});
  require_dtype(kName, "y", task.y, {DType::f32});
  require_shape(kName, "x", task.x, {tokens, weights.columns}, "columns of the weights");
  require_shape(kName, "y", task.y, {tokens, weights.rows}, "tokens of x, rows of the weights");
  require((weights.columns < 2 || task.x.stride(1) == 1) && (weights.rows < 2 || task.y.stride(1) == 1),
          "{}: columns of x are {} elements apart, those of y {}, expected 1", kName, task.x.stride(1), task.y.stride(1));
}

WeightProduct product_of(const LinearTask& task) {
  return {.weights = task.weights,
          .bias = task.bias,
          .tokens = static_cast<size_t>(task.x.extent(0)),
          .x = static_cast<const float*>(task.x.data()),
          .x_stride = task.x.stride(0),
          .y = static_cast<float*>(task.y.data()),
          .y_stride = task.y.stride(0),
          .any_company = task.any_company};
}

// The cost of a row, in bytes read from memory. About 4 tokens are computed in the time in which one weight is read.
int64_t row_cost(const LinearTask& task) {
  return static_cast<int64_t>(task.weights.row_bytes()) + task.weights.columns * (task.x.extent(0) / 2);
}

}  // namespace

void linear(std::span<const LinearTask> tasks, const RunOptions& run) {
  require(run.threads >= 0, "linear: threads is {}, expected at least 0", run.threads);
  if (tasks.empty()) return;
  int64_t cost = 0;
  size_t scratch_floats = 0;
  for (const LinearTask& task : tasks) {
    require_task(task);
    cost += task.weights.rows * row_cost(task);
    scratch_floats = std::max(scratch_floats, weight_product_scratch_floats(product_of(task)));
  }
  const Trace trace("linear", "x", tasks.front().x);
  Executor& runner = run.executor != nullptr ? *run.executor : default_executor();
  const int max = run.threads > 0 ? std::min(run.threads, runner.concurrency()) : runner.concurrency();
  const int workers = cost < 2 * kMinParallel ? 1 : max;
  std::optional<Scratch> scratch;
  if (scratch_floats > 0) scratch.emplace(workers, scratch_floats);
  const auto memory = [&](int worker) { return scratch ? scratch->of(worker) : nullptr; };

  if (workers == 1) {
    for (const LinearTask& task : tasks) weight_product(product_of(task), 0, task.weights.rows, memory(0));
    return;
  }
  // Pieces of about the same cost, several per worker so that a slow worker delays no others; each is a run of rows of one task.
  const int64_t piece_cost = std::max(kMinParallel, cost / (workers * kPiecesPerWorker));
  const auto rows_of_piece = [&](const LinearTask& task) {
    const int64_t unit = task.any_company ? kProductRows : kGemmPieceRows;
    return std::max<int64_t>(1, piece_cost / std::max<int64_t>(1, row_cost(task)) / unit) * unit;
  };
  const auto pieces_of = [&](const LinearTask& task) {
    const int64_t rows = rows_of_piece(task);
    return (task.weights.rows + rows - 1) / rows;
  };
  int64_t pieces = 0;
  for (const LinearTask& task : tasks) pieces += pieces_of(task);
  runner.run(pieces, workers, [&](int64_t index, int worker) {
    size_t t = 0;
    for (int64_t here; index >= (here = pieces_of(tasks[t])); ++t) index -= here;
    const int64_t rows = rows_of_piece(tasks[t]), begin = index * rows;
    weight_product(product_of(tasks[t]), begin, std::min(begin + rows, tasks[t].weights.rows), memory(worker));
  });
}

}  // namespace raffia::internal
