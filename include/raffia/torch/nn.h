// Attention modules for torch::nn: one interface and one factory for every estimator.
//
//   auto attention = raffia::nn::make_attention({.embed_dim = 256, .num_heads = 4,
//                                                .estimator = raffia::parse_estimator("rfa_gate"), .causal = true});
//   at::Tensor y = attention->forward(x);           // x [B, T, E] -> [B, T, E], from empty memory
//   raffia::nn::AttentionState state;               // empty memory
//   y = attention->forward(x, {.state = &state});   // any number of tokens per call: a whole text, a chunk, one token
//
// Masks have the polarity of torch.nn.MultiheadAttention: in key_padding_mask, True means "ignore this key".
// Names and shapes of parameters and buffers: docs/model-format.md.
#ifndef RAFFIA_TORCH_NN_H_
#define RAFFIA_TORCH_NN_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "raffia/api.h"
#include "raffia/estimator.h"
#include "raffia/torch/ops.h"

namespace raffia::nn {

using at::Tensor;

struct AttentionOptions {
  int64_t embed_dim = 256;   // E
  int64_t num_heads = 4;     // H; E / H is the size of a head, d
  int64_t num_kv_heads = 0;  // G, a divisor of H: each key and value head serves H / G query heads; 0: H
  Estimator estimator = {};  // parse_estimator("rfa_gate"); its seed is used, its layer and draw are not (see below)
  bool causal = false;       // self attention that never looks ahead; else self or cross attention
  bool bias = true;          // of the projections
  bool rotary = false;       // rotary positions on q and k (of estimators that blend: on the exact part only)
  double rotary_base = 10000;
  int64_t conv = 0;                   // width of a causal depthwise convolution on q, k and v; causal attention only
  bool head_norm = false;             // RMS norm, with a weight, of each head's output
  bool learned_sigma = true;          // random maps: sigma is trained
  int64_t pool = 200;                 // number of random matrices that training picks from; 0: always the stored one
  double span_min = 0, span_max = 0;  // gates: initial spans 1 / (1 - g) of the key heads; 0: those of the estimator
  uint32_t layer = 0;                 // selects the stream of random numbers, together with estimator.seed

  int64_t head_dim() const { return embed_dim / num_heads; }
  int64_t key_heads() const { return num_kv_heads == 0 ? num_heads : num_kv_heads; }
};

// The memory of a causal attention between calls. Initially empty. B is the first axis of every tensor.
struct RAFFIA_API AttentionState {
  Tensor memory = {};             // state of the estimator; undefined: empty
  Tensor keys = {}, values = {};  // of exact attention: those that later tokens can see, [B, T, G, d]
  Tensor tail = {};               // inputs of the short convolution that the next token needs, [B, conv - 1, E + 2 G d]
  int64_t position = 0;           // tokens seen

  AttentionState detached() const;
  AttentionState select(const Tensor& indices) const;  // entry i of the result is entry indices[i]
};

struct ForwardOptions {
  Tensor key_padding_mask = {};     // [B, Tk] bool, True: ignore this key. Not allowed together with a state
  AttentionState* state = nullptr;  // causal: the memory of earlier calls; it is read and updated
};

// Statistics of the last forward pass, for monitoring a training run.
struct Monitor {
  double sigma = 0;                // mean over heads and dimensions; 0 without a random map
  double clamp_rate = 0;           // of denominators
  std::vector<double> spans = {};  // mean 1 / (1 - g) per key head; empty without a gate
};

// A sequence whose tokens are split over processes, in order: exchanges what an attention needs from the slices before its own.
class RAFFIA_API SequenceSplit {
 public:
  virtual ~SequenceSplit() = default;
  virtual int64_t position() const = 0;  // number of tokens in the slices before this one
  // [B, n, C], the end of this slice -> the end of the slice before it; zeros for the first slice. Differentiable.
  virtual Tensor tail_before(const Tensor& tail) = 0;
  // Gated attention (ops::rfa_gate) over the whole sequence; this process has its slice of the inputs and gets its slice of the
  // output.
  virtual ops::Carried gated(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate_logits,
                             const ops::Map& map) = 0;
};

// The feature map of an attention: draws and sigma of the random ones, weight and bias of relu. Nothing for identity and elu.
class RAFFIA_API AttentionMapImpl : public torch::nn::Module {
 public:
  explicit AttentionMapImpl(const AttentionOptions& options);
  ops::Map tensors(uint32_t draw);  // 0: the stored matrix
  double mean_sigma() const;        // 0 for maps that are not random

 private:
  Tensor drawn(uint32_t draw) const;

  AttentionOptions options_;
  MapKind kind_;
  Tensor draws_, sigma_;             // [G, D, d], [G, d]
  Tensor weight_, bias_;             // [G, F, d], [G, F]
  std::map<uint32_t, Tensor> pool_;  // the draws that training has used so far
};
TORCH_MODULE(AttentionMap);

// Attention with any estimator. Parameters and buffers that not all have: `map` if it has one, `gate` if it is gated, `log_scale`
// if it blends (see EstimatorTraits).
class RAFFIA_API AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const AttentionOptions& options);

  // query [B, Tq, E], key and value [B, Tk, E] -> [B, Tq, E].
  Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value, const ForwardOptions& options = {});
  Tensor forward(const Tensor& x, const ForwardOptions& options = {}) { return forward(x, x, x, options); }

  // Training uses matrix `draw` of the pool from now on (any number; taken modulo the pool size). Evaluation always uses the
  // matrix that is stored with the weights.
  void redraw(uint64_t draw) { draw_ = draw; }

  const AttentionOptions& options() const { return options_; }
  Monitor monitor() const;

  // Inputs and output of the estimator in the last forward pass, if keep(true) was called; else undefined.
  struct Kept {
    Tensor input;    // [B, Tk, E], what the keys were projected from
    Tensor q, k, v;  // [B, Tq, H, d], [B, Tk, G, d]
    Tensor out;      // [B, Tq, H, d], before the norm of heads
  };
  void keep(bool keeps);
  const Kept& kept() const { return kept_; }

  // From now on forward() gets this process's slice of every sequence. Null: whole sequences again. Only estimators with
  // EstimatorTraits::splits_sequences support this.
  void split_sequence(std::shared_ptr<SequenceSplit> split);

 private:
  // Inputs with heads split and positions applied.
  struct Heads {
    Tensor q, k, v;           // [B, Tq, H, d], [B, Tk, G, d]
    Tensor q_plain, k_plain;  // without rotary positions (the same tensors as q, k if there are none)
    Tensor input;             // [B, Tk, E], what the keys were projected from: for gates
    Tensor valid;             // [B, Tk] bool, True: takes part; undefined: all
  };
  void add_parts();
  void check(const Tensor& query, const Tensor& key, const Tensor& value, const ForwardOptions& options) const;
  Tensor attend(const Heads& heads, AttentionState* state);  // [B, Tq, H, d]
  Tensor gate_logits(const Heads& heads);                    // [B, T, G]

  // 0, the stored draw, in evaluation and without a pool; 1 + n % pool in training.
  uint32_t current_draw() const;
  // The estimator with the stream of random numbers of this layer and the current draw; in training samples are drawn unless
  // the estimator sets `mean`.
  Estimator current_estimator() const;

  int64_t head_dim() const { return options_.head_dim(); }

  AttentionOptions options_;
  EstimatorTraits traits_;
  torch::nn::Linear q_proj_ = nullptr, k_proj_ = nullptr, v_proj_ = nullptr, out_proj_ = nullptr;
  Tensor conv_q_, conv_k_, conv_v_;  // [E, conv], [G d, conv] of keys and values
  Tensor head_norm_;                 // [H, d]
  AttentionMap map_ = nullptr;
  torch::nn::Linear gate_ = nullptr;
  Tensor log_scale_;                 // c [H]
  Tensor last_report_;               // of the op: rows, clamped
  Tensor last_logits_, last_valid_;  // gates of the last forward pass
  uint64_t draw_ = 0;
  bool keeps_ = false;
  Kept kept_;
  std::shared_ptr<SequenceSplit> split_;
};

using Attention = std::shared_ptr<AttentionImpl>;
RAFFIA_API Attention make_attention(const AttentionOptions& options);

}  // namespace raffia::nn

#endif  // RAFFIA_TORCH_NN_H_
