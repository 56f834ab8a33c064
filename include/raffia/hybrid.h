// Hybrid attention: exact attention to the recent past and gated RFA over everything older, with one common normaliser.
//
// The sequence is cut into blocks of W tokens. Query t attends exactly to the keys of its own block up to itself and of the block
// before. Older tokens are in a gated RFA state. With the exact logits s_tj, the output y_t of the state (decayed up to t), and a
// learned log scale c:
//   out_t = (sum_j exp(s_tj) v_j + exp(c) y_t[0:V]) / (sum_j exp(s_tj) + exp(c) y_t[V])   (terms of y dropped if y_t[V] <= 0)
// Memory is constant: two blocks of keys and values, and one gated state.
// Shapes, layouts, element types, threads and `record` are as in attention.h.
#ifndef RAFFIA_HYBRID_H_
#define RAFFIA_HYBRID_H_

#include <cstdint>
#include <optional>
#include <span>

#include "raffia/api.h"
#include "raffia/attention.h"
#include "raffia/features.h"
#include "raffia/window_state.h"

namespace raffia {

struct HybridInputs {
  View4 q = {}, k = {}, v = {};  // exact part: [B, T, H, D], [B, T, G, D], [B, T, G, V]
  View3 gate_logits = {};        // [B, T, G]
  View1 log_scale = {};          // c [H], f32; -2 is a good initial value
  // Queries and keys of the folded part, [B, T, H, d] and [B, T, G, d] with d = map.dim(): those without rotary positions, or
  // features (map: identity). Absent: q and k.
  View4 q_far = {}, k_far = {};
};

struct HybridOptions {
  int64_t window = 32;              // W, tokens per block
  std::optional<float> scale = {};  // of the exact logits; default: 1 / sqrt(D)
  Layout layout = {};
  RunOptions run = {};  // threads and executor
};

// has_far: whether k_far is given.
RAFFIA_API WindowStateShape hybrid_state_shape(int64_t batch, int64_t heads, int64_t dim, int64_t value_dim,
                                               const FeatureMap& map, bool has_far, const HybridOptions& options = {});

// `state` is the memory of earlier calls; it is read and updated. Without it, a call starts empty and keeps nothing. The report
// counts rows, and as clamped those that dropped a non-empty folded part because its denominator was not positive.
RAFFIA_API Report hybrid_attention(const HybridInputs& inputs, const FeatureMap& map, WindowState& state, MutView4 out,
                                   const HybridOptions& options = {}, std::span<float> record = {});
RAFFIA_API Report hybrid_attention(const HybridInputs& inputs, const FeatureMap& map, MutView4 out,
                                   const HybridOptions& options = {}, std::span<float> record = {});

// Views are overwritten, parameter gradients are added to. Absent views are not computed.
struct HybridGradients {
  MutView4 q = {}, k = {}, v = {};
  MutView3 gate_logits = {};
  MutView1 log_scale = {};  // [H], added to
  MutView4 q_far = {}, k_far = {};
  MapGradients map = {};
};

RAFFIA_API int64_t hybrid_record_size(const HybridInputs& inputs, const FeatureMap& map, const HybridOptions& options = {});

// `initial`: the state before the forward pass, or none. It is treated as a constant.
RAFFIA_API void hybrid_attention_backward(const HybridInputs& inputs, const FeatureMap& map, const WindowState& initial,
                                          View4 out, std::span<const float> record, View4 dout, const HybridGradients& gradients,
                                          const HybridOptions& options = {});
RAFFIA_API void hybrid_attention_backward(const HybridInputs& inputs, const FeatureMap& map, View4 out,
                                          std::span<const float> record, View4 dout, const HybridGradients& gradients,
                                          const HybridOptions& options = {});

// One token for each of B sessions: T = 1 in the inputs. The sessions are the entries of one state, or one state each.
RAFFIA_API Report hybrid_step(const HybridInputs& inputs, const FeatureMap& map, WindowState& state, MutView4 out,
                              const HybridOptions& options = {});
RAFFIA_API Report hybrid_step(const HybridInputs& inputs, const FeatureMap& map, std::span<WindowState* const> sessions,
                              MutView4 out, const HybridOptions& options = {});

}  // namespace raffia

#endif  // RAFFIA_HYBRID_H_
