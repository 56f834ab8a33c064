// Raffia's ops for LibTorch: torch.ops.raffia.* as C++ functions.
//
// Every op goes through torch's dispatcher: the CPU kernels are those of attention.h, lara.h, eva.h and hybrid.h, gradients are
// their backward passes, and the Meta device infers shapes. From Python: torch.ops.load_library(path of libraffia_torch.so), then
// torch.ops.raffia.rfa_gate(q, k, v, gate_logits, ...). Schemas: docs/torch.md.
//
// Shapes as in attention.h: q [B, Tq, H, D], k [B, Tk, G, D], v [B, Tk, G, V], gate_logits [B, Tk, G], any strides. fp32 or bf16;
// double runs the reference twins forward (slow: for gradient checks), and its gradients come from the fp32 kernels.
// `valid` [B, Tk], bool, says which keys take part (True: takes part); undefined: all.
// `cu_seqlens` [N + 1], int64, from 0 to T: N packed sequences in a batch of one; states then have N entries. `cu_seqlens_k`: the
// same for keys, if they differ.
// Second derivatives are not supported and raise an error.
#ifndef RAFFIA_TORCH_OPS_H_
#define RAFFIA_TORCH_OPS_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>

#include "raffia/api.h"
#include "raffia/attention.h"
#include "raffia/eva.h"
#include "raffia/hybrid.h"
#include "raffia/lara.h"

namespace raffia::ops {

using at::Tensor;

// A feature map as tensors. Gradients flow to sigma, and to weight and bias of relu.
struct Map {
  MapKind kind = MapKind::trig;
  Tensor weight = {};  // random maps: the draws w~ [G, D, d], constants; relu: A [G, F, d]; undefined for identity and elu
  Tensor sigma = {};   // random maps: [G, d]; undefined: ones
  Tensor bias = {};    // relu: [G, F]
};

// The result of causal ops. A state is one fp32 tensor: [B, G, F * (V + 1) + 2] for rfa and rfa_gate (per head: sums [F, V],
// normaliser [F], mass, log decay), and opaque [B, N] for the windowed ones. B is the first axis, so that index_select(0, ..)
// selects sessions.
struct Carried {
  Tensor out;
  Tensor state;   // for the next call; differentiable for rfa and rfa_gate, a constant for the others
  Tensor report;  // int64 [2]: rows, clamped (see raffia::Report); zeros for causal_lara and causal_eva, which never clamp
};
struct Read {
  Tensor out;
  Tensor report;
};

// The fields `layout`, `run` and `key_bias` of the options are ignored: these are tensors here, and the threads are those of
// torch.
RAFFIA_API Tensor softmax(const Tensor& q, const Tensor& k, const Tensor& v, const SoftmaxOptions& options = {},
                          const Tensor& valid = {}, const Tensor& key_bias = {}, const Tensor& cu_seqlens = {},
                          const Tensor& cu_seqlens_k = {});

// One token: q [B, H, D], caches [B, capacity, G, D] and [B, capacity, G, V] that already hold it, lengths [B] int64.
RAFFIA_API Tensor softmax_step(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& lengths,
                               const SoftmaxOptions& options = {});

RAFFIA_API Read rfa(const Tensor& q, const Tensor& k, const Tensor& v, const Map& map, const Tensor& valid = {},
                    std::optional<double> eps = {}, const Tensor& cu_seqlens = {}, const Tensor& cu_seqlens_k = {});

// `state` undefined: starts from empty memory.
RAFFIA_API Carried causal_rfa(const Tensor& q, const Tensor& k, const Tensor& v, const Map& map, const Tensor& state = {},
                              const Tensor& valid = {}, std::optional<double> eps = {}, const Tensor& cu_seqlens = {});
RAFFIA_API Carried rfa_gate(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate_logits, const Map& map,
                            const Tensor& state = {}, const Tensor& valid = {}, std::optional<double> eps = {},
                            const Tensor& cu_seqlens = {});

// Steps: q [B, H, D], k [B, G, D], v [B, G, V], gate_logits [B, G] -> out [B, H, V] and the next state; no gradients. `state`
// undefined: the first token, from empty memory.
RAFFIA_API Carried causal_rfa_step(const Tensor& q, const Tensor& k, const Tensor& v, const Map& map, const Tensor& state,
                                   std::optional<double> eps = {});
RAFFIA_API Carried rfa_gate_step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate_logits, const Map& map,
                                 const Tensor& state, std::optional<double> eps = {});

struct HybridTensors {
  Tensor q, k, v, gate_logits;
  Tensor log_scale;               // c [H]
  Tensor q_far = {}, k_far = {};  // undefined: q and k
};
RAFFIA_API Carried hybrid(const HybridTensors& inputs, const Map& map, const Tensor& state = {},
                          const HybridOptions& options = {}, const Tensor& valid = {}, const Tensor& cu_seqlens = {});
RAFFIA_API Carried hybrid_step(const HybridTensors& inputs, const Map& map, const Tensor& state,
                               const HybridOptions& options = {});

RAFFIA_API Tensor lara(const Tensor& q, const Tensor& k, const Tensor& v, const LaraOptions& options = {},
                       const Tensor& valid = {}, const Tensor& cu_seqlens = {}, const Tensor& cu_seqlens_k = {});
RAFFIA_API Tensor ra(const Tensor& q, const Tensor& k, const Tensor& v, const RaOptions& options = {}, const Tensor& valid = {},
                     const Tensor& cu_seqlens = {}, const Tensor& cu_seqlens_k = {});
RAFFIA_API Tensor eva(const Tensor& q, const Tensor& k, const Tensor& v, const EvaOptions& options = {}, const Tensor& valid = {},
                      const Tensor& cu_seqlens = {});

RAFFIA_API Carried causal_lara(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& state = {},
                               const CausalLaraOptions& options = {}, const Tensor& valid = {}, const Tensor& cu_seqlens = {});
RAFFIA_API Carried causal_eva(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& state = {},
                              const CausalEvaOptions& options = {}, const Tensor& valid = {}, const Tensor& cu_seqlens = {});
RAFFIA_API Carried causal_lara_step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& state,
                                    const CausalLaraOptions& options = {});
RAFFIA_API Carried causal_eva_step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& state,
                                   const CausalEvaOptions& options = {});

}  // namespace raffia::ops

#endif  // RAFFIA_TORCH_OPS_H_
