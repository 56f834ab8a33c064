// Causal LARA: options, and the operations over whole sequences.
#include "estimators/lara/causal.h"

#include "core/check.h"
#include "core/window_layout.h"
#include "estimators/shared/windowed_op.h"

namespace raffia::internal {
namespace {

WindowStateShape shape_of(int64_t batch, int64_t query_heads, int64_t heads, int64_t dim, int64_t value_dim,
                          const CausalLaraOptions& options) {
  const int64_t windows = proposing_windows(options);
  return {
      .kind = WindowKind::lara,
      .batch = batch,
      .query_heads = query_heads,
      .heads = heads,
      .dim = dim,
      .value_dim = value_dim,
      .window = options.window,
      .summaries = windows * samples_of_window(options),
      .proposals = windows * (options.window / options.chunk),
      .chunk = options.chunk,
      .recipe = recipe_of({options.seed, options.layer, options.draw, static_cast<uint64_t>(options.draws),
                           bits_of(scale_or_default(options.scale, dim)), static_cast<uint64_t>(options.samples_per_proposal)})};
}

}  // namespace

void require_options(const char* function, const CausalLaraOptions& options) {
  require_windows(function, options.window, options.chunk);
  require(options.samples <= kMaxOfAWindow, "{}: samples is {}, expected at most {}", function, options.samples, kMaxOfAWindow);
  require(options.samples_per_proposal >= 1, "{}: samples_per_proposal is {}, expected at least 1", function,
          options.samples_per_proposal);
  require(options.samples / (options.window / options.chunk) >= options.samples_per_proposal,
          "{}: samples is {}, expected at least window / chunk * samples_per_proposal, {} * {} (those of one window)", function,
          options.samples, options.window / options.chunk, options.samples_per_proposal);
}

WindowStateShape shape_of(const WindowedCall& call, const CausalLaraOptions& options) {
  return shape_of(1, call.heads, call.groups, call.dim, call.value_dim, options);
}

DrawnRows noise_of(const WindowedCall& call, const CausalLaraOptions& options, int64_t count) {
  return DrawnRows(call.function, {options.seed, options.layer, options.draw, options.draws, count, call.groups, call.dim});
}

namespace {

struct LaraForm {
  using Options = CausalLaraOptions;
  using Sequence = LaraSequence;
  static constexpr const char* kAttention = "causal_lara_attention";
  static constexpr const char* kRecordSize = "causal_lara_record_size";
  static constexpr const char* kBackward = "causal_lara_attention_backward";
  static constexpr const char* kRefusal = "without streaming, expected none (new samples read all keys)";

  static bool carries(const Options& options) { return options.streaming; }
  // A state keeps all rows that later tokens may need.
  static DrawnRows rows_of(const WindowedCall& call, const Options& options, bool has_state) {
    if (has_state) return noise_of(call, options, all_samples(options));
    int64_t windows = 0;
    for (const internal::Sequence& s : call.sequences) windows = std::max(windows, s.keys / options.window);
    return noise_of(call, options, std::min(windows, proposing_windows(options)) * samples_of_window(options));
  }
  static bool reads_rows(const Options&, const SequenceWindows& windows) { return windows.complete() > 0; }
};
using Op = WindowedOp<LaraForm>;

}  // namespace
}  // namespace raffia::internal

namespace raffia {

using namespace internal;

WindowStateShape causal_lara_state_shape(int64_t batch, int64_t query_heads, int64_t heads, int64_t dim, int64_t value_dim,
                                         const CausalLaraOptions& options) {
  constexpr const char* kName = "causal_lara_state_shape";
  require_options(kName, options);
  require(options.streaming, "{}: streaming is off, expected on (no state can be carried otherwise)", kName);
  return shape_of(batch, query_heads, heads, dim, value_dim, options);
}

void causal_lara_attention(View4 q, View4 k, View4 v, WindowState& state, MutView4 out, const CausalLaraOptions& options,
                           std::span<float> record) {
  Op::attend(q, k, v, &state, out, options, record);
}

void causal_lara_attention(View4 q, View4 k, View4 v, MutView4 out, const CausalLaraOptions& options, std::span<float> record) {
  Op::attend(q, k, v, nullptr, out, options, record);
}

int64_t causal_lara_record_size(View4 q, View4 k, View4 v, const WindowState& initial, const CausalLaraOptions& options) {
  return Op::record_size(q, k, v, &initial, options);
}

int64_t causal_lara_record_size(View4 q, View4 k, View4 v, const CausalLaraOptions& options) {
  return Op::record_size(q, k, v, nullptr, options);
}

void causal_lara_attention_backward(View4 q, View4 k, View4 v, const WindowState& initial, View4 out,
                                    std::span<const float> record, View4 dout, const QkvGradients& gradients,
                                    const CausalLaraOptions& options) {
  Op::backward(q, k, v, &initial, out, record, dout, gradients, options);
}

void causal_lara_attention_backward(View4 q, View4 k, View4 v, View4 out, std::span<const float> record, View4 dout,
                                    const QkvGradients& gradients, const CausalLaraOptions& options) {
  Op::backward(q, k, v, nullptr, out, record, dout, gradients, options);
}

}  // namespace raffia
