#include "estimators/estimator_options.h"

namespace raffia {

namespace {

// Whether evaluation uses the means of the proposals as samples of LARA. It does if `mean` is not set and each sample has its own
// mean: several samples at one mean are one sample, and all standard proposals have the mean 0.
bool takes_means(const Estimator& estimator) {
  const bool has_means =
      estimator.kind == EstimatorKind::lara && estimator.proposals != Proposals::standard && estimator.per_proposal == 1;
  return estimator.mean.value_or(has_means);
}

}  // namespace

SoftmaxOptions softmax_options(const Estimator& estimator, bool causal) {
  const bool is_local = estimator.kind == EstimatorKind::window;
  return {.causal = causal, .window = is_local ? estimator.window : 0, .before = is_local ? estimator.before : 0};
}

LaraOptions lara_options(const Estimator& estimator) {
  const bool is_rfa = estimator.kind == EstimatorKind::rfa;
  return {.samples = estimator.samples.value_or(64),
          .samples_per_proposal = estimator.per_proposal,
          .proposals = is_rfa ? Proposals::standard : estimator.proposals,
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

RaOptions ra_options(const Estimator& estimator, bool causal) {
  return {.draws = estimator.samples.value_or(1),
          .causal = causal,
          .seed = estimator.seed,
          .layer = estimator.layer,
          .draw = estimator.draw};
}

HybridOptions hybrid_options(const Estimator& estimator) { return {.window = estimator.window}; }

}  // namespace raffia
