#include "cli/step_ops.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cli/op_options.h"
#include "raffia/attention.h"
#include "raffia/eva.h"
#include "raffia/hybrid.h"
#include "raffia/lara.h"

namespace raffia::cli {
namespace {

// The token of every session. q and k are features where these are all that the op reads.
struct Token {
  Array4 q, k, v, gate_logits, out;

  Token(const BenchShape& shape, OpInput input, int64_t dim)
      : q(random_array(shape, 1, shape.heads, dim, StepArray::query, input)),
        k(random_array(shape, 1, shape.kv_heads, dim, StepArray::key, input)),
        v(random_array(shape, 1, shape.kv_heads, shape.value_dim, StepArray::value)),
        gate_logits(random_array(shape, 1, shape.kv_heads, 1, StepArray::gate)),
        out(random_array(shape, 1, shape.heads, shape.value_dim, StepArray::out)) {}
};

struct LinearStep {
  FeatureMap map;
  State state;
  Token token;
  AttentionOptions options;

  LinearStep(const BenchShape& shape, OpInput input, int threads, Executor& executor)
      : map(make_map(shape, input)),
        state(map, {.batch = shape.batch, .value_dim = shape.value_dim}),
        token(shape, input, map.dim()),
        options(placed(AttentionOptions{}, threads, executor)) {}
};

std::function<void()> prepare_linear(const BenchShape& shape, const OpForm& form, int threads, Executor& executor) {
  const auto op = std::make_shared<LinearStep>(shape, form.input, threads, executor);
  const View3 q = op->token.q.without_tokens(), k = op->token.k.without_tokens(), v = op->token.v.without_tokens();
  const MutView3 out = op->token.out.without_tokens();
  if (form.op == Op::rfa) return [op, q, k, v, out] { causal_step(q, k, v, op->map, op->state, out, op->options); };
  const MutView3 gate = op->token.gate_logits.without_dim();  // [B, 1, G]
  const View2 gate_logits(gate.data(), gate.dtype(), {gate.extent(0), gate.extent(2)}, {gate.stride(0), gate.stride(2)});
  return [op, q, k, v, gate_logits, out] { gated_step(q, k, v, gate_logits, op->map, op->state, out, op->options); };
}

struct WindowedStep {
  Token token;
  WindowState state;
  std::function<void()> step;

  WindowedStep(const BenchShape& shape, const OpForm& form)
      : token(shape, OpInput::qk, shape.head_dim), state(*window_state_shape(shape, form)) {}

  void count_as(int64_t tokens) {
    for (int64_t b = 0; b < state.shape().batch; ++b) state.tokens(b) = tokens;
  }
};

std::function<void()> hybrid_step_of(WindowedStep& op, const BenchShape& shape, OpInput input, const HybridOptions& options) {
  struct Far {
    FeatureMap map;
    std::vector<float> log_scale;
    std::optional<Array4> q, k;
  };
  const auto far = std::make_shared<Far>(
      Far{.map = make_map(shape, input), .log_scale = std::vector<float>(static_cast<size_t>(shape.heads), kHybridLogScale)});
  HybridInputs inputs{.q = op.token.q.view(),
                      .k = op.token.k.view(),
                      .v = op.token.v.view(),
                      .gate_logits = op.token.gate_logits.without_dim(),
                      .log_scale = {far->log_scale.data(), {shape.heads}}};
  if (input == OpInput::features) {
    const int64_t dim = far->map.dim();
    inputs.q_far = far->q.emplace(random_array(shape, 1, shape.heads, dim, StepArray::far_query, input)).view();
    inputs.k_far = far->k.emplace(random_array(shape, 1, shape.kv_heads, dim, StepArray::far_key, input)).view();
  }
  return [&op, far, inputs, options] { hybrid_step(inputs, far->map, op.state, op.token.out.view(), options); };
}

std::function<void()> windowed_step_of(WindowedStep& op, const BenchShape& shape, const OpForm& form, int threads,
                                       Executor& executor) {
  if (form.op == Op::hybrid) {
    return hybrid_step_of(op, shape, form.input, placed(hybrid_options(shape), threads, executor));
  }
  const View3 q = op.token.q.without_tokens(), k = op.token.k.without_tokens(), v = op.token.v.without_tokens();
  const MutView3 out = op.token.out.without_tokens();
  if (form.op == Op::lara) {
    return [=, &op, options = placed(causal_lara_options(shape), threads, executor)] {
      causal_lara_step(q, k, v, op.state, out, options);
    };
  }
  return [=, &op, options = placed(causal_eva_options(shape), threads, executor)] {
    causal_eva_step(q, k, v, op.state, out, options);
  };
}

// After so many tokens, more of them fill nothing that was empty: samples or summaries, and two windows to fold some and begin
// one.
int64_t filling_tokens(const BenchShape& shape, const OpForm& form) {
  return samples_of(shape, form).value_or(0) * shape.chunk + 3 * shape.window;
}

std::function<void()> prepare_windowed(const BenchShape& shape, const OpForm& form, int64_t depth, int threads,
                                       Executor& executor) {
  const auto op = std::make_shared<WindowedStep>(shape, form);
  op->step = windowed_step_of(*op, shape, form, threads, executor);
  const int64_t filling = filling_tokens(shape, form), window = shape.window;
  const int64_t steps = depth <= filling ? depth : filling + (depth - filling) % window;
  for (int64_t i = 0; i < steps; ++i) op->step();
  op->count_as(depth);
  // What follows goes through one window after the other, and back to the depth after each.
  return [op, depth, window, taken = int64_t{0}]() mutable {
    op->step();
    if (++taken % window == 0) op->count_as(depth);
  };
}

}  // namespace

Array4 random_array(const BenchShape& shape, int64_t length, int64_t heads, int64_t dim, StepArray which, OpInput input) {
  Array4 array({shape.batch, length, heads, dim}, shape.dtype, shape.layout);
  array.fill({.seed = shape.seed, .layer = static_cast<uint32_t>(which)}, input == OpInput::features ? 0.0F : -kUnitVariance,
             kUnitVariance);
  return array;
}

std::function<void()> prepare_step(const BenchShape& shape, const OpForm& form, int64_t depth, int threads, Executor& executor) {
  return window_state_shape(shape, form) ? prepare_windowed(shape, form, depth, threads, executor)
                                         : prepare_linear(shape, form, threads, executor);
}

}  // namespace raffia::cli
