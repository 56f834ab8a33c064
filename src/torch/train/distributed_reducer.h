// Data parallel training: gradients summed or averaged over ranks while the backward pass still runs.
//
//   GradientReducer reducer(group, model->parameters());
//   for each micro-step: { if (last) reducer.arm(); loss.backward(); }
//   reducer.finish();   // now every rank holds the same gradients, to the bit
#ifndef RAFFIA_TORCH_TRAIN_DISTRIBUTED_REDUCER_H_
#define RAFFIA_TORCH_TRAIN_DISTRIBUTED_REDUCER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "torch/libtorch.h"
#include "torch/train/distributed.h"

namespace raffia::internal::train {

struct ReducerOptions {
  int64_t bucket_bytes = 4 << 20;  // gradients per message: small buckets cost latency, large ones start late
  bool average = true;             // over ranks; else the sum
};

class GradientReducer {
 public:
  // Parameters must be the same on all ranks, in the same order. Their gradients are computed roughly from last to first, so
  // buckets are filled in that order.
  GradientReducer(Group& group, std::vector<Tensor> parameters, const ReducerOptions& options = {});
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // The next backward pass is the last one of this step: each bucket is sent as soon as all its gradients are computed.
  void arm();

  // Sends the remaining buckets and waits. A parameter without a gradient on this rank counts as zero; without one on any rank it
  // has none afterwards.
  void finish();

  int64_t buckets() const { return static_cast<int64_t>(buckets_.size()); }
  int64_t sent_in_backward() const { return sent_in_backward_; }  // buckets of the last step that were sent before finish()

 private:
  struct Bucket {
    std::vector<size_t> slots = {};
    Tensor flat = {};  // values of all slots, then a number per slot: on how many ranks there is a gradient
    size_t missing = 0;
    Group::Pending pending = {};
  };
  struct Slot {
    Tensor parameter;
    size_t bucket = 0;
    Tensor values = {};                                       // in the bucket, in the shape of the parameter
    Tensor present = {};                                      // in the bucket: 1 if this rank has a gradient
    bool ready = false;                                       // the backward pass is done with it
    std::shared_ptr<torch::autograd::Node> accumulator = {};  // has the hook; kept alive here, since the parameter does not
    uintptr_t hook = 0;
  };

  void gradient_arrived(size_t slot);
  void send_ready(bool all);

  Group& group_;
  const ReducerOptions options_;
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  size_t sent_ = 0;  // buckets go in order, the same on all ranks
  int64_t sent_in_backward_ = 0;
  bool armed_ = false;
};

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_DISTRIBUTED_REDUCER_H_
