#include "estimators/shared/products.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>

#include "core/check.h"
#include "core/scratch.h"
#include "core/trace.h"
#include "kernels/integer_product.h"
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
  require(weights.scales != nullptr || weights.format().row_scales(weights.columns) * weights.rows == 0,
          "{}: weights is {} without scales, expected {} for each of {} rows", kName, name_of(weights.type),
          weights.format().row_scales(weights.columns), weights.rows);
  const int64_t tokens = task.x.extent(0);
  require_dtype(kName, "x", task.x, {DType::f32});
  require_dtype(kName, "y", task.y, {DType::f32});
  require_shape(kName, "x", task.x, {tokens, weights.columns}, "columns of the weights");
  require_shape(kName, "y", task.y, {tokens, weights.rows}, "tokens of x, rows of the weights");
  require((weights.columns < 2 || task.x.stride(1) == 1) && (weights.rows < 2 || task.y.stride(1) == 1),
          "{}: columns of x are {} elements apart, those of y {}, expected 1", kName, task.x.stride(1), task.y.stride(1));
}

WeightProduct float_product(const LinearTask& task) {
  return {.weights = task.weights,
          .bias = task.bias,
          .tokens = static_cast<size_t>(task.x.extent(0)),
          .x = static_cast<const float*>(task.x.data()),
          .x_stride = task.x.stride(0),
          .y = static_cast<float*>(task.y.data()),
          .y_stride = task.y.stride(0),
          .any_company = task.any_company};
}

IntegerProduct integer_product_of(const LinearTask& task, const QuantizedTokens& x) {
  return {.weights = task.weights,
          .bias = task.bias,
          .tokens = static_cast<size_t>(task.x.extent(0)),
          .x = x,
          .y = static_cast<float*>(task.y.data()),
          .y_stride = task.y.stride(0)};
}

size_t scratch_of(const LinearTask& task) {
  if (task.weights.format().by_integers) return task.x.extent(0) > 1 ? kIntegerScratchFloats : 0;
  return weight_product_scratch_floats(float_product(task));
}

// The inputs of tasks with integer weights, quantised once each: projections of one input share it. `tasks` must outlive it.
// Nothing is allocated for one token of up to 13,000 columns.
class QuantizedInputs {
 public:
  explicit QuantizedInputs(std::span<const LinearTask> tasks) : tasks_(tasks) {
    size_t floats = 0;
    bool is_step = true;
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (!is_first(i)) continue;
      floats += floats_of(tasks[i].x);
      is_step = is_step && tasks[i].x.extent(0) <= 1;
    }
    // With several tokens scratch is allocated anyway.
    if (!is_step || floats > kFewFloats) memory_ = many_.emplace(1, floats).of(0);
  }
  QuantizedInputs(const QuantizedInputs&) = delete;

  void quantize(Executor& runner, int workers) {
    float* at = memory_;
    for (size_t i = 0; i < tasks_.size(); ++i) {
      if (!is_first(i)) continue;
      const View2 x = tasks_[i].x;
      const QuantizedTokens out = tokens_at(x, at);
      at += floats_of(x);
      const int64_t tokens = x.extent(0), piece = std::max<int64_t>(1, kMinQuantized / std::max<int64_t>(1, x.extent(1)));
      if (workers == 1 || tokens <= piece) {
        quantize_tokens(x, 0, tokens, out);
        continue;
      }
      runner.run((tokens + piece - 1) / piece, workers,
                 [&](int64_t index, int) { quantize_tokens(x, index * piece, std::min(tokens, (index + 1) * piece), out); });
    }
  }

  QuantizedTokens of(size_t task) const {
    float* at = memory_;
    size_t i = 0;
    for (; !has_input_of(i, task); ++i) {
      if (is_first(i)) at += floats_of(tasks_[i].x);
    }
    return tokens_at(tasks_[i].x, at);
  }

 private:
  // Elements below which another thread costs more than it saves.
  static constexpr int64_t kMinQuantized = 1 << 14;
  // 16 KiB: a token of up to 13,000 columns.
  static constexpr size_t kFewFloats = 4096;

  bool has_input_of(size_t i, size_t task) const {
    const View2 &a = tasks_[i].x, &b = tasks_[task].x;
    return tasks_[i].weights.format().by_integers && a.data() == b.data() && a.stride(0) == b.stride(0) &&
           a.extent(0) == b.extent(0) && a.extent(1) == b.extent(1);
  }
  // Whether no task before has the same input.
  bool is_first(size_t task) const {
    if (!tasks_[task].weights.format().by_integers) return false;
    size_t i = 0;
    while (!has_input_of(i, task)) ++i;
    return i == task;
  }
  static QuantizedTokens tokens_at(View2 x, float* memory) {
    return QuantizedTokens(static_cast<size_t>(x.extent(0)), static_cast<size_t>(x.extent(1)), memory);
  }
  // A multiple of a cache line.
  static size_t floats_of(View2 x) {
    const size_t floats = QuantizedTokens::floats(static_cast<size_t>(x.extent(0)), static_cast<size_t>(x.extent(1)));
    return (floats + 15) / 16 * 16;
  }

  std::span<const LinearTask> tasks_;
  alignas(Scratch::kAlignment) float few_[kFewFloats];
  std::optional<Scratch> many_;
  float* memory_ = few_;
};

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
          .weights_stride = b.stride(0),
          .accumulates = product.accumulates};
}

void add_bias_alone(const MatrixProduct& product) {
  if (product.accumulates && product.bias == nullptr) return;
  for (int64_t m = 0; m < product.c.extent(0); ++m) {
    for (int64_t n = 0; n < product.c.extent(1); ++n) {
      const double before = product.accumulates ? View2(product.c)(m, n) : 0.0;
      product.c.set(before + (product.bias == nullptr ? 0.0 : product.bias[n]), m, n);
    }
  }
}

}  // namespace

void multiply(const MatrixProduct& product, const RunOptions& run) {
  require(run.threads >= 0, "multiply: threads is {}, expected at least 0", run.threads);
  require_product(product);
  const int64_t rows = product.a.extent(0), depth = product.a.extent(1), columns = product.b.extent(1);
  if (depth == 0) return add_bias_alone(product);
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
    scratch_floats = std::max(scratch_floats, scratch_of(task));
  }
  const Trace trace("linear", "x", tasks.front().x);
  Executor& runner = run.executor != nullptr ? *run.executor : default_executor();
  const int max = run.threads > 0 ? std::min(run.threads, runner.concurrency()) : runner.concurrency();
  const int workers = cost < 2 * kMinParallel ? 1 : max;
  std::optional<Scratch> scratch;
  if (scratch_floats > 0) scratch.emplace(workers, scratch_floats);
  const auto memory = [&](int worker) { return scratch ? scratch->of(worker) : nullptr; };

  QuantizedInputs inputs(tasks);
  inputs.quantize(runner, workers);
  const auto compute = [&](size_t t, int64_t begin, int64_t end, int worker) {
    const LinearTask& task = tasks[t];
    if (task.weights.format().by_integers) {
      integer_product(integer_product_of(task, inputs.of(t)), begin, end, memory(worker));
    } else {
      weight_product(float_product(task), begin, end, memory(worker));
    }
  };
  if (workers == 1) {
    for (size_t t = 0; t < tasks.size(); ++t) compute(t, 0, tasks[t].weights.rows, 0);
    return;
  }
  // Pieces of about the same cost, several per worker so that a slow worker delays no others; each is a run of rows of one task.
  const int64_t piece_cost = std::max(kMinParallel, cost / (workers * kPiecesPerWorker));
  const auto rows_of_piece = [&](const LinearTask& task) {
    const int64_t unit = task.weights.format().by_integers ? kIntegerRows : task.any_company ? kProductRows : kGemmPieceRows;
    return std::max<int64_t>(1, piece_cost / std::max<int64_t>(1, row_cost(task)) / unit) * unit;
  };
  const auto pieces_of = [&](const LinearTask& task) {
    const int64_t rows = rows_of_piece(task);
    return (task.weights.rows + rows - 1) / rows;
  };
  int64_t pieces = 0;
  for (const LinearTask& task : tasks) pieces += pieces_of(task);
  const auto compute_piece = [&](int64_t index, int worker) {
    size_t t = 0;
    for (int64_t here; index >= (here = pieces_of(tasks[t])); ++t) index -= here;
    const int64_t rows = rows_of_piece(tasks[t]), begin = index * rows;
    compute(t, begin, std::min(begin + rows, tasks[t].weights.rows), worker);
  };
  runner.run(pieces, workers, std::ref(compute_piece));  // a reference: a function object of this size would be allocated
}

}  // namespace raffia::internal
