// Common to estimators that have a bidirectional form without memory and a causal one with windows: LARA and EVA.
#ifndef RAFFIA_ESTIMATORS_SHARED_SAMPLED_MODULE_H_
#define RAFFIA_ESTIMATORS_SHARED_SAMPLED_MODULE_H_

#include <cstdint>
#include <optional>
#include <span>

#include "estimators/registry.h"
#include "estimators/shared/calls.h"
#include "estimators/shared/windowed_work.h"

namespace raffia::internal {

// Ops names the operations:
//   kWhole(estimator), kCausal(estimator)              the options of the two forms
//   kAttend, kRecordSize, kBackward                    of the bidirectional form
//   causal_attend, causal_record_size, causal_backward, causal_step, kCausalShape
//   whole_work(estimator, length)                      what a token meets in the bidirectional form
//   keys_before(estimator, windows)                    what stands for the windows before a token's own
template <class Ops>
class SampledModule : public EstimatorModule {
 public:
  using EstimatorModule::EstimatorModule;

  Report attend(const Estimator& estimator, const AttendInputs& in, MutView4 out, const AttendOptions& options,
                std::span<float> record) const override {
    if (options.causal) {
      Ops::causal_attend(in.q, in.k, in.v, out, scaled(Ops::kCausal(estimator), options), record);
    } else {
      Ops::kAttend(in.q, in.k, in.v, out, scaled(Ops::kWhole(estimator), options), record);
    }
    return {};
  }

  int64_t record_size(const Estimator& estimator, const AttendInputs& in, const AttendOptions& options) const override {
    if (!options.causal) return Ops::kRecordSize(in.q, in.k, in.v, scaled(Ops::kWhole(estimator), options));
    return Ops::causal_record_size(in.q, in.k, in.v, scaled(Ops::kCausal(estimator), options));
  }

  void backward(const Estimator& estimator, const AttendInputs& in, View4 out, std::span<const float> record, View4 dout,
                const AttendGradients& wanted, const AttendOptions& options) const override {
    const QkvGradients gradients{wanted.q, wanted.k, wanted.v};
    if (options.causal) {
      Ops::causal_backward(in.q, in.k, in.v, out, record, dout, gradients, scaled(Ops::kCausal(estimator), options));
    } else {
      Ops::kBackward(in.q, in.k, in.v, out, record, dout, gradients, scaled(Ops::kWhole(estimator), options));
    }
  }

  Memory empty_memory(const Estimator& estimator, const MemorySizes& sizes) const override {
    return WindowState(shape_of(estimator, sizes));
  }
  std::optional<int64_t> memory_bytes(const Estimator& estimator, const MemorySizes& sizes, int64_t) const override {
    return window_state_bytes(shape_of(estimator, sizes));
  }

  Report extend(const Estimator& estimator, const AttendInputs& in, Memory& memory, MutView4 out,
                const AttendOptions& options) const override {
    Ops::causal_attend(in.q, in.k, in.v, window_state_in(estimator, memory), out, scaled(Ops::kCausal(estimator), options));
    return {};
  }

  Report step(const Estimator& estimator, const AttendInputs& in, std::span<Memory* const> sessions, MutView4 out,
              const AttendOptions& options) const override {
    Ops::causal_step(without_tokens(in.q), without_tokens(in.k), without_tokens(in.v),
                     parts_of(estimator, sessions, window_state_in), without_tokens(out),
                     scaled(Ops::kCausal(estimator), options));
    return {};
  }

  TokenWork work(const Estimator& estimator, bool causal, int64_t length) const override {
    if (!causal) return Ops::whole_work(estimator, length);
    return windowed_work(estimator.window, length, [&](int64_t windows) { return Ops::keys_before(estimator, windows); });
  }
  TokenWork step_work(const Estimator& estimator, int64_t depth) const override {
    return windowed_step_work(estimator.window, depth, [&](int64_t windows) { return Ops::keys_before(estimator, windows); });
  }

 private:
  static WindowStateShape shape_of(const Estimator& estimator, const MemorySizes& sizes) {
    return Ops::kCausalShape(sizes.batch, sizes.query_heads, sizes.heads, sizes.dim, sizes.value_dim, Ops::kCausal(estimator));
  }
};

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_SHARED_SAMPLED_MODULE_H_
