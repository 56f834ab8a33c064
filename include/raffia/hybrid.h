// Hybrid attention: an exact recent past and a folded far past, in one normaliser.
//
// Blocks of W tokens. Query t sees, exactly, the keys of its own block up to itself and of the block before; everything older
// lives in a gated RFA state. With s_tj the exact logits, y_t what the state (decayed up to t) answers and c a learned log scale:
//   out_t = (sum_j exp(s_tj) v_j + exp(c) y_t[0:V]) / (sum_j exp(s_tj) + exp(c) y_t[V])       terms of y dropped where y_t[V] <=
//   0
// Memory is constant: two blocks of keys and values, and one gated state.
//
// Shapes, layouts, element types and threads as in attention.h.
#ifndef RAFFIA_HYBRID_H_
#define RAFFIA_HYBRID_H_

#include <cstdint>
#include <optional>
#include <span>

#include "raffia/attention.h"
#include "raffia/features.h"
#include "raffia/window_state.h"

namespace raffia {

struct HybridInputs {
  View4 q = {}, k = {}, v = {};  // exact part: [B, T, H, D], [B, T, G, D], [B, T, G, V]
  View3 gate_logits = {};        // [B, T, G]
  View1 log_scale = {};          // c [H], f32; -2 is a good start
  // What the folded part reads and folds, [B, T, H, d] and [B, T, G, d] with d = map.dim(): queries and keys without rotary
  // positions, or features (map: identity). Absent: q and k.
  View4 q_far = {}, k_far = {};
};

struct HybridOptions {
  int64_t window = 32;              // W, tokens per block
  std::optional<float> scale = {};  // of the exact logits; 1 / sqrt(D) by default
  Layout layout = {};
  int threads = 0;               // at most this many; 0: as many as the executor has
  Executor* executor = nullptr;  // default_executor() if null
  std::span<float> record = {};  // filled for the backward pass; hybrid_record_size() floats
};

// has_far: k_far is given.
WindowStateShape hybrid_state_shape(int64_t batch, int64_t heads, int64_t dim, int64_t value_dim, const FeatureMap& map,
                                    bool has_far, const HybridOptions& options = {});

// `state` is read as the past and left as the past of the next call; null: starts empty and forgets. Report: rows, and how many
// of them dropped the folded part because its denominator was not positive though it held something.
Report hybrid_attention(const HybridInputs& inputs, const FeatureMap& map, WindowState* state, MutView4 out,
                        const HybridOptions& options = {});

// Views are overwritten, parameter gradients are added to; leave absent what is not wanted.
struct HybridGradients {
  MutView4 q = {}, k = {}, v = {};
  MutView3 gate_logits = {};
  MutView1 log_scale = {};  // [H], added to
  MutView4 q_far = {}, k_far = {};
  MapGradients map = {};
};

int64_t hybrid_record_size(const HybridInputs& inputs, const FeatureMap& map, const WindowState* initial,
                           const HybridOptions& options = {});

// `initial`: what the state held before the forward pass (null: empty), a constant.
void hybrid_attention_backward(const HybridInputs& inputs, const FeatureMap& map, const WindowState* initial, View4 out,
                               std::span<const float> record, View4 dout, const HybridGradients& gradients,
                               const HybridOptions& options = {});

// One token for each of B sessions, T = 1 in the inputs. The sessions are the entries of one state, or one state each.
Report hybrid_step(const HybridInputs& inputs, const FeatureMap& map, WindowState& state, MutView4 out,
                   const HybridOptions& options = {});
Report hybrid_step(const HybridInputs& inputs, const FeatureMap& map, std::span<WindowState* const> sessions, MutView4 out,
                   const HybridOptions& options = {});

}  // namespace raffia

#endif  // RAFFIA_HYBRID_H_
