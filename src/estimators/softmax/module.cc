// Exact attention: to all tokens (softmax), or to a window of recent ones (window).
#include <algorithm>

#include "estimators/registry.h"
#include "estimators/shared/cached.h"
#include "estimators/shared/calls.h"
#include "estimators/softmax/options.h"

namespace raffia::internal {
namespace {

class ExactModule : public EstimatorModule {
 public:
  using EstimatorModule::EstimatorModule;

  Report attend(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options,
                std::span<float> record) const override {
    const View4 q = inputs.q;
    const MutView3 logsumexp = record.empty() ? MutView3() : MutView3(record.data(), {q.extent(0), q.extent(1), q.extent(2)});
    softmax_attention(q, inputs.k, inputs.v, out, scaled(softmax_options(estimator, options.causal), options), logsumexp);
    return {};
  }

  int64_t record_size(const Estimator&, const AttendInputs& inputs, const AttendOptions&) const override {
    return inputs.q.extent(0) * inputs.q.extent(1) * inputs.q.extent(2);  // logsumexp
  }

  void backward(const Estimator& estimator, const AttendInputs& inputs, View4 out, std::span<const float> record, View4 dout,
                const AttendGradients& gradients, const AttendOptions& options) const override {
    const View4 q = inputs.q;
    softmax_attention_backward(q, inputs.k, inputs.v, out, {record.data(), {q.extent(0), q.extent(1), q.extent(2)}}, dout,
                               {.q = gradients.q, .k = gradients.k, .v = gradients.v},
                               scaled(softmax_options(estimator, options.causal), options));
  }

  Memory empty_memory(const Estimator&, const MemorySizes& sizes) const override { return empty_cache(sizes); }

  std::optional<int64_t> memory_bytes(const Estimator& estimator, const MemorySizes& sizes, int64_t tokens) const override {
    return cache_bytes(sizes, visible(estimator, tokens));
  }

  Report extend(const Estimator& estimator, const AttendInputs& inputs, Memory& memory, MutView4 out,
                const AttendOptions& options) const override {
    extend_cached(cached(estimator), inputs, key_cache_in(estimator, memory), out, options);
    return {};
  }

  Report step(const Estimator& estimator, const AttendInputs& inputs, std::span<Memory* const> sessions, MutView4 out,
              const AttendOptions& options) const override {
    step_cached(cached(estimator), inputs, parts_of(estimator, sessions, key_cache_in), out, options);
    return {};
  }

 protected:
  // Rows that the next token can see after `tokens` tokens.
  virtual int64_t visible(const Estimator& estimator, int64_t tokens) const = 0;

 private:
  CachedAttention cached(const Estimator& estimator) const {
    CachedAttention op{.attend =
                           [&estimator](View4 q, View4 k, View4 v, MutView4 out, const AttendOptions& options) {
                             softmax_attention(q, k, v, out, scaled(softmax_options(estimator, true), options));
                           },
                       // The keys that are kept are those that the next token sees.
                       .step =
                           [](View3 q, View4 k, View4 v, MutView3 out, const AttendOptions& options) {
                             const int64_t length = k.extent(1);
                             softmax_step(q, k, v, {&length, 1}, out, scaled(SoftmaxOptions{}, options));
                           }};
    if (!traits(estimator).is_exact) {
      op.counts_from_first_key = true;  // windows are counted from there
      op.visible = [this, &estimator](int64_t tokens) { return visible(estimator, tokens); };
    }
    return op;
  }
};

class SoftmaxModule : public ExactModule {
 public:
  SoftmaxModule() : ExactModule(EstimatorKind::softmax, "softmax", "exact attention", {}) {}

  EstimatorTraits traits(const Estimator&) const override { return {.cross = true, .is_exact = true}; }
  TokenWork work(const Estimator&, bool causal, int64_t length) const override {
    return {.keys = static_cast<double>(length) * (causal ? 0.5 : 1.0)};
  }
  TokenWork step_work(const Estimator&, int64_t depth) const override { return {.keys = static_cast<double>(depth)}; }

 protected:
  int64_t visible(const Estimator&, int64_t tokens) const override { return tokens; }
};

class WindowModule : public ExactModule {
 public:
  WindowModule()
      : ExactModule(EstimatorKind::window, "window", "exact attention to the recent past", {&keys::kWindow, &keys::kBefore}) {}

  EstimatorTraits traits(const Estimator& estimator) const override {
    return {.bidirectional = estimator.before == 0, .constant_memory = true, .fades = true, .carried_by_default = true};
  }
  Estimator bidirectional_form(const Estimator&) const override { return {.kind = EstimatorKind::softmax}; }
  EstimatorSizes sizes(const Estimator& estimator, bool) const override { return {.window = estimator.window}; }

  TokenWork work(const Estimator& estimator, bool causal, int64_t length) const override {
    const auto window = static_cast<double>(std::min(estimator.window, length));
    if (!causal) return {.keys = window};
    const double seen = (static_cast<double>(estimator.before) + 0.5) * window;
    return {.keys = std::min(seen, 0.5 * static_cast<double>(length))};
  }

 protected:
  // A token sees its own window and the `before` windows before it, so the kept keys start at the beginning of a window.
  int64_t visible(const Estimator& estimator, int64_t tokens) const override {
    return tokens - std::max<int64_t>(0, tokens / estimator.window - estimator.before) * estimator.window;
  }
};

}  // namespace

SoftmaxOptions softmax_options(const Estimator& estimator, bool causal) {
  const bool is_local = estimator.kind == EstimatorKind::window;
  return {.causal = causal, .window = is_local ? estimator.window : 0, .before = is_local ? estimator.before : 0};
}

const EstimatorModule& softmax_module() {
  static const SoftmaxModule module;
  return module;
}
const EstimatorModule& window_module() {
  static const WindowModule module;
  return module;
}

}  // namespace raffia::internal
