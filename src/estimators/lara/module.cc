// LARA: samples that all queries share; causal with exact windows.
#include <algorithm>

#include "estimators/lara/options.h"
#include "estimators/registry.h"
#include "estimators/shared/sampled_module.h"

namespace raffia::internal {
namespace {

// Whether evaluation uses the means of the proposals as samples. It does if `mean` is not set and each sample has its own mean:
// several samples at one mean are one sample, and all standard proposals have the mean 0.
bool takes_means(const Estimator& estimator) {
  return estimator.mean.value_or(estimator.proposals != Proposals::standard && estimator.per_proposal == 1);
}

struct LaraOps {
  static constexpr auto kWhole = lara_options;
  static constexpr auto kCausal = causal_lara_options;
  static constexpr auto kAttend = lara_attention;
  static constexpr auto kRecordSize = lara_record_size;
  static constexpr auto kBackward = lara_attention_backward;
  static constexpr auto kCausalShape = causal_lara_state_shape;
  static void causal_attend(View4 q, View4 k, View4 v, MutView4 out, const CausalLaraOptions& options, std::span<float> record) {
    causal_lara_attention(q, k, v, out, options, record);
  }
  static void causal_attend(View4 q, View4 k, View4 v, WindowState& state, MutView4 out, const CausalLaraOptions& options) {
    causal_lara_attention(q, k, v, state, out, options);
  }
  static int64_t causal_record_size(View4 q, View4 k, View4 v, const CausalLaraOptions& options) {
    return causal_lara_record_size(q, k, v, options);
  }
  static void causal_backward(View4 q, View4 k, View4 v, View4 out, std::span<const float> record, View4 dout,
                              const QkvGradients& gradients, const CausalLaraOptions& options) {
    causal_lara_attention_backward(q, k, v, out, record, dout, gradients, options);
  }
  static void causal_step(View3 q, View3 k, View3 v, std::span<WindowState* const> sessions, MutView3 out,
                          const CausalLaraOptions& options) {
    causal_lara_step(q, k, v, sessions, out, options);
  }

  // A key meets the samples, then a query does.
  static TokenWork whole_work(const Estimator& estimator, int64_t) {
    return {.keys = static_cast<double>(2 * lara_options(estimator).samples)};
  }

  // The samples that there are after so many windows.
  static double keys_before(const Estimator& estimator, int64_t windows) {
    const int64_t per_window = estimator.window / estimator.chunk, samples = causal_lara_options(estimator).samples;
    return static_cast<double>(2 * std::min(windows * per_window, samples - samples % per_window));
  }
};

class LaraModule : public SampledModule<LaraOps> {
 public:
  LaraModule()
      : SampledModule(
            EstimatorKind::lara, "lara", "importance sampling with proposals from the tokens",
            {&keys::kSamples, &keys::kWindow, &keys::kChunk, &keys::kPerProposal, &keys::kProposals, &keys::kWeights,
             &keys::kStrength, &keys::kMean, &keys::kStreaming, &keys::kDraws, &keys::kSeed, &keys::kLayer, &keys::kDraw},
            true) {}

  EstimatorTraits traits(const Estimator& estimator) const override {
    return {.causal = estimator.proposals == Proposals::chunk_mean && estimator.weights == SampleWeights::balance &&
                      estimator.mean != true,
            .cross = true,
            .is_random = estimator.mean != true,
            .has_samples = true,
            .has_memory = estimator.streaming,
            .constant_memory = estimator.streaming,
            .fades = estimator.streaming};
  }

  Estimator used(const Estimator& estimator, bool causal) const override {
    const Estimator defaults;
    Estimator used = estimator;
    if (!causal) {
      used.window = defaults.window;
      used.chunk = defaults.chunk;
      used.streaming = defaults.streaming;
    }
    if (used.weights != SampleWeights::mis_opt) used.strength = defaults.strength;
    return used;
  }

  EstimatorSizes sizes(const Estimator& estimator, bool causal) const override {
    if (!causal) return {.samples = lara_options(estimator).samples};
    return {.samples = causal_lara_options(estimator).samples, .window = estimator.window};
  }
};

}  // namespace

LaraOptions lara_options(const Estimator& estimator) {
  return {.samples = estimator.samples.value_or(64),
          .samples_per_proposal = estimator.per_proposal,
          .proposals = estimator.proposals,
          .weights = estimator.weights,
          .mis_opt_strength = estimator.strength,
          .mean = takes_means(estimator),
          .draws = estimator.draws,
          .seed = estimator.seed,
          .layer = estimator.layer,
          .draw = estimator.draw};
}

CausalLaraOptions causal_lara_options(const Estimator& estimator) {
  return {.window = estimator.window,
          .chunk = estimator.chunk,
          .samples = estimator.samples.value_or(128),
          .samples_per_proposal = estimator.per_proposal,
          .streaming = estimator.streaming,
          .draws = estimator.draws,
          .seed = estimator.seed,
          .layer = estimator.layer,
          .draw = estimator.draw};
}

const EstimatorModule& lara_module() {
  static const LaraModule module;
  return module;
}

}  // namespace raffia::internal
