// LARA: samples that all queries share; causal with exact windows.
#include <algorithm>

#include "estimators/lara/options.h"
#include "estimators/registry.h"
#include "estimators/shared/calls.h"
#include "estimators/shared/windowed_work.h"

namespace raffia {
namespace {

// Whether evaluation uses the means of the proposals as samples. It does if `mean` is not set and each sample has its own mean:
// several samples at one mean are one sample, and all standard proposals have the mean 0.
bool takes_means(const Estimator& estimator) {
  return estimator.mean.value_or(estimator.proposals != Proposals::standard && estimator.per_proposal == 1);
}

class LaraModule : public EstimatorModule {
 public:
  LaraModule()
      : EstimatorModule(EstimatorKind::lara, "lara", "importance sampling with proposals from the tokens",
                        {&keys::samples, &keys::window, &keys::chunk, &keys::per_proposal, &keys::proposals, &keys::weights,
                         &keys::strength, &keys::mean, &keys::streaming, &keys::draws, &keys::seed, &keys::layer, &keys::draw},
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

  Report attend(const Estimator& estimator, const AttendInputs& in, MutView4 out, const AttendOptions& options,
                std::span<float> record) const override {
    if (options.causal) {
      CausalLaraOptions op = scaled(causal_lara_options(estimator), options);
      op.record = record;
      causal_lara_attention(in.q, in.k, in.v, nullptr, out, op);
    } else {
      LaraOptions op = scaled(lara_options(estimator), options);
      op.record = record;
      lara_attention(in.q, in.k, in.v, out, op);
    }
    return {};
  }

  int64_t record_size(const Estimator& estimator, const AttendInputs& in, const AttendOptions& options) const override {
    if (!options.causal) return lara_record_size(in.q, in.k, in.v, scaled(lara_options(estimator), options));
    return causal_lara_record_size(in.q, in.k, in.v, nullptr, scaled(causal_lara_options(estimator), options));
  }

  void backward(const Estimator& estimator, const AttendInputs& in, View4 out, std::span<const float> record, View4 dout,
                const AttendGradients& wanted, const AttendOptions& options) const override {
    const QkvGradients gradients{wanted.q, wanted.k, wanted.v};
    if (options.causal) {
      causal_lara_attention_backward(in.q, in.k, in.v, nullptr, out, record, dout, gradients,
                                     scaled(causal_lara_options(estimator), options));
    } else {
      lara_attention_backward(in.q, in.k, in.v, out, record, dout, gradients, scaled(lara_options(estimator), options));
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
    causal_lara_attention(in.q, in.k, in.v, &window_state_in(estimator, memory), out,
                          scaled(causal_lara_options(estimator), options));
    return {};
  }

  Report step(const Estimator& estimator, const AttendInputs& in, std::span<Memory* const> sessions, MutView4 out,
              const AttendOptions& options) const override {
    causal_lara_step(without_tokens(in.q), without_tokens(in.k), without_tokens(in.v),
                     parts_of(estimator, sessions, window_state_in), without_tokens(out),
                     scaled(causal_lara_options(estimator), options));
    return {};
  }

  // A key meets the samples, then a query does.
  TokenWork work(const Estimator& estimator, bool causal, int64_t length) const override {
    if (!causal) return {.keys = static_cast<double>(2 * lara_options(estimator).samples)};
    return windowed_work(estimator.window, length, [&](int64_t windows) { return keys_before(estimator, windows); });
  }
  TokenWork step_work(const Estimator& estimator, int64_t depth) const override {
    return windowed_step_work(estimator.window, depth, [&](int64_t windows) { return keys_before(estimator, windows); });
  }

 private:
  static WindowStateShape shape_of(const Estimator& estimator, const MemorySizes& sizes) {
    return causal_lara_state_shape(sizes.batch, sizes.query_heads, sizes.heads, sizes.dim, sizes.value_dim,
                                   causal_lara_options(estimator));
  }

  // The samples that there are after so many windows.
  static double keys_before(const Estimator& estimator, int64_t windows) {
    const int64_t per_window = estimator.window / estimator.chunk, samples = causal_lara_options(estimator).samples;
    return static_cast<double>(2 * std::min(windows * per_window, samples - samples % per_window));
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

}  // namespace raffia
