// Arguments of attend() as arguments of the operations.
#ifndef RAFFIA_ESTIMATORS_SHARED_CALLS_H_
#define RAFFIA_ESTIMATORS_SHARED_CALLS_H_

#include <fmt/format.h>

#include <span>
#include <vector>

#include "raffia/error.h"
#include "raffia/estimator.h"

namespace raffia::internal {

// The options of an op with the layout and `run` of the call.
template <class Options>
Options placed(Options op, const AttendOptions& options) {
  op.layout = options.layout;
  op.run = options.run;
  return op;
}

// .. and the scale of logits.
template <class Options>
Options scaled(Options op, const AttendOptions& options) {
  op.scale = options.scale;
  return placed(op, options);
}

// The options of a linear op.
inline AttentionOptions linear_options(const AttendOptions& options) {
  AttentionOptions op = placed(AttentionOptions{}, options);
  op.segment = options.segment;
  return op;
}

// Sequences of a call: entries of the batch, or packed ones.
inline int64_t sequences_of(const AttendInputs& inputs, const Layout& layout) {
  return layout.cu_seqlens.empty() ? inputs.q.extent(0) : std::ssize(layout.cu_seqlens) - 1;
}

// [B, 1, H, D] as [B, H, D].
template <class View4Type>
auto without_tokens(const View4Type& x) {
  using Result = std::conditional_t<std::is_same_v<View4Type, MutView4>, MutView3, View3>;
  return Result(x.data(), x.dtype(), {x.extent(0), x.extent(2), x.extent(3)}, {x.stride(0), x.stride(2), x.stride(3)});
}

// Gates [B, 1, G] as [B, G].
inline View2 without_tokens(const View3& x) {
  return {x.data(), x.dtype(), {x.extent(0), x.extent(2)}, {x.stride(0), x.stride(2)}};
}

[[noreturn]] inline void refuse_memory(const Estimator& estimator, const Memory& memory, std::string_view expected) {
  throw InvalidArgument(fmt::format("attend: memory is a {}, expected a {} ({})", memory.kind(), expected, to_string(estimator)));
}

inline State& state_in(const Estimator& estimator, Memory& memory) {
  if (State* state = memory.state()) return *state;
  refuse_memory(estimator, memory, "state");
}
inline WindowState& window_state_in(const Estimator& estimator, Memory& memory) {
  if (WindowState* state = memory.window_state()) return *state;
  refuse_memory(estimator, memory, "window state");
}
inline KeyCache& key_cache_in(const Estimator& estimator, Memory& memory) {
  if (KeyCache* cache = memory.key_cache()) return *cache;
  refuse_memory(estimator, memory, "key cache");
}

// The part that find(estimator, memory) returns, of every session.
template <class Find>
auto parts_of(const Estimator& estimator, std::span<Memory* const> sessions, Find find) {
  std::vector<decltype(&find(estimator, *sessions[0]))> parts;
  parts.reserve(sessions.size());
  for (Memory* memory : sessions) parts.push_back(&find(estimator, *memory));
  return parts;
}

// Bytes of a window state; nullopt if they overflow.
std::optional<int64_t> window_state_bytes(const WindowStateShape& shape);

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_SHARED_CALLS_H_
