// EVA: an exact window, and a virtual key and value per chunk elsewhere.
#include <algorithm>

#include "estimators/eva/options.h"
#include "estimators/registry.h"
#include "estimators/shared/calls.h"
#include "estimators/shared/windowed_work.h"

namespace raffia {
namespace {

class EvaModule : public EstimatorModule {
 public:
  EvaModule()
      : EstimatorModule(EstimatorKind::eva, "eva", "exact window and summaries of chunks",
                        {&keys::samples_or_none, &keys::window, &keys::chunk, &keys::features, &keys::decay, &keys::draws,
                         &keys::seed, &keys::layer, &keys::draw},
                        true) {}

  // samples = 0: the causal form keeps all summaries, and folds nothing into random features.
  EstimatorTraits traits(const Estimator& estimator) const override {
    const bool folds = estimator.samples != 0;
    return {.bidirectional = folds,
            .is_random = folds,
            .has_samples = true,
            .has_memory = folds,
            .constant_memory = folds,
            .fades = folds};
  }

  Estimator used(const Estimator& estimator, bool causal) const override {
    if (causal) return estimator;
    const Estimator defaults;
    Estimator used = estimator;
    used.chunk = defaults.chunk;
    used.features = defaults.features;
    used.decay = defaults.decay;
    return used;
  }

  EstimatorSizes sizes(const Estimator& estimator, bool causal) const override {
    if (!causal) return {.samples = eva_options(estimator).samples, .window = estimator.window};
    return {.samples = causal_eva_options(estimator).summaries, .window = estimator.window, .features = estimator.features};
  }

  Report attend(const Estimator& estimator, const AttendInputs& in, MutView4 out, const AttendOptions& options,
                std::span<float> record) const override {
    if (options.causal) {
      CausalEvaOptions op = scaled(causal_eva_options(estimator), options);
      op.record = record;
      causal_eva_attention(in.q, in.k, in.v, nullptr, out, op);
    } else {
      EvaOptions op = scaled(eva_options(estimator), options);
      op.record = record;
      eva_attention(in.q, in.k, in.v, out, op);
    }
    return {};
  }

  int64_t record_size(const Estimator& estimator, const AttendInputs& in, const AttendOptions& options) const override {
    if (!options.causal) return eva_record_size(in.q, in.k, in.v, scaled(eva_options(estimator), options));
    return causal_eva_record_size(in.q, in.k, in.v, nullptr, scaled(causal_eva_options(estimator), options));
  }

  void backward(const Estimator& estimator, const AttendInputs& in, View4 out, std::span<const float> record, View4 dout,
                const AttendGradients& wanted, const AttendOptions& options) const override {
    const QkvGradients gradients{wanted.q, wanted.k, wanted.v};
    if (options.causal) {
      causal_eva_attention_backward(in.q, in.k, in.v, nullptr, out, record, dout, gradients,
                                    scaled(causal_eva_options(estimator), options));
    } else {
      eva_attention_backward(in.q, in.k, in.v, out, record, dout, gradients, scaled(eva_options(estimator), options));
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
    causal_eva_attention(in.q, in.k, in.v, &window_state_in(estimator, memory), out,
                         scaled(causal_eva_options(estimator), options));
    return {};
  }

  Report step(const Estimator& estimator, const AttendInputs& in, std::span<Memory* const> sessions, MutView4 out,
              const AttendOptions& options) const override {
    causal_eva_step(without_tokens(in.q), without_tokens(in.k), without_tokens(in.v),
                    parts_of(estimator, sessions, window_state_in), without_tokens(out),
                    scaled(causal_eva_options(estimator), options));
    return {};
  }

  TokenWork work(const Estimator& estimator, bool causal, int64_t length) const override {
    if (!causal) {
      // All chunks, and the window that is rounded up to whole ones.
      const auto quotient_up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
      const EvaOptions options = eva_options(estimator);
      const int64_t chunk = quotient_up(length, options.samples);
      return {.keys = static_cast<double>(quotient_up(length, chunk) + quotient_up(options.window, chunk) * chunk)};
    }
    return windowed_work(estimator.window, length, [&](int64_t windows) { return keys_before(estimator, windows); });
  }
  TokenWork step_work(const Estimator& estimator, int64_t depth) const override {
    return windowed_step_work(estimator.window, depth, [&](int64_t windows) { return keys_before(estimator, windows); });
  }

 private:
  static WindowStateShape shape_of(const Estimator& estimator, const MemorySizes& sizes) {
    return causal_eva_state_shape(sizes.batch, sizes.query_heads, sizes.heads, sizes.dim, sizes.value_dim,
                                  causal_eva_options(estimator));
  }

  // The summaries that are kept after so many windows, and the features once older ones have been folded.
  static double keys_before(const Estimator& estimator, int64_t windows) {
    const int64_t chunks = windows * (estimator.window / estimator.chunk), kept = causal_eva_options(estimator).summaries;
    if (kept == 0) return static_cast<double>(chunks);
    return static_cast<double>(std::min(chunks, kept) + (chunks > kept ? estimator.features : 0));
  }
};

}  // namespace

EvaOptions eva_options(const Estimator& estimator) {
  return {.samples = estimator.samples.value_or(64), .window = estimator.window};
}

CausalEvaOptions causal_eva_options(const Estimator& estimator) {
  return {.window = estimator.window,
          .chunk = estimator.chunk,
          .summaries = estimator.samples.value_or(256),
          .features = estimator.features,
          .decay = estimator.decay,
          .draws = estimator.draws,
          .seed = estimator.seed,
          .layer = estimator.layer,
          .draw = estimator.draw};
}

const EstimatorModule& eva_module() {
  static const EvaModule module;
  return module;
}

}  // namespace raffia
