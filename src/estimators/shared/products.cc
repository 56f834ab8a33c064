#include "estimators/shared/products.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

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

// The inputs of tasks with integer weights, quantised once each: projections of one input share it.
class QuantizedInputs {
 public:
  explicit QuantizedInputs(std::span<const LinearTask> tasks) {
    const auto by_integers = [](const LinearTask& task) { return task.weights.format().by_integers; };
    if (std::ranges::none_of(tasks, by_integers)) return;
    size_t floats = 0;
    input_of_.resize(tasks.size());
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (!by_integers(tasks[i])) continue;
      const auto known = std::ranges::find_if(inputs_, [&](const Input& input) { return is_same(tasks[i].x, input.x); });
      input_of_[i] = static_cast<size_t>(known - inputs_.begin());
      if (known != inputs_.end()) continue;
      inputs_.push_back({.x = tasks[i].x});
      floats += floats_of(tasks[i].x);
    }
    memory_.emplace(1, floats);
    float* at = memory_->of(0);
    for (Input& input : inputs_) {
      input.tokens = QuantizedTokens(static_cast<size_t>(input.x.extent(0)), static_cast<size_t>(input.x.extent(1)), at);
      at += floats_of(input.x);
    }
  }

  void quantize(Executor& runner, int workers) const {
    for (const Input& input : inputs_) {
      const int64_t tokens = input.x.extent(0),
                    piece = std::max<int64_t>(1, kMinQuantized / std::max<int64_t>(1, input.x.extent(1)));
      if (workers == 1 || tokens <= piece) {
        quantize_tokens(input.x, 0, tokens, input.tokens);
        continue;
      }
      runner.run((tokens + piece - 1) / piece, workers, [&](int64_t index, int) {
        quantize_tokens(input.x, index * piece, std::min(tokens, (index + 1) * piece), input.tokens);
      });
    }
  }

  const QuantizedTokens& of(size_t task) const { return inputs_[input_of_[task]].tokens; }

 private:
  // Elements below which another thread costs more than it saves.
  static constexpr int64_t kMinQuantized = 1 << 14;
  struct Input {
    View2 x;
    QuantizedTokens tokens = {};
  };

  static bool is_same(View2 a, View2 b) {
    return a.data() == b.data() && a.stride(0) == b.stride(0) && a.extent(0) == b.extent(0) && a.extent(1) == b.extent(1);
  }
  // A multiple of a cache line.
  static size_t floats_of(View2 x) {
    const size_t floats = QuantizedTokens::floats(static_cast<size_t>(x.extent(0)), static_cast<size_t>(x.extent(1)));
    return (floats + 15) / 16 * 16;
  }

  std::vector<size_t> input_of_;
  std::vector<Input> inputs_;
  std::optional<Scratch> memory_;
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

  const QuantizedInputs inputs(tasks);
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
  runner.run(pieces, workers, [&](int64_t index, int worker) {
    size_t t = 0;
    for (int64_t here; index >= (here = pieces_of(tasks[t])); ++t) index -= here;
    const int64_t rows = rows_of_piece(tasks[t]), begin = index * rows;
    compute(t, begin, std::min(begin + rows, tasks[t].weights.rows), worker);
  });
}

}  // namespace raffia::internal
