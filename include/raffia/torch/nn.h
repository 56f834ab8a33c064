// Attention modules in the manner of torch::nn: one interface, one factory, every estimator.
//
//   auto attention = raffia::nn::make_attention({.embed_dim = 256, .num_heads = 4, .estimator = parse_estimator("rfa_gate"),
//   .causal = true}); at::Tensor y = attention->forward(x);                    // x [B, T, E] -> [B, T, E], from empty memory
//   raffia::nn::AttentionState state;                        // empty memory
//   y = attention->forward(x, {.state = &state});            // any number of tokens a call: a whole text, a chunk, one token
//
// Masks have the polarity of torch.nn.MultiheadAttention: in key_padding_mask, True means "ignore this key".
#ifndef RAFFIA_TORCH_NN_H_
#define RAFFIA_TORCH_NN_H_

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "raffia/estimator.h"
#include "raffia/torch/ops.h"

namespace raffia::nn {

using at::Tensor;

struct AttentionOptions {
  int64_t embed_dim = 256;   // E
  int64_t num_heads = 4;     // H; E / H is the size of a head
  Estimator estimator = {};  // parse_estimator("rfa_gate")
  bool causal = false;       // self attention that never looks ahead; else self or cross attention
  bool bias = true;          // of the projections
  bool rotary = false;       // rotary positions on q and k (hybrid: on the exact part only)
  double rotary_base = 10000;
  int64_t conv = 0;                   // width of a causal depthwise convolution on q, k and v; causal attention only
  bool head_norm = false;             // RMS norm, with a weight, of each head's output
  bool learned_sigma = true;          // random maps
  int64_t pool = 200;                 // matrices that training draws from; 0: the fixed one, always
  double span_min = 0, span_max = 0;  // gates, see ModelConfig; 0: by estimator
  uint32_t layer = 0;                 // names the stream of random numbers, with estimator.seed
};

// What a causal attention remembers between calls. Empty at first; B comes first in every tensor.
struct AttentionState {
  Tensor memory;         // state of the estimator; undefined: empty
  Tensor keys, values;   // softmax and window: what is still visible, [B, T, H, d]
  Tensor tail;           // inputs of the short convolution that the next token needs, [B, conv - 1, 3 E]
  int64_t position = 0;  // tokens seen

  AttentionState detached() const;
  AttentionState select(const Tensor& indices) const;  // entry i of the result is entry indices[i]
};

struct ForwardOptions {
  Tensor key_padding_mask = {};     // [B, Tk] bool, True: ignore this key
  AttentionState* state = nullptr;  // causal: read as the past and left as the past of the next call
};

// What the last forward pass saw, for the monitors of a training run.
struct Monitor {
  double sigma = 0;                // mean over heads and dimensions; 0 without random map
  double clamp_rate = 0;           // of denominators
  std::vector<double> spans = {};  // mean 1 / (1 - g) per head; empty without gate
};

class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const AttentionOptions& options);

  // query [B, Tq, E], key and value [B, Tk, E] -> [B, Tq, E].
  Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value, const ForwardOptions& options = {});
  Tensor forward(const Tensor& x, const ForwardOptions& options = {}) { return forward(x, x, x, options); }

  // Training takes matrix `draw` of the pool from now on (any number; taken modulo the pool). Evaluation always uses the one that
  // is stored with the weights.
  virtual void redraw(uint64_t draw);

  const AttentionOptions& options() const { return options_; }
  Monitor monitor() const;

  // q, k, v of the last forward pass as the estimator saw them, if asked to keep them: for --dump-qkv.
  void keep_qkv(bool keep);
  std::vector<Tensor> kept_qkv() const;

 protected:
  // Heads split off and positions applied: q [B, Tq, H, d], k, v [B, Tk, H, d] -> [B, Tq, H, d]. `input` is what was projected,
  // for gates.
  struct Heads {
    Tensor q, k, v;
    Tensor q_plain, k_plain;  // without rotary positions (the same tensors where there are none)
    Tensor input;             // [B, Tk, E]
    Tensor valid;             // [B, Tk] bool, True: takes part; undefined: all
  };
  virtual Tensor attend(const Heads& heads, AttentionState* state) = 0;

  AttentionOptions options_;
  // Projections q_proj, k_proj, v_proj, out_proj; conv_q, conv_k, conv_v; head_norm; written by the implementation.
};

using Attention = std::shared_ptr<AttentionImpl>;

// RandomFeatureAttention, GatedRandomFeatureAttention, HybridAttention, LaraAttention, EvaAttention, RandomizedAttention or
// SoftmaxAttention (softmax and window), by options.estimator.kind.
Attention make_attention(const AttentionOptions& options);

}  // namespace raffia::nn

#endif  // RAFFIA_TORCH_NN_H_
