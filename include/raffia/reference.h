// Reference implementations ("twins"): every op of features.h and attention.h in double precision, as plain loops. Those of
// lara.h, eva.h and hybrid.h are in reference_sampled.h.
//
// Read these first: they define what the kernels compute. If a kernel and its twin disagree, the kernel is presumed wrong.
// Recurrences go token by token and sums are direct, so nothing here is fast; the backward twins of the recurrences keep the
// state of every token. Views may have any element type, including f64. A step is an op with T = 1. Shapes are those of
// attention.h and are not checked: only the fast ops check them. Call the twins by their qualified names: `softmax_attention`
// without `reference::` is ambiguous.
#ifndef RAFFIA_REFERENCE_H_
#define RAFFIA_REFERENCE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "raffia/api.h"
#include "raffia/attention.h"
#include "raffia/features.h"
#include "raffia/state.h"
#include "raffia/views.h"

namespace raffia::reference {

// The parameters of a FeatureMap as plain numbers, so that a finite difference can change one of them.
struct RAFFIA_API Map {
  explicit Map(const FeatureMap& map);

  MapKind kind = MapKind::identity;
  int64_t dim = 0;       // d
  int64_t rows = 0;      // D, rows of W
  int64_t features = 0;  // F
  int64_t heads = 0;
  double eps = 0;             // default floor of denominators
  std::vector<double> draws;  // w~ [H, D, d]; for relu, A
  std::vector<double> sigma;  // [H, d] of the random maps, else empty
  std::vector<double> bias;   // b [H, F] of relu, else empty
};

// Gradients of a map's parameters, with the same shapes; `weight` is the gradient of relu's A.
struct RAFFIA_API MapGradient {
  explicit MapGradient(const Map& map);  // all zero

  std::vector<double> sigma, weight, bias;
};

// phi(x) [F] of x [d].
RAFFIA_API std::vector<double> phi(const Map& map, int64_t head, std::span<const double> x);

// dphi [F] -> dx [d], which is overwritten (may be empty), and parameters, which are added to (may be null).
RAFFIA_API void phi_backward(const Map& map, int64_t head, std::span<const double> x, std::span<const double> dphi,
                             std::span<double> dx, MapGradient* parameters);

// A State in double precision.
struct RAFFIA_API Memory {
  explicit Memory(const StateShape& shape);  // empty
  explicit Memory(const State& state);
  State to_state() const;

  size_t head_at(int64_t b, int64_t h) const { return static_cast<size_t>(b * shape.heads + h); }
  std::span<double> sums_at(int64_t b, int64_t h);
  std::span<const double> sums_at(int64_t b, int64_t h) const;
  std::span<double> normaliser_at(int64_t b, int64_t h);
  std::span<const double> normaliser_at(int64_t b, int64_t h) const;

  StateShape shape;
  std::vector<double> sums;        // [B, H, F, V]
  std::vector<double> normaliser;  // [B, H, F]
  std::vector<double> mass;        // [B, H]
  std::vector<double> log_decay;   // [B, H]
};

// x [B, T, H, d] -> phi [B, T, H, F], and back.
RAFFIA_API void apply_features(View4 x, const Map& map, MutView4 phi);
RAFFIA_API void apply_features_backward(View4 x, const Map& map, View4 dphi, MutView4 dx, MapGradient* parameters);

// The ops of attention.h. Only the options that change results are used: eps, layout; causal, scale, key_bias.
//
// A denominator is clamped if it is below eps * mass or not positive. It is then replaced by eps * mass; if that is 0 too, the
// output is 0. `layout.valid` says which keys take part. In the causal ops the output of a masked token is 0; elsewhere every
// query is computed. `layout.lengths` counts keys, and queries too if Tq = Tk: the output of queries beyond it is 0.
RAFFIA_API Report rfa_attention(View4 q, View4 k, View4 v, const Map& map, MutView4 out, const AttentionOptions& options = {});
RAFFIA_API Report causal_attention(View4 q, View4 k, View4 v, const Map& map, Memory& memory, MutView4 out,
                                   const AttentionOptions& options = {});
RAFFIA_API Report gated_attention(View4 q, View4 k, View4 v, View3 gate_logits, const Map& map, Memory& memory, MutView4 out,
                                  const AttentionOptions& options = {});
RAFFIA_API void fold_keys(View4 k, View4 v, const Map& map, Memory& memory, const AttentionOptions& options = {});
RAFFIA_API void fold_keys(View4 k, View4 v, View3 gate_logits, const Map& map, Memory& memory,
                          const AttentionOptions& options = {});
RAFFIA_API Report read_state(View4 q, const Map& map, const Memory& memory, MutView4 out, const AttentionOptions& options = {});

// Views are overwritten, parameter gradients are added to. Absent views are not computed.
struct Gradients {
  MutView4 q, k, v;
  MutView3 gate_logits;
  MapGradient* map = nullptr;
  Memory* memory = nullptr;  // in: gradient of the final sums and normaliser; out: of the initial ones
};

// These gradients treat mass and log_decay as constants: only the floor depends on the mass, and clamped denominators have none.
RAFFIA_API void rfa_attention_backward(View4 q, View4 k, View4 v, const Map& map, View4 dout, const Gradients& gradients,
                                       const AttentionOptions& options = {});
RAFFIA_API void causal_attention_backward(View4 q, View4 k, View4 v, const Map& map, const Memory& initial, View4 dout,
                                          const Gradients& gradients, const AttentionOptions& options = {});
RAFFIA_API void gated_attention_backward(View4 q, View4 k, View4 v, View3 gate_logits, const Map& map, const Memory& initial,
                                         View4 dout, const Gradients& gradients, const AttentionOptions& options = {});

RAFFIA_API void softmax_attention(View4 q, View4 k, View4 v, MutView4 out, const SoftmaxOptions& options = {},
                                  MutView3 logsumexp = {});
RAFFIA_API void softmax_attention_backward(View4 q, View4 k, View4 v, View4 dout, const SoftmaxGradients& gradients,
                                           const SoftmaxOptions& options = {});

// The estimator `mean`: the mean of the values that a query sees, 0 if it sees none. Masked tokens of the causal form output 0.
RAFFIA_API void mean_attention(View4 q, View4 k, View4 v, MutView4 out, bool causal, const Layout& layout = {});

// Attention with the exact Gaussian kernel of unit vectors, which the trig map estimates; sigma [G, D]. options.scale is
// ignored.
//   out_t = sum_j w_tj v_j / sum_j w_tj,   w_tj = exp(-|sigma o (q^_t - k^_j)|^2 / 2)
RAFFIA_API void gaussian_attention(View4 q, View4 k, View4 v, View2 sigma, MutView4 out, const SoftmaxOptions& options = {},
                                   MutView3 logsumexp = {});

}  // namespace raffia::reference

#endif  // RAFFIA_REFERENCE_H_
