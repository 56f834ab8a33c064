// Parts of attention modules around the estimator: positions, short convolution, norms.
#ifndef RAFFIA_TORCH_NN_PIECES_H_
#define RAFFIA_TORCH_NN_PIECES_H_

#include <cstdint>

#include "model/plan.h"
#include "raffia/torch/nn.h"
#include "torch/libtorch.h"

namespace raffia::internal::nn {

using at::Tensor;
using raffia::nn::Attention, raffia::nn::AttentionImpl, raffia::nn::AttentionMap, raffia::nn::AttentionOptions,
    raffia::nn::AttentionState, raffia::nn::ForwardOptions, raffia::nn::Monitor, raffia::nn::SequenceSplit,
    raffia::nn::make_attention;

// Initial standard deviation of weights, as in GPT.
constexpr double kInitialDeviation = 0.02;

// A linear layer with weights of this deviation and bias 0.
torch::nn::Linear make_linear(const LinearLayerPlan& plan);

// What the layer computes, faster than its forward() (ops/linear_layer.h), and gelu() of it.
Tensor apply_linear(const torch::nn::Linear& linear, const Tensor& x);
Tensor apply_linear_gelu(const torch::nn::Linear& linear, const Tensor& x);

// Rows of this deviation.
torch::nn::Embedding make_table(const TablePlan& plan);

// Adds a part of a model to the module that owns it, by its name in the plan.
template <typename Plan, typename Part>
Part add_module(torch::nn::Module& owner, const Plan& plan, const Part& part) {
  return owner.register_module(own_name(plan.name), part);
}

// The same choices as a module has them and as a plan has them.
AttentionOptions options_of(const AttentionPlan& plan);
AttentionSettings settings_of(const AttentionOptions& options);

// Rotary positions: x [B, T, H, d], T up to `length`, d even, token t at `position` + t. Pairs are (i, i + d / 2) and turn by
// angle (position + t) base^(-2 i / d).
class Rotary {
 public:
  Rotary(int64_t position, int64_t length, int64_t dim, double base, const Tensor& like);
  Tensor operator()(const Tensor& x) const;

 private:
  Tensor cos_, sin_;  // [T, 1, d / 2]
};

// y_t = sum_j weight[:, j] x_{t - width + 1 + j}: x [B, T, E], `before` [B, width - 1, E] the tokens before it, weight [E,
// width].
Tensor short_convolution(const Tensor& x, const Tensor& before, const Tensor& weight);

// Of the norm of heads.
constexpr double kHeadNormEpsilon = 1e-6;

// The residual stream of a stack, [B, T, E]. What a branch adds to it waits for the next norm, which reads the sum anyway.
struct Residual {
  Tensor sum;
  Tensor added = {};  // undefined: nothing
};

// The norm of a layer: layer norm with weight and bias, or RMS norm with a weight.
class NormImpl : public torch::nn::Module {
 public:
  explicit NormImpl(const NormPlan& plan);
  Tensor forward(Residual& x);  // of the whole sum, which is left in x.sum

 private:
  double epsilon_;
  Tensor weight_, bias_;  // [E]; no bias for RMS
};
TORCH_MODULE(Norm);

// The type of parameters and gates for an op: double with double inputs, else fp32.
Tensor as_parameter(const Tensor& parameter, const Tensor& q);

}  // namespace raffia::internal::nn

#endif  // RAFFIA_TORCH_NN_PIECES_H_
