// torch.ops.raffia.cross_entropy.
//
// Tokens in blocks: logits Z = X W^T, losses and dZ in the place of Z, dX = dZ W, dW += dZ^T X. The forward pass computes the
// gradients, for only it has the logits; the backward pass scales them, if there is anything to scale. torch's operators write
// and read [T, V] eight times.
#include "torch/ops/cross_entropy.h"

#include <algorithm>

#include "estimators/shared/products.h"
#include "kernels/cross_entropy.h"
#include "reference/layers.h"
#include "torch/ops/differentiable.h"
#include "torch/ops/executor.h"
#include "torch/ops/rows.h"

namespace raffia::internal::ops {
namespace {

// Logits of a block, 32 MiB. Smaller blocks pack the matrix and add to its gradient more often: with 2,048 tokens of width 512, a
// vocabulary of 8,192 and one layer a pass takes 234, 229, 226 and 222 ms with 2^21 to 2^24 (raffia bench train --what model
// --layers 1 --lengths 512 --batch 4 --threads 2, Zen 5); twice the memory is not worth the last 2%.
constexpr int64_t kBlockLogits = 1 << 23, kMinBlockTokens = 256;

struct CrossEntropyOp {
  static constexpr const char* kName = "cross_entropy";
  static constexpr size_t kOutputs = 2, kDifferentiable = 1;
  static constexpr bool kBackwardIgnoresOutputs = true;  // it reads the gradients behind them
  enum Input : size_t { hidden, weight, targets, kInputs };
  static constexpr uint64_t kLow = 0;
  static constexpr const char* kSettings = "int ignore_index, float label_smoothing";
  using Settings = std::tuple<int64_t, double>;

  static Tensors allocate(const Tensors& in, int64_t, double smoothing) {
    require_rank(kName, "hidden", in[hidden], 2, "[T, E]");
    require_type(kName, "hidden", in[hidden], {at::kFloat, at::kDouble});
    require_rank(kName, "weight", in[weight], 2, "[V, E]");
    require_precise(kName, "weight", in[weight], in[hidden]);
    require_shape(kName, "weight", in[weight], {in[weight].size(0), in[hidden].size(1)}, "columns of hidden");
    require_rank(kName, "targets", in[targets], 1, "[T]");
    require_type(kName, "targets", in[targets], {at::kLong});
    require_shape(kName, "targets", in[targets], {in[hidden].size(0)}, "rows of hidden");
    require(smoothing >= 0 && smoothing <= 1, "{}: label_smoothing is {}, expected 0 to 1", kName, smoothing);
    return {at::zeros({}, in[hidden].options()), at::empty({in[hidden].size(0)}, in[hidden].options())};
  }

  // Appends d sum / d hidden and d sum / d weight.
  static void forward(const Tensors& in, bool record, Tensors& outputs, int64_t ignored, double smoothing) {
    const Tensor rows = in[hidden].contiguous(), matrix = in[weight].contiguous(), wanted = in[targets].contiguous();
    const int64_t tokens = rows.size(0), columns = matrix.size(0);
    const std::span<const int64_t> all_ids(wanted.data_ptr<int64_t>(), static_cast<size_t>(tokens));
    require_ids(all_ids, columns, ignored);
    const int64_t block = std::max(kMinBlockTokens, kBlockLogits / std::max<int64_t>(1, columns));
    const Tensor logits = at::empty({std::min(block, tokens), columns}, rows.options());
    const Tensor drows = record ? at::empty_like(rows) : Tensor(), dmatrix = record ? at::zeros_like(matrix) : Tensor();
    for (int64_t begin = 0; begin < tokens; begin += block) {
      const int64_t count = std::min(block, tokens - begin);
      const auto part = [&](const Tensor& all) { return all.defined() ? all.narrow(0, begin, count) : all; };
      const std::span<const int64_t> ids = all_ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
      const Part one{part(rows),  matrix, {ids, ignored, smoothing}, logits.narrow(0, 0, count), part(outputs[1]),
                     part(drows), dmatrix};
      is_double(rows) ? by_twins(one) : by_kernels(one);
    }
    outputs[0].fill_(sum_in_order(outputs[1]));
    if (record) outputs.insert(outputs.end(), {drows, dmatrix});
  }

  static Tensors backward(const Tensors&, const Tensors& outputs, const Tensors& gradients, Wanted wanted, int64_t, double) {
    const double scale = gradients[0].item<double>();
    Tensors result(kInputs);
    for (size_t i : {hidden, weight}) {
      if (!wanted[i]) continue;
      const Tensor& of_sum = outputs[kOutputs + i];
      // A loss that is differentiated itself, as in training, has nothing to scale. A graph of second derivatives marks its
      // gradients, which must be others.
      result[i] = scale == 1 && !at::GradMode::is_enabled() ? of_sum : of_sum * scale;
    }
    return result;
  }

 private:
  static void require_ids(std::span<const int64_t> ids, int64_t columns, int64_t ignored) {
    for (size_t t = 0; t < ids.size(); ++t) {
      require(ids[t] == ignored || (ids[t] >= 0 && ids[t] < columns), "{}: target {} is {}, expected 0 to {} or {} (ignored)",
              kName, t, ids[t], columns - 1, ignored);
    }
  }

  // torch cuts long sums by threads.
  static double sum_in_order(const Tensor& losses) {
    const View1 each = view<1>(losses);
    double sum = 0;
    for (int64_t t = 0; t < each.extent(0); ++t) sum += each(t);
    return sum;
  }

  // The tokens of a block.
  struct Part {
    Tensor rows, matrix;
    CrossEntropyTargets targets;
    Tensor logits, losses;
    Tensor drows, dmatrix;  // undefined: not wanted. dmatrix: of all blocks up to here
  };

  static void by_kernels(const Part& part) {
    const RunOptions run{.executor = &torch_executor()};
    const View2 rows = view<2>(part.rows), matrix = view<2>(part.matrix);
    const MutView2 logits = mutable_view<2>(part.logits);
    multiply({.a = rows, .b = turned(matrix), .c = logits}, run);
    const bool gradients = part.drows.defined();
    for_rows(logits.extent(0), logits.extent(1), [&](int64_t first, int64_t count) {
      const auto at = static_cast<size_t>(first), size = static_cast<size_t>(count);
      CrossEntropyTargets targets = part.targets;
      targets.ids = targets.ids.subspan(at, size);
      internal::cross_entropy(logits.slice(0, first, count), targets, gradients, floats_of(part.losses).subspan(at, size));
    });
    if (!gradients) return;
    multiply({.a = logits, .b = matrix, .c = mutable_view<2>(part.drows)}, run);
    multiply({.a = turned(logits), .b = rows, .c = mutable_view<2>(part.dmatrix), .accumulates = true}, run);
  }

  static void by_twins(const Part& part) {
    const View2 rows = view<2>(part.rows), matrix = view<2>(part.matrix);
    const MutView2 logits = mutable_view<2>(part.logits);
    const bool gradients = part.drows.defined();
    twins::linear(rows, matrix, View1(), logits);
    twins::cross_entropy(logits, part.targets.ids, part.targets.ignored, part.targets.smoothing, mutable_view<1>(part.losses),
                         gradients ? logits : MutView2());
    if (!gradients) return;
    twins::multiply(logits, matrix, View1(), mutable_view<2>(part.drows));
    const Tensor more = at::empty_like(part.dmatrix);
    twins::multiply(turned(logits), rows, View1(), mutable_view<2>(more));
    Tensor(part.dmatrix).add_(more);
  }
};

std::tuple<Tensor, Tensor> cross_entropy_public(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                                                int64_t ignore_index, double label_smoothing) {
  const Tensors found = call<CrossEntropyOp>({hidden, weight, targets}, {ignore_index, label_smoothing});
  return {found[0], found[1]};
}

TORCH_LIBRARY_FRAGMENT(raffia, library) {
  Kernels<CrossEntropyOp>::define(library);
  library.def(
      "cross_entropy(Tensor hidden, Tensor weight, Tensor targets, int ignore_index=-100, float label_smoothing=0.) -> (Tensor, "
      "Tensor)",
      &cross_entropy_public);
}

}  // namespace

CrossEntropy cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& targets, double smoothing) {
  if (!is_ours(hidden, weight)) {
    const Tensor logits = at::linear(hidden, weight);
    const Tensor losses = at::cross_entropy_loss(logits, targets, {}, at::Reduction::None, kIgnoredTarget, smoothing);
    return {losses.sum(), losses.detach()};
  }
  static const auto op = handle<decltype(cross_entropy_public)>("raffia::cross_entropy");
  const auto [sum, losses] = op.call(hidden, weight, targets, kIgnoredTarget, smoothing);
  return {sum, losses};
}

}  // namespace raffia::internal::ops
