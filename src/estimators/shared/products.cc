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
// Multiply-adds below which another thread costs more than it saves: 40 microseconds of one.
constexpr int64_t kMinParallelTerms = 1 << 22;
constexpr int64_t kMinPieceRows = 64;  // of a: the columns of b are packed once for them

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

template <class AnyView2>
bool is_dense(const AnyView2& view, size_t axis) {
  return view.extent(axis) < 2 || view.stride(axis) == 1;
}

void require_product(const MatrixProduct& product) {
  constexpr const char* kName = "multiply";
  const View2 &a = product.a, &b = product.b;
  require_dtype(kName, "a", a, {DType::f32});
  require_dtype(kName, "b", b, {DType::f32});
  require_dtype(kName, "c", product.c, {DType::f32});
  require_shape(kName, "b", b, {a.extent(1), b.extent(1)}, "columns of a");
  require_shape(kName, "c", product.c, {a.extent(0), b.extent(1)}, "rows of a, columns of b");
  require(is_dense(a, 1) || is_dense(a, 0), "{}: elements of a are {} and {} apart, expected 1 along an axis", kName, a.stride(0),
          a.stride(1));
  require(is_dense(b, 1) || (is_dense(b, 0) && b.stride(1) == b.extent(0)),
          "{}: elements of b are {} and {} apart, expected 1 along the rows, or columns side by side", kName, b.stride(0),
          b.stride(1));
  require(is_dense(product.c, 1), "{}: columns of c are {} elements apart, expected 1", kName, product.c.stride(1));
}

// Rows [begin, end) of a.
WeightProduct rows_of_product(const MatrixProduct& product, int64_t begin, int64_t end) {
  const View2 &a = product.a, &b = product.b;
  const bool a_turned = !is_dense(a, 1);
  return {.weights = {.data = b.data(), .rows = b.extent(1), .columns = b.extent(0)},
          .bias = product.bias,
          .tokens = static_cast<size_t>(end - begin),
          .x = static_cast<const float*>(a.data()) + begin * a.stride(0),
          .x_stride = a.stride(a_turned ? 1 : 0),
          .y = static_cast<float*>(product.c.data()) + begin * product.c.stride(0),
          .y_stride = product.c.stride(0),
          .always_packed = true,
          .x_turned = a_turned,
          .weights_turned = is_dense(b, 1),
          .weights_stride = b.stride(0)};
}

void fill_with_bias(const MatrixProduct& product) {
  for (int64_t m = 0; m < product.c.extent(0); ++m) {
    for (int64_t n = 0; n < product.c.extent(1); ++n) product.c.set(product.bias == nullptr ? 0.0 : product.bias[n], m, n);
  }
}

}  // namespace

void multiply(const MatrixProduct& product, const RunOptions& run) {
  require(run.threads >= 0, "multiply: threads is {}, expected at least 0", run.threads);
  require_product(product);
  const int64_t rows = product.a.extent(0), depth = product.a.extent(1), columns = product.b.extent(1);
  if (depth == 0) return fill_with_bias(product);
  if (rows == 0 || columns == 0) return;
  const Trace trace("multiply", "a", product.a);
  Executor& runner = run.executor != nullptr ? *run.executor : default_executor();
  const int max = run.threads > 0 ? std::min(run.threads, runner.concurrency()) : runner.concurrency();
  const int workers = rows * columns * depth < kMinParallelTerms ? 1 : max;
  const Scratch scratch(workers, weight_product_scratch_floats(rows_of_product(product, 0, rows)));
  if (workers == 1) return weight_product(rows_of_product(product, 0, rows), 0, columns, scratch.of(0));

  // Pieces of whole blocks of columns; their rows in parts until there are enough pieces.
  const auto parts_of = [](int64_t count, int64_t size) { return (count + size - 1) / size; };
  constexpr int64_t kColumns = kGemmRows;
  const int64_t across = parts_of(columns, kColumns);
  const int64_t wanted = std::min(parts_of(workers * kPiecesPerWorker, across), parts_of(rows, kMinPieceRows));
  const int64_t height = parts_of(parts_of(rows, wanted), 8) * 8;  // whole tiles
  runner.run(across * parts_of(rows, height), workers, [&](int64_t index, int worker) {
    const int64_t row = index / across * height, column = index % across * kColumns;
    weight_product(rows_of_product(product, row, std::min(row + height, rows)), column, std::min(column + kColumns, columns),
                   scratch.of(worker));
  });
}

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
