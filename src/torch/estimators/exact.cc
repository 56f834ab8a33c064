// Exact attention, to all of the past or to a window of it.
#include <algorithm>

#include "estimators/softmax/options.h"
#include "torch/estimators/registry.h"

namespace raffia::internal::ops {
namespace {

class ExactTensors : public TensorEstimator {
 public:
  Attended attend(const Estimator& estimator, const AttendTensors& in, bool causal) const override {
    return {softmax(in.q, in.k, in.v, softmax_options(estimator, causal), in.valid)};
  }

  Attended extend(const Estimator& estimator, const AttendTensors& in, TensorMemory& memory) const override {
    const SoftmaxOptions options = softmax_options(estimator, true);
    const Keys all = with_past(in, memory);
    Tensor out;
    if (is_step(in.q)) {
      // The next token sees everything in the memory.
      const Tensor lengths = at::full({in.q.size(0)}, all.keys.size(1), at::kLong);
      out = softmax_step(in.q.squeeze(1), all.keys, all.values, lengths, {.scale = options.scale}).unsqueeze(1);
    } else if (options.window == 0) {
      out = softmax(in.q, all.keys, all.values, options);
    } else {
      out = attend_behind(in.q, all.past, [&](const Tensor& q) { return softmax(q, all.keys, all.values, options); });
    }

    // The next token sees its own window and the `before` windows before it, so the kept keys start at the beginning of a window.
    int64_t kept = all.keys.size(1);
    if (options.window > 0) {
      const int64_t next = memory.position + in.q.size(1);
      kept = next - std::max<int64_t>(0, next / options.window - options.before) * options.window;
    }
    const auto last = [kept](const Tensor& x) { return kept == x.size(1) ? x : x.narrow(1, x.size(1) - kept, kept).clone(); };
    memory.keys = last(all.keys);
    memory.values = last(all.values);
    return {out};
  }
};

}  // namespace

const TensorEstimator& exact_tensors() {
  static const ExactTensors one;
  return one;
}

}  // namespace raffia::internal::ops
