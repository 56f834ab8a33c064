// EVA: an exact window, and a virtual key and value per chunk elsewhere.
#include <algorithm>

#include "estimators/eva/options.h"
#include "estimators/registry.h"
#include "estimators/shared/sampled_module.h"

namespace raffia::internal {
namespace {

struct EvaOps {
  static constexpr auto kWhole = eva_options;
  static constexpr auto kCausal = causal_eva_options;
  static constexpr auto kAttend = eva_attention;
  static constexpr auto kRecordSize = eva_record_size;
  static constexpr auto kBackward = eva_attention_backward;
  static constexpr auto kCausalShape = causal_eva_state_shape;
  static void causal_attend(View4 q, View4 k, View4 v, MutView4 out, const CausalEvaOptions& options, std::span<float> record) {
    causal_eva_attention(q, k, v, out, options, record);
  }
  static void causal_attend(View4 q, View4 k, View4 v, WindowState& state, MutView4 out, const CausalEvaOptions& options) {
    causal_eva_attention(q, k, v, state, out, options);
  }
  static int64_t causal_record_size(View4 q, View4 k, View4 v, const CausalEvaOptions& options) {
    return causal_eva_record_size(q, k, v, options);
  }
  static void causal_backward(View4 q, View4 k, View4 v, View4 out, std::span<const float> record, View4 dout,
                              const QkvGradients& gradients, const CausalEvaOptions& options) {
    causal_eva_attention_backward(q, k, v, out, record, dout, gradients, options);
  }
  static void causal_step(View3 q, View3 k, View3 v, std::span<WindowState* const> sessions, MutView3 out,
                          const CausalEvaOptions& options) {
    causal_eva_step(q, k, v, sessions, out, options);
  }

  // All chunks, and the window that is rounded up to whole ones.
  static TokenWork whole_work(const Estimator& estimator, int64_t length) {
    const auto quotient_up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    const EvaOptions options = eva_options(estimator);
    const int64_t chunk = quotient_up(length, options.samples);
    return {.keys = static_cast<double>(quotient_up(length, chunk) + quotient_up(options.window, chunk) * chunk)};
  }

  // The summaries that are kept after so many windows, and the features once older ones have been folded.
  static double keys_before(const Estimator& estimator, int64_t windows) {
    const int64_t chunks = windows * (estimator.window / estimator.chunk), kept = causal_eva_options(estimator).summaries;
    if (kept == 0) return static_cast<double>(chunks);
    return static_cast<double>(std::min(chunks, kept) + (chunks > kept ? estimator.features : 0));
  }
};

class EvaModule : public SampledModule<EvaOps> {
 public:
  EvaModule()
      : SampledModule(EstimatorKind::eva, "eva", "exact window and summaries of chunks",
                      {&keys::kSamplesOrNone, &keys::kWindow, &keys::kChunk, &keys::kFeatures, &keys::kDecay, &keys::kDraws,
                       &keys::kSeed, &keys::kLayer, &keys::kDraw},
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

}  // namespace raffia::internal
