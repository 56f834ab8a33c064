// Twins of the small operations of a transformer layer (estimators/shared/products.h, kernels/layer_ops.h), of the cross entropy
// (kernels/cross_entropy.h) and of AdamW (kernels/adamw.h): in double, plain loops. Views may have any element type; shapes are
// not checked. An absent view means no bias or no weight.
#ifndef RAFFIA_REFERENCE_LAYERS_H_
#define RAFFIA_REFERENCE_LAYERS_H_

#include <cstdint>
#include <span>

#include "core/adamw_factors.h"
#include "core/sibling_api.h"
#include "raffia/views.h"

namespace raffia::internal::twins {

// y [N, O] = x [N, I] weights^T + bias, with weights [O, I], bias [O].
RAFFIA_SIBLING_API void linear(View2 x, View2 weights, View1 bias, MutView2 y);

// c [M, N] = a [M, K] b [K, N] + bias [N].
RAFFIA_SIBLING_API void multiply(View2 a, View2 b, View1 bias, MutView2 c);

// The activations that products with int8 and int4 weights see (kernels/integer_product.h): in blocks of 32 columns,
// q = round(x 127 / max |x|), y = max |x| / 127 q. Rounded as in fp32, since that is part of the definition.
void quantized(View2 x, MutView2 y);

// Each row over [E]: y = (x - mean) / sqrt(variance + eps) weight + bias.
RAFFIA_SIBLING_API void layer_norm(View2 x, View1 weight, View1 bias, double eps, MutView2 y);

// Gradients of layer_norm: with n = (x - mean) / sqrt(variance + eps) and g = dy weight, dx = (g - mean(g) - n mean(g n)) /
// sqrt(variance + eps), dweight += sum_t dy n, dbias += sum_t dy unless it is absent.
RAFFIA_SIBLING_API void layer_norm_backward(View2 x, View1 weight, double eps, View2 dy, MutView2 dx, MutView1 dweight,
                                            MutView1 dbias);

// Of rms_norm: with n = x / sqrt(mean of squares + eps), dx = (g - n mean(g n)) / sqrt(mean of squares + eps).
RAFFIA_SIBLING_API void rms_norm_backward(View2 x, View1 weight, double eps, View2 dy, MutView2 dx, MutView1 dweight);

// Each row over [E]: y = x / sqrt(mean of squares + eps) weight.
RAFFIA_SIBLING_API void rms_norm(View2 x, View1 weight, double eps, MutView2 y);

// y = x (1 + erf(x / sqrt 2)) / 2.
RAFFIA_SIBLING_API void gelu(View2 x, MutView2 y);

// dx = dy (Phi(x) + x phi(x)), with Phi and phi of the normal distribution.
void gelu_backward(View2 x, View2 dy, MutView2 dx);

// y = gate / (1 + e^-gate) up.
RAFFIA_SIBLING_API void swiglu(View2 gate, View2 up, MutView2 y);

// dgate = dy up s (1 + gate (1 - s)) with s = 1 / (1 + e^-gate), dup = dy gate s.
RAFFIA_SIBLING_API void swiglu_backward(View2 gate, View2 up, View2 dy, MutView2 dgate, MutView2 dup);

// x [T, H, d]: entries i and i + d/2 of row t turn by the angle (position + t) base^(-2 i / d). y may be x.
void rotary(View3 x, int64_t position, double base, MutView3 y);

// y_t = sum_j weight[:, j] x_{t - J + 1 + j} with weight [E, J]; rows before the first are those of history [J - 1, E].
void short_convolution(View2 x, View2 weight, View2 history, MutView2 y);

// With lse = log sum_v e^z_v over a row z of logits [T, V] and s the smoothing: losses[t] = lse - (1 - s) z_target - s mean(z),
// and its gradient dlogits = e^(z - lse) - (1 - s) [v = target] - s / V, unless that is absent. 0 for rows whose target is
// `ignored`. dlogits may be logits.
RAFFIA_SIBLING_API void cross_entropy(View2 logits, std::span<const int64_t> targets, int64_t ignored, double smoothing,
                                      MutView1 losses, MutView2 dlogits);

// One step of AdamW in place, with the formulas of AdamwFactors; all [n].
void adamw(MutView1 parameters, View1 gradients, MutView1 mean, MutView1 square, const AdamwFactors& factors);

}  // namespace raffia::internal::twins

#endif  // RAFFIA_REFERENCE_LAYERS_H_
