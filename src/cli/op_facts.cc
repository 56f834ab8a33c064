#include "cli/op_facts.h"

#include <algorithm>

#include "cli/op_options.h"
#include "raffia/state.h"

namespace raffia::cli {
namespace {

double both(Pass pass, double forward, double backward) {
  return (pass != Pass::backward ? forward : 0.0) + (pass != Pass::forward ? backward : 0.0);
}

// Of one token, all heads.
double linear_flops(const BenchShape& shape, OpInput input, Pass pass) {
  const FeatureMap map = make_map(shape, pass == Pass::forward ? input : OpInput::features);
  const auto fold_or_read = static_cast<double>(2 * map.features() * (shape.value_dim + 1));
  const auto projection = static_cast<double>(2 * map.dim() * map.rows());
  return static_cast<double>(shape.heads + shape.kv_heads) * both(pass, fold_or_read + projection, 2.5 * fold_or_read);
}

// Of one token that meets `keys` keys, all heads.
double softmax_flops(const BenchShape& shape, Pass pass, double keys) {
  const auto d = static_cast<double>(shape.head_dim), dv = static_cast<double>(shape.value_dim);
  return static_cast<double>(shape.heads) * keys * both(pass, 2 * (d + dv), 6 * d + 4 * dv);
}

// What a token of window `window` meets of all windows before its own.
double keys_before(const BenchShape& shape, const OpForm& form, int64_t window) {
  const int64_t per_window = shape.window / shape.chunk, chunks = window * per_window;
  const int64_t samples = *samples_of(shape, form);
  if (form.op == Op::lara) return static_cast<double>(2 * std::min(chunks, samples - samples % per_window));
  return static_cast<double>(std::min(chunks, samples) + (chunks > samples ? shape.random_features : 0));
}

double mean_keys_before(const BenchShape& shape, const OpForm& form, int64_t length) {
  const int64_t windows = (length + shape.window - 1) / shape.window;
  double sum = 0;
  for (int64_t window = 0; window < windows; ++window) sum += keys_before(shape, form, window);
  return sum / static_cast<double>(windows);
}

// Chunks, and the window that is rounded up to whole ones.
int64_t eva_keys(const EvaOptions& options, int64_t length) {
  const auto quotient_up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t chunk = quotient_up(length, options.samples);
  return quotient_up(length, chunk) + quotient_up(options.window, chunk) * chunk;
}

// What one token meets on the mean over a sequence.
double keys_met(const BenchShape& shape, const OpForm& form, int64_t length) {
  const auto window = static_cast<double>(shape.window);
  const double visible = static_cast<double>(length) * (form.causal ? 0.5 : 1.0);
  switch (form.op) {
    case Op::softmax:
      return visible;
    case Op::ra:
      return visible * static_cast<double>(*samples_of(shape, form));
    case Op::hybrid:
      return 1.5 * window;
    case Op::lara:
      if (!form.causal) return static_cast<double>(2 * *samples_of(shape, form));
      break;
    case Op::eva:
      if (!form.causal) return static_cast<double>(eva_keys(eva_options(shape), length));
      break;
    case Op::rfa:
    case Op::rfa_gate:
      return 0;
  }
  return 0.5 * window + mean_keys_before(shape, form, length);
}

// Of one token that meets `keys` keys.
double token_flops(const BenchShape& shape, const OpForm& form, Pass pass, double keys) {
  double flops = softmax_flops(shape, pass, keys);
  if (has_map(form.op)) flops += linear_flops(shape, form.input, pass);
  if (form.op == Op::ra) {
    const auto drawing = static_cast<double>(2 * shape.head_dim * shape.heads);
    flops += keys * both(pass, drawing, drawing);
  }
  return flops;
}

int64_t kv_cache_bytes(const BenchShape& shape, int64_t length) {
  return shape.batch * length * shape.kv_heads * (shape.head_dim + shape.value_dim) * static_cast<int64_t>(size_of(shape.dtype));
}

}  // namespace

double attention_flops(const BenchShape& shape, const OpForm& form, Pass pass, int64_t length) {
  return static_cast<double>(shape.batch * length) * token_flops(shape, form, pass, keys_met(shape, form, length));
}

double step_flops(const BenchShape& shape, const OpForm& form, int64_t depth) {
  double keys = keys_met(shape, form, depth);
  if (form.op == Op::softmax) keys = static_cast<double>(depth);
  if (form.op == Op::lara || form.op == Op::eva) {
    keys = 0.5 * static_cast<double>(shape.window) + keys_before(shape, form, depth / shape.window);
  }
  return static_cast<double>(shape.batch) * token_flops(shape, form, Pass::forward, keys);
}

std::optional<int64_t> state_bytes(const BenchShape& shape, const OpForm& form, int64_t length) {
  if (form.op == Op::softmax || form.op == Op::ra) return kv_cache_bytes(shape, length);
  if (const auto window = window_state_shape(shape, form)) return static_cast<int64_t>(WindowState(*window).size_bytes());
  if (!has_map(form.op)) return std::nullopt;
  const State state(make_map(shape, form.input), {.batch = shape.batch, .value_dim = shape.value_dim});
  return static_cast<int64_t>(state.size_bytes());
}

Record describe(const BenchShape& shape, const OpForm& form, int64_t length, int64_t threads) {
  Record record{
      .op = std::string(name_in(kOps, form.op)),
      .input = std::string(name_in(kInputs, form.input)),
      .causal = form.causal,
      .threads = threads,
      .isa = std::string(name_of(active_isa())),
      .batch = shape.batch,
      .heads = shape.heads,
      .kv_heads = shape.kv_heads,
      .length = length,
      .head_dim = shape.head_dim,
      .value_dim = shape.value_dim,
      .samples = samples_of(shape, form),
      .window = window_of(shape, form),
      .dtype = name_of(shape.dtype),
      .state_bytes = state_bytes(shape, form, length),
  };
  if (has_map(form.op)) {
    const FeatureMap map = make_map(shape, OpInput::qk);
    record.map = std::string(name_of(map.kind()));
    record.features = map.features();
  }
  if (form.op == Op::eva && form.causal) record.features = shape.random_features;
  return record;
}

}  // namespace raffia::cli
