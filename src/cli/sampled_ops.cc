// Ops without a feature map whose keys are samples or summaries: lara, ra, eva. The causal forms start from an empty state.
#include "cli/attention_ops.h"
#include "raffia/eva.h"
#include "raffia/lara.h"

namespace raffia::cli {
namespace {

Passes lara_passes(AttentionRun& run) {
  LaraOptions options = run.place(lara_options(run.shape()));
  // As the default of models, mean=auto: evaluation reads means, training draws.
  options.mean = run.bench.pass == Pass::forward && !run.shape().draws;
  options.record = run.floats(lara_record_size(run.q, run.k, run.v, options));
  return {.forward = [&run, options] { lara_attention(run.q, run.k, run.v, run.out, options); },
          .backward =
              [&run, options] {
                lara_attention_backward(run.q, run.k, run.v, run.out, options.record, run.dout, run.gradients, options);
              }};
}

Passes causal_lara_passes(AttentionRun& run) {
  CausalLaraOptions options = run.place(causal_lara_options(run.shape()));
  options.record = run.floats(causal_lara_record_size(run.q, run.k, run.v, nullptr, options));
  return {.forward = [&run, options] { causal_lara_attention(run.q, run.k, run.v, nullptr, run.out, options); },
          .backward =
              [&run, options] {
                causal_lara_attention_backward(run.q, run.k, run.v, nullptr, run.out, options.record, run.dout, run.gradients,
                                               options);
              }};
}

Passes ra_passes(AttentionRun& run) {
  const RaOptions options = run.place(ra_options(run.shape(), run.bench.form.causal));
  return {.forward = [&run, options] { ra_attention(run.q, run.k, run.v, run.out, options); },
          .backward = [&run, options] { ra_attention_backward(run.q, run.k, run.v, run.dout, run.gradients, options); }};
}

Passes eva_passes(AttentionRun& run) {
  EvaOptions options = run.place(eva_options(run.shape()));
  options.record = run.floats(eva_record_size(run.q, run.k, run.v, options));
  return {.forward = [&run, options] { eva_attention(run.q, run.k, run.v, run.out, options); },
          .backward =
              [&run, options] {
                eva_attention_backward(run.q, run.k, run.v, run.out, options.record, run.dout, run.gradients, options);
              }};
}

Passes causal_eva_passes(AttentionRun& run) {
  CausalEvaOptions options = run.place(causal_eva_options(run.shape()));
  options.record = run.floats(causal_eva_record_size(run.q, run.k, run.v, nullptr, options));
  return {.forward = [&run, options] { causal_eva_attention(run.q, run.k, run.v, nullptr, run.out, options); },
          .backward =
              [&run, options] {
                causal_eva_attention_backward(run.q, run.k, run.v, nullptr, run.out, options.record, run.dout, run.gradients,
                                              options);
              }};
}

}  // namespace

Passes sampled_passes(AttentionRun& run) {
  const auto [op, input, causal] = run.bench.form;
  if (op == Op::ra) return ra_passes(run);
  if (op == Op::lara) return causal ? causal_lara_passes(run) : lara_passes(run);
  return causal ? causal_eva_passes(run) : eva_passes(run);
}

}  // namespace raffia::cli
