#include "runtime/stack.h"

#include <algorithm>

#include "kernels/layer_ops.h"
#include "runtime/products.h"

namespace raffia::internal::runtime {
namespace {

// Rows whose inner activations are computed together: 256 x 2048 floats are 2 MiB, and more rows make products no faster.
constexpr int64_t kInnerRows = 256;

NormWeights read_norm(const NormPlan& plan, WeightReader& weights) {
  NormWeights norm{.weight = weights.floats(plan.weight), .bias = {}, .eps = static_cast<float>(plan.eps)};
  if (plan.bias) norm.bias = weights.floats(*plan.bias);
  return norm;
}

// x += branch, [rows, width]
void add(const Turn& turn, const float* branch, int64_t rows, int64_t width, float* x) {
  for_rows(turn, rows, [&](int64_t begin, int64_t end) {
    add_rows(View2(branch + begin * width, {end - begin, width}), MutView2(x + begin * width, {end - begin, width}));
  });
}

}  // namespace

void NormWeights::apply(const float* x, int64_t rows, float* y) const {
  const auto width = static_cast<int64_t>(weight.size());
  const View2 from(x, {rows, width});
  const MutView2 to(y, {rows, width});
  if (bias.empty()) {
    rms_norm(from, weight, eps, to);
  } else {
    layer_norm(from, weight, bias, eps, to);
  }
}

Stack::Layer::Layer(const LayerPlan& plan, WeightReader& weights)
    : attention_norm(read_norm(plan.attention_norm, weights)),
      attention(plan.attention, weights),
      ffn_norm(read_norm(plan.ffn_norm, weights)),
      ffn_up(weights.linear(plan.ffn_up)),
      ffn_down(weights.linear(plan.ffn_down)) {
  if (plan.cross_norm) cross_norm = read_norm(*plan.cross_norm, weights);
  if (plan.cross) cross.emplace(*plan.cross, weights);
  if (plan.ffn_gate) ffn_gate = weights.linear(*plan.ffn_gate);
}

Stack::Stack(const StackPlan& plan, WeightReader& weights)
    : width_(plan.layers.front().ffn_up.in()), ffn_width_(plan.layers.front().ffn_up.out()) {
  if (plan.positions) {
    positions_ = weights.floats(plan.positions->weight);
    max_positions_ = plan.positions->rows();
  }
  for (const LayerPlan& layer : plan.layers) layers_.emplace_back(layer, weights);
  norm_ = read_norm(plan.norm, weights);
}

Memories Stack::empty_memory() const {
  Memories memory;
  for (const Layer& layer : layers_) memory.push_back(layer.attention.empty_memory());
  return memory;
}

uint64_t Stack::memory_bytes(int64_t position) const {
  uint64_t total = 0;
  for (const Layer& layer : layers_) {
    const std::optional<uint64_t> bytes = layer.attention.memory_bytes(position);
    if (!bytes || *bytes > UINT64_MAX - total) return UINT64_MAX;
    total += *bytes;
  }
  return total;
}

Source Stack::read_source(const float* encoded, int64_t rows, const RunOptions& run) const {
  Source source;
  for (const Layer& layer : layers_) source.push_back(layer.cross->read_source(encoded, rows, run));
  return source;
}

void Stack::feed_forward(const Layer& layer, float* x, const Turn& turn, Workspace& work) const {
  for (int64_t begin = 0; begin < turn.rows; begin += kInnerRows) {
    Turn part = turn;
    part.rows = std::min(kInnerRows, turn.rows - begin);
    float* at = x + begin * width_;
    float* normed = work.normed.of(part.rows * width_);
    float* inner = work.inner.of(part.rows * ffn_width_);
    for_rows(part, part.rows,
             [&](int64_t from, int64_t to) { layer.ffn_norm.apply(at + from * width_, to - from, normed + from * width_); });
    if (layer.ffn_gate) {
      float* gate = work.gate.of(part.rows * ffn_width_);
      multiply({{&layer.ffn_up, normed, width_, inner, ffn_width_}, {&*layer.ffn_gate, normed, width_, gate, ffn_width_}}, part);
      for_rows(part, part.rows, [&](int64_t from, int64_t to) {
        const Extents<2> shape{to - from, ffn_width_};
        swiglu(View2(gate + from * ffn_width_, shape), View2(inner + from * ffn_width_, shape),
               MutView2(inner + from * ffn_width_, shape));
      });
    } else {
      multiply({{&layer.ffn_up, normed, width_, inner, ffn_width_}}, part);
      for_rows(part, part.rows, [&](int64_t from, int64_t to) {
        const MutView2 rows(inner + from * ffn_width_, {to - from, ffn_width_});
        gelu(rows, rows);
      });
    }
    float* branch = work.branch.of(part.rows * width_);
    multiply({{&layer.ffn_down, inner, ffn_width_, branch, width_}}, part);
    add(part, branch, part.rows, width_, at);
  }
}

void Stack::forward(float* x, const Turn& turn, Workspace& work) const {
  const int64_t rows = turn.rows;
  const auto normalise = [&](const NormWeights& norm, float* y) {
    for_rows(turn, rows, [&](int64_t begin, int64_t end) { norm.apply(x + begin * width_, end - begin, y + begin * width_); });
  };
  if (max_positions_ > 0) {
    for (int64_t r = 0; r < rows; ++r) {
      add_rows(View2(positions_.data() + turn.positions[static_cast<size_t>(r)] * width_, {1, width_}),
               MutView2(x + r * width_, {1, width_}));
    }
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    float* normed = work.normed.of(rows * width_);
    float* branch = work.branch.of(rows * width_);
    normalise(layer.attention_norm, normed);
    layer.attention.forward(normed, turn, i, work, branch);
    add(turn, branch, rows, width_, x);
    if (layer.cross) {
      normalise(*layer.cross_norm, normed);
      layer.cross->forward(normed, turn, i, work, branch);
      add(turn, branch, rows, width_, x);
    }
    feed_forward(layer, x, turn, work);
  }
  normalise(norm_, x);
}

}  // namespace raffia::internal::runtime
