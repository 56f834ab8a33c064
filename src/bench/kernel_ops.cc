#include "bench/kernel_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <span>
#include <utility>

#include "bench/arrays.h"
#include "bench/error.h"
#include "core/weight_matrix.h"
#include "estimators/shared/products.h"
#include "kernels/adamw.h"
#include "kernels/layer_ops.h"

namespace raffia::internal::bench {
namespace {

constexpr float kEps = 1e-5F;
constexpr int64_t kTaps = 4;  // of a short convolution, as models have them
constexpr int64_t kPromptTokens = 512;
constexpr int64_t kProductTokens[] = {1, 4, 16, kPromptTokens};  // a step; few sessions; many; a prompt

Array4 random_floats(const Extents<4>& shape, uint32_t stream) {
  Array4 array(shape, DType::f32, ArrayLayout::bthd);
  array.fill({.layer = stream}, -kUnitVariance, kUnitVariance);
  return array;
}

// A random f32 matrix that its owner keeps.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t columns, uint32_t stream)
      : rows_(rows), columns_(columns), array_(random_floats({1, rows, 1, columns}, stream)) {}

  float* data() const { return static_cast<float*>(array_.view().data()); }
  MutView2 view() const { return {data(), {rows_, columns_}}; }
  std::span<const float> values() const { return {data(), static_cast<size_t>(rows_ * columns_)}; }

 private:
  int64_t rows_, columns_;
  Array4 array_;
};

// --- Products ---

struct Product {
  Matrix weights, x, y;
  StoredWeights stored;
  LinearTask task;

  Product(WeightType type, int64_t tokens, int64_t width)
      : weights(width, width, 0),
        x(tokens, width, 1),
        y(tokens, width, 2),
        stored(store_weights("weights", weights.view(), type)),
        // As the runtime reads prompts.
        task{.weights = stored.matrix, .x = x.view(), .y = y.view(), .any_company = tokens < kPromptTokens} {}
};

std::vector<KernelRun> products(const BenchShape& shape, WeightType type) {
  const int64_t width = shape.heads * shape.head_dim;
  std::vector<KernelRun> runs;
  for (const int64_t tokens : kProductTokens) {
    runs.push_back({.shape = fmt::format("[{}, {}] x [{}, {}]", tokens, width, width, width),
                    .flops = 2.0 * static_cast<double>(tokens * width * width),
                    .prepare = [=](int threads, Executor& executor) -> std::function<void()> {
                      const auto product = std::make_shared<Product>(type, tokens, width);
                      return [product, run = RunOptions{.threads = threads, .executor = &executor}] {
                        linear(std::span(&product->task, 1), run);
                      };
                    }});
  }
  return runs;
}

// The two products of the backward pass of a linear layer: dx = dy weights, and dweights = dy^T x.
std::vector<KernelRun> product_gradients(const BenchShape& shape, int64_t length) {
  const int64_t width = shape.heads * shape.head_dim;
  std::vector<KernelRun> runs;
  for (const bool of_weights : {false, true}) {
    runs.push_back({.shape = of_weights ? fmt::format("[{}, {}] x [{}, {}]", width, length, length, width)
                                        : fmt::format("[{}, {}] x [{}, {}]", length, width, width, width),
                    .flops = 2.0 * static_cast<double>(length * width * width),
                    .prepare = [=](int threads, Executor& executor) -> std::function<void()> {
                      struct Arrays {
                        Matrix dy, other, to;
                      };
                      const auto arrays = std::make_shared<Arrays>(Arrays{.dy = Matrix(length, width, 0),
                                                                          .other = Matrix(of_weights ? length : width, width, 1),
                                                                          .to = Matrix(of_weights ? width : length, width, 2)});
                      View2 dy = arrays->dy.view();
                      if (of_weights) dy = View2(dy.data(), DType::f32, {width, length}, {1, width});
                      const MatrixProduct product{.a = dy, .b = arrays->other.view(), .c = arrays->to.view()};
                      return [arrays, product, run = RunOptions{.threads = threads, .executor = &executor}] {
                        multiply(product, run);
                      };
                    }});
  }
  return runs;
}

// --- Layer ops ---

struct LayerArrays {
  int64_t length, heads, head_dim;
  Matrix x, other, y, y_too, weight, bias, turns, taps, history, squares;

  LayerArrays(const BenchShape& shape, int64_t tokens)
      : length(tokens),
        heads(shape.heads),
        head_dim(shape.head_dim),
        x(tokens, width(), 0),
        other(tokens, width(), 1),
        y(tokens, width(), 2),
        y_too(tokens, width(), 9),
        weight(1, width(), 3),
        bias(1, width(), 4),
        turns(tokens, head_dim, 5),
        taps(kTaps, width(), 6),
        history(kTaps - 1, width(), 7),
        squares(tokens, width(), 8) {
    for (float& each : std::span(squares.data(), squares.values().size())) each *= each;
  }

  int64_t width() const { return heads * head_dim; }
  MutView3 by_head(const Matrix& matrix) const { return {matrix.data(), {length, heads, head_dim}}; }
};

struct LayerOp {
  std::string_view name;
  bool reads_heads;  // x is [T, H, d], not [T, E]
  void (*run)(const LayerArrays& arrays);
  bool turns_pairs = false;  // d must be even
};

constexpr LayerOp kLayerOps[] = {
    {"layer_norm", false,
     [](const LayerArrays& a) { layer_norm(a.x.view(), a.weight.values(), a.bias.values(), kEps, a.y.view()); }},
    {"rms_norm", false, [](const LayerArrays& a) { rms_norm(a.x.view(), a.weight.values(), kEps, a.y.view()); }},
    {"head_norm", true, [](const LayerArrays& a) { head_norm(a.by_head(a.x), a.weight.values(), kEps, a.by_head(a.y)); }},
    {"gelu", false, [](const LayerArrays& a) { gelu(a.x.view(), a.y.view()); }},
    {"gelu_backward", false, [](const LayerArrays& a) { gelu_backward(a.x.view(), a.other.view(), a.y.view()); }},
    {"swiglu", false, [](const LayerArrays& a) { swiglu(a.x.view(), a.other.view(), a.y.view()); }},
    {"swiglu_backward", false,
     [](const LayerArrays& a) { swiglu_backward(a.x.view(), a.other.view(), a.other.view(), a.y.view(), a.y_too.view()); }},
    {"add_rows", false, [](const LayerArrays& a) { add_rows(a.x.view(), a.y.view()); }},
    {"rotary", true, [](const LayerArrays& a) { rotate(a.by_head(a.x), a.turns.view(), a.by_head(a.y)); }, true},
    {"short_convolution", false,
     [](const LayerArrays& a) { short_convolution(a.x.view(), a.taps.view(), a.history.view(), a.y.view()); }},
    {"adamw", false,
     [](const LayerArrays& a) {
       const auto all = [&](const Matrix& matrix) { return std::span(matrix.data(), matrix.values().size()); };
       adamw({.parameters = all(a.y), .gradients = a.x.values(), .mean = all(a.other), .square = all(a.squares)}, {.rate = 1e-3});
     }},
};

KernelRun layer_op(const BenchShape& shape, int64_t length, const LayerOp& op) {
  if (op.turns_pairs && shape.head_dim % 2 != 0) {
    throw OptionError(
        fmt::format("--head-dim: {} is odd, expected an even number for {}, or --ops without it", shape.head_dim, op.name));
  }
  return {.shape = op.reads_heads ? fmt::format("[{}, {}, {}]", length, shape.heads, shape.head_dim)
                                  : fmt::format("[{}, {}]", length, shape.heads * shape.head_dim),
          .is_parallel = false,
          .prepare = [shape, length, run = op.run](int, Executor&) -> std::function<void()> {
            const auto arrays = std::make_shared<LayerArrays>(shape, length);
            return [arrays, run] { run(*arrays); };
          }};
}

// --- Feature maps ---

constexpr MapKind kMaps[] = {MapKind::trig, MapKind::arccos, MapKind::positive, MapKind::positive2, MapKind::elu, MapKind::relu};

// Some estimator with a map, which only says how its map is made.
Estimator estimator_with(MapKind map, const BenchShape& shape) {
  const auto kinds = estimator_kinds();
  const auto kind = std::ranges::find_if(kinds, [](EstimatorKind one) { return traits_of({.kind = one}).has_map; });
  return {.kind = *kind, .samples = shape.random_features, .map = map, .seed = shape.seed};
}

KernelRun feature_map(const BenchShape& shape, int64_t length, MapKind kind) {
  const FeatureMap map = make_map(shape, estimator_with(kind, shape), OpInput::qk);
  const Extents<4> extents{shape.batch, length, shape.heads, shape.head_dim};
  std::optional<double> flops;  // of the projection
  if (map.rows() > 0) flops = 2.0 * static_cast<double>(shape.batch * length * shape.heads * shape.head_dim * map.rows());
  return {.shape = fmt::format("{} -> {}", to_string(extents.data(), 4), map.features()),
          .dtype = shape.dtype,
          .flops = flops,
          .prepare = [=](int threads, Executor& executor) -> std::function<void()> {
            struct Arrays {
              Array4 x, phi;
            };
            const auto arrays = std::make_shared<Arrays>(
                Arrays{.x = Array4(extents, shape.dtype, shape.layout),
                       .phi = Array4({extents[0], extents[1], extents[2], map.features()}, shape.dtype, shape.layout)});
            arrays->x.fill({.seed = shape.seed}, -kUnitVariance, kUnitVariance);
            return [arrays, map, run = RunOptions{.threads = threads, .executor = &executor}] {
              apply_features(arrays->x.view(), map, arrays->phi.view(), run);
            };
          }};
}

// --- All of them ---

struct KernelOp {
  std::string name;
  std::function<std::vector<KernelRun>(const BenchShape& shape, int64_t length)> runs;
};

std::vector<KernelOp> kernel_ops() {
  std::vector<KernelOp> ops;
  for (const auto& [name, type] : kWeightTypes) {
    ops.push_back({fmt::format("product_{}", name), [type = type](const auto& shape, int64_t) { return products(shape, type); }});
  }
  ops.push_back({"product_gradient", product_gradients});
  for (const LayerOp& op : kLayerOps) {
    ops.push_back({std::string(op.name),
                   [&op](const auto& shape, int64_t length) -> std::vector<KernelRun> { return {layer_op(shape, length, op)}; }});
  }
  for (const MapKind map : kMaps) {
    ops.push_back({fmt::format("features_{}", name_of(map)), [map](const auto& shape, int64_t length) -> std::vector<KernelRun> {
                     return {feature_map(shape, length, map)};
                   }});
  }
  return ops;
}

}  // namespace

std::vector<std::string> kernel_op_names() {
  std::vector<std::string> names;
  for (const KernelOp& op : kernel_ops()) names.push_back(op.name);
  return names;
}

std::vector<KernelRun> runs_of_kernel_op(const BenchShape& shape, int64_t length, const std::string& name) {
  for (const KernelOp& op : kernel_ops()) {
    if (op.name == name) return op.runs(shape, length);
  }
  return {};
}

}  // namespace raffia::internal::bench
