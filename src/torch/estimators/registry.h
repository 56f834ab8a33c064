// Every kind of estimator over tensors: the counterpart of src/estimators/registry.h for the modules that are trained.
#ifndef RAFFIA_TORCH_ESTIMATORS_REGISTRY_H_
#define RAFFIA_TORCH_ESTIMATORS_REGISTRY_H_

#include <cstdint>

#include "raffia/estimator.h"
#include "raffia/torch/ops.h"
#include "torch/libtorch.h"
#include "torch/ops/tensors.h"

namespace raffia::internal::ops {

struct AttendTensors {
  Tensor q, k, v;                           // [B, Tq, H, d], [B, Tk, G, d]
  Tensor gate_logits = {}, log_scale = {};  // [B, Tk, G], [H]: where the estimator is gated, or blends
  Tensor q_far = {}, k_far = {};            // where it blends; undefined: q and k
  Map map = {};                             // where it has one
  Tensor valid = {};                        // [B, Tk] bool, True: takes part; undefined: all
};

struct Attended {
  Tensor out;          // [B, Tq, H, d]
  Tensor report = {};  // int64 [2]: rows, clamped; undefined where nothing is ever clamped
};

// The memory of a causal attention as tensors, initially empty: a state, or keys and values.
struct TensorMemory {
  Tensor memory = {};             // undefined: empty
  Tensor keys = {}, values = {};  // those that later tokens can see, [B, T, G, d]
  int64_t position = 0;           // tokens seen before this call
};

class TensorEstimator {
 public:
  virtual ~TensorEstimator() = default;
  // Over whole sequences, from empty memory.
  virtual Attended attend(const Estimator& estimator, const AttendTensors& in, bool causal) const = 0;
  // Causal, after the tokens in `memory`, which is read and updated (but for its position).
  virtual Attended extend(const Estimator& estimator, const AttendTensors& in, TensorMemory& memory) const = 0;
};

const TensorEstimator& tensors_of(EstimatorKind kind);

// For the files of the kinds.

// Whether a call can use the step op: one token, no gradient.
bool is_step(const Tensor& q);

// whole(memory) or step(), whichever fits; the memory is updated.
template <class Whole, class Step>
Attended carry(const AttendTensors& in, TensorMemory& memory, const Whole& whole, const Step& step) {
  Carried carried;
  if (is_step(in.q)) {
    carried = step();
    carried.out = carried.out.unsqueeze(1);
  } else {
    carried = whole(memory.memory);
  }
  memory.memory = carried.state;
  return {carried.out, carried.report};
}

// The keys and values of a memory, followed by those of a call.
struct Keys {
  Tensor keys, values;  // [B, P + T, G, d]
  int64_t past = 0;     // P
};
Keys with_past(const AttendTensors& in, const TensorMemory& memory);

// Outputs of queries [B, T, H, d] over keys that begin `past` tokens earlier, with an op that needs as many queries as keys.
template <class Op>
Tensor attend_behind(const Tensor& q, int64_t past, const Op& op) {
  if (past == 0) return op(q);
  const Tensor padding = at::zeros({q.size(0), past, q.size(2), q.size(3)}, q.options());
  return op(at::cat({padding, q}, 1)).narrow(1, past, q.size(1));
}

}  // namespace raffia::internal::ops

#endif  // RAFFIA_TORCH_ESTIMATORS_REGISTRY_H_
