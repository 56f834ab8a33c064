// The small operations of a transformer layer, in fp32: norms, activations, rotary positions, short convolutions.
//
// Rows are tokens [T, E] and independent of each other: a row has the same bits alone and among others, so callers may cut the
// rows into tasks for threads. Columns are contiguous, rows may have any stride. An output may be the same view as its input, but
// not overlap it otherwise. Wrong shapes throw InvalidArgument. Twins: reference/layers.h.
#ifndef RAFFIA_KERNELS_LAYER_OPS_H_
#define RAFFIA_KERNELS_LAYER_OPS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/sibling_api.h"
#include "raffia/views.h"

namespace raffia::internal {

// y = (x - mean) / sqrt(variance + eps) weight + bias over each row; weight and bias [E], no bias where it is empty.
RAFFIA_SIBLING_API void layer_norm(View2 x, std::span<const float> weight, std::span<const float> bias, float eps, MutView2 y);

// y = x / sqrt(mean of squares + eps) weight over each row; weight [E].
RAFFIA_SIBLING_API void rms_norm(View2 x, std::span<const float> weight, float eps, MutView2 y);

// The same over each head of x [T, H, d]; weight [H, d], row-major.
RAFFIA_SIBLING_API void head_norm(View3 x, std::span<const float> weight, float eps, MutView3 y);

// y = x (1 + erf(x / sqrt 2)) / 2, within 1e-7 (|x| at most 6.5; relative to |x| beyond).
RAFFIA_SIBLING_API void gelu(View2 x, MutView2 y);

// dx = dy gelu'(x), with gelu'(x) = Phi(x) + x phi(x) of the normal distribution, within 3e-7. dx may be dy.
RAFFIA_SIBLING_API void gelu_backward(View2 x, View2 dy, MutView2 dx);

// y = gate sigmoid(gate) up.
RAFFIA_SIBLING_API void swiglu(View2 gate, View2 up, MutView2 y);

// Its gradients: dgate = dy up s (1 + gate (1 - s)) with s = sigmoid(gate), dup = dy gate s. Either may be any of the inputs.
RAFFIA_SIBLING_API void swiglu_backward(View2 gate, View2 up, View2 dy, MutView2 dgate, MutView2 dup);

// y = a + b.
RAFFIA_SIBLING_API void sum_rows(View2 a, View2 b, MutView2 y);

// y += x.
RAFFIA_SIBLING_API void add_rows(View2 x, MutView2 y);

// Rotary positions: entries i and i + d/2 of a head turn by the angle position * base^(-2 i / d).
class RAFFIA_SIBLING_API Rotary {
 public:
  Rotary(int64_t head_dim, double base);

  int64_t head_dim() const { return head_dim_; }

  // Turns of one position: d/2 cosines, then d/2 sines. Angles are double, so that no position is too far.
  void fill(int64_t position, std::span<float> turns) const;

 private:
  int64_t head_dim_;
  std::vector<double> frequencies_;  // [d/2]
};

// x [T, H, d] turned by turns [T, d], as Rotary::fill gives them for each token.
RAFFIA_SIBLING_API void rotate(View3 x, View2 turns, MutView3 y);

// y_t = sum_j taps[j] x_{t - J + 1 + j} per column, with taps [J, E], the transpose of what model files hold. The rows before
// the first are those of history [J - 1, E], which is left holding the last J - 1 rows.
RAFFIA_SIBLING_API void short_convolution(View2 x, View2 taps, MutView2 history, MutView2 y);

}  // namespace raffia::internal

#endif  // RAFFIA_KERNELS_LAYER_OPS_H_
