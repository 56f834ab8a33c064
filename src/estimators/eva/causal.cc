// Causal EVA: options, and the operations over whole sequences.
#include "estimators/eva/causal.h"

#include "core/check.h"
#include "core/window_layout.h"
#include "estimators/shared/windowed_op.h"

namespace raffia::internal {
namespace {

WindowStateShape shape_of(int64_t batch, int64_t query_heads, int64_t heads, int64_t dim, int64_t value_dim,
                          const CausalEvaOptions& options) {
  return {.kind = WindowKind::eva,
          .batch = batch,
          .query_heads = query_heads,
          .heads = heads,
          .dim = dim,
          .value_dim = value_dim,
          .window = options.window,
          .summaries = options.summaries,
          .features = options.features,
          .chunk = options.chunk,
          .recipe = recipe_of({options.seed, options.layer, options.draw, static_cast<uint64_t>(options.draws),
                               bits_of(scale_or_default(options.scale, dim)), bits_of(options.decay)})};
}
}  // namespace

void require_options(const char* function, const CausalEvaOptions& options) {
  require_windows(function, options.window, options.chunk);
  require(options.summaries >= 0 && options.summaries % (options.window / options.chunk) == 0,
          "{}: summaries is {}, expected a multiple of {} (window / chunk)", function, options.summaries,
          options.window / options.chunk);
  require(options.summaries <= kMaxOfAWindow, "{}: summaries is {}, expected at most {}", function, options.summaries,
          kMaxOfAWindow);
  require(options.features >= 1 && options.features <= kMaxOfAWindow, "{}: features is {}, expected 1 to {}", function,
          options.features, kMaxOfAWindow);
  require(options.decay > 0 && options.decay <= 1, "{}: decay is {}, expected above 0 and at most 1", function, options.decay);
}

WindowStateShape shape_of(const WindowedCall& call, const CausalEvaOptions& options) {
  return shape_of(1, call.heads, call.groups, call.dim, call.value_dim, options);
}

DrawnRows features_of(const WindowedCall& call, const CausalEvaOptions& options) {
  return DrawnRows(call.function,
                   {options.seed, options.layer, options.draw, options.draws, options.features, call.groups, call.dim});
}

namespace {

struct EvaForm {
  using Options = CausalEvaOptions;
  using Sequence = EvaSequence;
  static constexpr const char* kAttention = "causal_eva_attention";
  static constexpr const char* kRecordSize = "causal_eva_record_size";
  static constexpr const char* kBackward = "causal_eva_attention_backward";
  static constexpr const char* kRefusal = "with summaries = 0, expected none (such a state would grow without bound)";

  static bool carries(const Options& options) { return options.summaries > 0; }
  static DrawnRows rows_of(const WindowedCall& call, const Options& options, bool) { return features_of(call, options); }
  // Whether windows leave the summaries.
  static bool reads_rows(const Options& options, const SequenceWindows& windows) {
    return options.summaries > 0 && windows.complete() > options.summaries / (options.window / options.chunk);
  }
};
using Op = WindowedOp<EvaForm>;

}  // namespace
}  // namespace raffia::internal

namespace raffia {

using namespace internal;

WindowStateShape causal_eva_state_shape(int64_t batch, int64_t query_heads, int64_t heads, int64_t dim, int64_t value_dim,
                                        const CausalEvaOptions& options) {
  constexpr const char* kName = "causal_eva_state_shape";
  require_options(kName, options);
  require(options.summaries > 0, "{}: summaries is 0, expected at least {} (such a state would grow without bound)", kName,
          options.window / options.chunk);
  return shape_of(batch, query_heads, heads, dim, value_dim, options);
}

void causal_eva_attention(View4 q, View4 k, View4 v, WindowState& state, MutView4 out, const CausalEvaOptions& options,
                          std::span<float> record) {
  Op::attend(q, k, v, &state, out, options, record);
}

void causal_eva_attention(View4 q, View4 k, View4 v, MutView4 out, const CausalEvaOptions& options, std::span<float> record) {
  Op::attend(q, k, v, nullptr, out, options, record);
}

int64_t causal_eva_record_size(View4 q, View4 k, View4 v, const WindowState& initial, const CausalEvaOptions& options) {
  return Op::record_size(q, k, v, &initial, options);
}

int64_t causal_eva_record_size(View4 q, View4 k, View4 v, const CausalEvaOptions& options) {
  return Op::record_size(q, k, v, nullptr, options);
}

void causal_eva_attention_backward(View4 q, View4 k, View4 v, const WindowState& initial, View4 out,
                                   std::span<const float> record, View4 dout, const QkvGradients& gradients,
                                   const CausalEvaOptions& options) {
  Op::backward(q, k, v, &initial, out, record, dout, gradients, options);
}

void causal_eva_attention_backward(View4 q, View4 k, View4 v, View4 out, std::span<const float> record, View4 dout,
                                   const QkvGradients& gradients, const CausalEvaOptions& options) {
  Op::backward(q, k, v, nullptr, out, record, dout, gradients, options);
}

}  // namespace raffia
