#include "cli/attention_ops.h"

#include <vector>

#include "raffia/attention.h"

namespace raffia::cli {
namespace {

enum DrawnInput : uint32_t { kQuery, kKey, kValue, kGate, kOutGradient };

const Array4& made(std::optional<Array4>& array, const std::function<Array4()>& make) {
  if (!array) array.emplace(make());
  return *array;
}

}  // namespace

Array4 AttentionInputs::make(int64_t heads, int64_t dim) const {
  return {{shape_.batch, length_, heads, dim}, shape_.dtype, shape_.layout};
}

Array4 AttentionInputs::random(int64_t heads, int64_t dim, uint32_t stream, float low, float high) const {
  Array4 array = make(heads, dim);
  array.fill({.seed = shape_.seed, .layer = stream}, low, high);
  return array;
}

Array4 AttentionInputs::features(int64_t heads, uint32_t stream) const {
  const FeatureMap map = make_map(shape_, OpInput::qk);
  const Array4 x = random(heads, shape_.head_dim, stream, -kUnitVariance, kUnitVariance);
  Array4 phi = make(heads, map.features());
  const std::unique_ptr<Executor> one_thread = make_thread_pool(1);
  apply_features(x.view(), map, phi.view(), {.executor = one_thread.get()});
  return phi;
}

const Array4& AttentionInputs::q(OpInput input) {
  if (input == OpInput::features) return made(phi_q_, [this] { return features(shape_.heads, kQuery); });
  return made(q_, [this] { return random(shape_.heads, shape_.head_dim, kQuery, -kUnitVariance, kUnitVariance); });
}

const Array4& AttentionInputs::k(OpInput input) {
  if (input == OpInput::features) return made(phi_k_, [this] { return features(shape_.kv_heads, kKey); });
  return made(k_, [this] { return random(shape_.kv_heads, shape_.head_dim, kKey, -kUnitVariance, kUnitVariance); });
}

const Array4& AttentionInputs::v() {
  return made(v_, [this] { return random(shape_.kv_heads, shape_.value_dim, kValue, -kUnitVariance, kUnitVariance); });
}

// Gates between 0.88 and 0.998: memories of 8 to 400 tokens.
const Array4& AttentionInputs::gate_logits() {
  return made(gate_logits_, [this] { return random(shape_.kv_heads, 1, kGate, 2.0F, 6.0F); });
}

const Array4& AttentionInputs::dout() {
  return made(dout_, [this] { return random(shape_.heads, shape_.value_dim, kOutGradient, -kUnitVariance, kUnitVariance); });
}

const Array4& AttentionInputs::unread_out() {
  return made(out_, [this] { return make(shape_.heads, shape_.value_dim); });
}

AttentionRun::AttentionRun(const AttentionCase& which, const std::shared_ptr<AttentionInputs>& shared, Executor& executor)
    : bench(which), inputs(shared), executor_(executor) {
  const OpInput read = bench.form.op == Op::hybrid ? OpInput::qk : bench.form.input;
  q = inputs->q(read).view();
  k = inputs->k(read).view();
  v = inputs->v().view();
  if (!goes_backward()) {
    out = inputs->unread_out().view();
    return;
  }
  out = array(shape().heads, shape().value_dim);
  dout = inputs->dout().view();
  gradients = {.q = array(shape().heads, q.extent(3)),
               .k = array(shape().kv_heads, k.extent(3)),
               .v = array(shape().kv_heads, shape().value_dim)};
}

MutView4 AttentionRun::array(int64_t heads, int64_t dim) {
  return goes_backward() ? arrays_.emplace_back(inputs->make(heads, dim)).view() : MutView4{};
}

std::span<float> AttentionRun::floats(int64_t count) {
  return goes_backward() ? std::span<float>(floats_.emplace_back(static_cast<size_t>(count))) : std::span<float>{};
}

Passes softmax_passes(AttentionRun& run) {
  const Extents<3> rows{run.shape().batch, run.inputs->length(), run.shape().heads};
  SoftmaxOptions options = run.place(SoftmaxOptions{.causal = run.bench.form.causal});
  if (run.goes_backward()) options.logsumexp = {run.floats(rows[0] * rows[1] * rows[2]).data(), rows};
  const SoftmaxGradients gradients{.q = run.gradients.q, .k = run.gradients.k, .v = run.gradients.v};
  return {.forward = [&run, options] { softmax_attention(run.q, run.k, run.v, run.out, options); },
          .backward =
              [&run, options, gradients] {
                softmax_attention_backward(run.q, run.k, run.v, run.out, options.logsumexp, run.dout, gradients, options);
              }};
}

std::function<void()> prepare_attention(const AttentionCase& bench, const std::shared_ptr<AttentionInputs>& inputs,
                                        Executor& executor) {
  const auto run = std::make_shared<AttentionRun>(bench, inputs, executor);
  const Op op = bench.form.op;
  const Passes passes = op == Op::softmax  ? softmax_passes(*run)
                        : op == Op::hybrid ? hybrid_passes(*run)
                        : has_map(op)      ? linear_passes(*run)
                                           : sampled_passes(*run);
  if (run->goes_backward()) passes.forward();  // leaves what the backward pass reads
  return [run, passes] {
    if (run->bench.pass != Pass::backward) passes.forward();
    if (run->goes_backward()) passes.backward();
  };
}

}  // namespace raffia::cli
