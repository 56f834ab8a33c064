// Common to the causal windowed ops: checks, the division of a sequence into windows, and owned arrays.
//
// Positions count from the first token that a state has seen; position p is in window p / W. If a call begins inside a window,
// the tokens before it are in the state: that window is copied into memory of the op (the first stretch). All windows after it
// are read in the caller's memory (the second stretch).
#ifndef RAFFIA_ESTIMATORS_SHARED_WINDOWS_H_
#define RAFFIA_ESTIMATORS_SHARED_WINDOWS_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/scratch.h"
#include "estimators/shared/chunk_means.h"
#include "estimators/shared/qkv.h"
#include "estimators/shared/sequences.h"
#include "estimators/shared/softmax_part.h"
#include "raffia/lara.h"
#include "raffia/window_state.h"

namespace raffia::internal {

// An array owned by an op: row-major fp32.
template <size_t Rank>
class Array {
 public:
  Array() : Array(Extents<Rank>{}) {}
  explicit Array(const Extents<Rank>& shape)
      : memory_(1, static_cast<size_t>(View<Rank>(static_cast<const float*>(nullptr), shape).size())),
        view_(memory_.of(0), shape) {}
  Array(const Extents<Rank>& shape, float value) : Array(shape) { std::fill_n(data(), view_.size(), value); }

  MutView<Rank> view() const { return view_; }
  float* data() const { return memory_.of(0); }
  int64_t size() const { return view_.size(); }
  // Where entry `i` of the first axis begins.
  float* entry(int64_t i) const { return data() + i * view_.stride(0); }

 private:
  Scratch memory_;
  MutView<Rank> view_;
};

// [1, T, ..] as windows [ceil(T / window), window, ..]; the last one may extend past the end of the view, where it is not read.
template <class AnyView>
AnyView windowed(const AnyView& view, int64_t window) {
  if (view.absent()) return view;
  auto shape = view.shape();
  auto strides = view.strides();
  shape[0] = (shape[1] + window - 1) / window;
  shape[1] = window;
  strides[0] = window * strides[1];
  return AnyView(view.data(), view.dtype(), shape, strides);
}

// [1, ..] as [count, ..]: `count` times the same.
template <class AnyView>
AnyView repeated(const AnyView& view, int64_t count) {
  if (view.absent()) return view;
  auto shape = view.shape();
  auto strides = view.strides();
  shape[0] = count;
  strides[0] = 0;
  return AnyView(view.data(), view.dtype(), shape, strides);
}

// Entries of the first axis from `begin` on.
template <class AnyView>
AnyView entries_from(const AnyView& view, int64_t begin) {
  return view.absent() ? view : view.slice(0, begin, view.extent(0) - begin);
}

// Heads `member`, `member` + group, .. of [B, T, H, ..]: one query head of every key head, where each query head has its own
// values while a group shares keys.
template <class AnyView>
AnyView member_of(const AnyView& view, int64_t member, int64_t group) {
  if (view.absent()) return view;
  const AnyView first = view.slice(2, member, view.extent(2) / group);
  auto strides = view.strides();
  strides[2] *= group;
  return AnyView(first.data(), view.dtype(), first.shape(), strides);
}

// Where the state of a session is, in a step of decoding.
struct StepEntry {
  WindowState* state;
  int64_t b;
};

// The checked arguments of a windowed op. Options are checked before the rest.
struct WindowedCall : Qkv {
  template <class Options>
  WindowedCall(const char* name, View4 queries, View4 keys, View4 values, const Options& options)
      : Qkv(name, queries, keys, values, options.layout, options.scale, options.run),
        q(queries),
        k(keys),
        v(values),
        length(query_length),
        group(heads / groups),
        window(options.window),
        chunk(options.chunk),
        run(options.run),
        padded(!options.layout.lengths.empty()) {
    check();
  }

  // `expected` for one entry; there is one for every sequence.
  void require_state(const WindowState* state, const char* argument, WindowStateShape expected) const;
  // logsumexp [B, T, H]
  int64_t record_size() const { return batch * length * heads; }
  void check_step(const std::vector<StepEntry>& entries, MutView3 out, WindowStateShape expected) const;
  Workers workers() const { return Workers(run); }
  int64_t chunks() const { return window / chunk; }  // of a window
  // The same call for one key head and its query heads, on one thread.
  WindowedCall of_group(int64_t g) const;

  View4 q, k, v;
  int64_t length, group;
  int64_t window, chunk;
  RunOptions run;
  bool padded;                  // lengths are given
  int64_t first_group = 0;      // the first key head of this call among those ..
  int64_t all_groups = groups;  // .. of the whole call, whose heads a state holds

 private:
  void check() const;
};

// Heads of a call in a part of a state, which has rows [.., heads of the whole call, width].
enum class HeadsOf : uint8_t { queries, keys };
struct HeadRows {
  HeadRows(const WindowedCall& call, HeadsOf heads, int64_t width)
      : columns((heads == HeadsOf::queries ? call.heads : call.groups) * width),
        begin(call.first_group * columns / call.groups),
        stride(call.all_groups * columns / call.groups) {}

  // `count` rows of the part from `row` on, to or from [count, columns].
  void load(const WindowState& state, WindowPart part, int64_t entry, int64_t row, int64_t count, float* to) const;
  void save(const float* from, int64_t count, WindowState& state, WindowPart part, int64_t entry, int64_t row) const;

  int64_t columns, begin, stride;
};

// Maximum for tokens of a window, summaries, features and samples: more than useful, and small enough that sizes cannot overflow.
inline constexpr int64_t kMaxOfAWindow = int64_t{1} << 24;

// The bits of a float, for a recipe.
inline uint64_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

// Checks of options that all windowed ops have.
void require_windows(const char* function, int64_t window, int64_t chunk);

// Consecutive windows of a sequence, the last one possibly unfinished. All views begin with the first token of the first window.
struct Stretch {
  int64_t window = 0;  // number of the first one; 0 is the window in which the call begins
  int64_t first = 0;   // its tokens from before the call, which have no queries
  int64_t tokens = 0;  // including these
  View4 q, k, v;       // [1, tokens, ..]
  View2 valid;         // [1, tokens]
  // Forward pass: [1, tokens, H, V] and [1, tokens, H], fp32.
  MutView4 out;
  MutView3 logsumexp;
  // Backward pass: results of the forward pass, and gradients (dq, dk, dv in fp32). Masked queries are 0 in q and dout.
  View4 whole_out;
  View3 whole_logsumexp;
  View4 dout;
  MutView4 dq, dk, dv;

  int64_t queries() const { return tokens - first; }
  KeyMask mask() const { return mask_of(valid, {}, 0, 0, 0); }
};

// One sequence of a call, divided into stretches.
class SequenceWindows {
 public:
  // Forward pass. `entry` of `state` is the memory of earlier calls (null: none).
  SequenceWindows(const WindowedCall& call, const Sequence& sequence, const WindowState* state, int64_t entry, MutView4 out,
                  MutView3 logsumexp);
  // Writes outputs to the caller's view, 0 for tokens that take no part.
  void write_outputs(MutView4 out, MutView3 logsumexp) const;
  // The tokens of the window that is unfinished after the call.
  void save(WindowState& state, int64_t entry) const;

  // Backward pass.
  SequenceWindows(const WindowedCall& call, const Sequence& sequence, const WindowState* state, int64_t entry, View4 out,
                  View3 logsumexp, View4 dout, const QkvGradients& gradients);
  void write_gradients(const QkvGradients& gradients) const;

  // A window that is complete in the state but was not processed yet: it has no queries.
  SequenceWindows(const WindowedCall& call, const WindowState& state, int64_t entry);

  // The heads of `whole` that `call` has, in the memory of `whole`.
  SequenceWindows(const WindowedCall& call, const SequenceWindows& whole);

  int64_t before() const { return before_; }      // windows that were complete before the call
  int64_t complete() const { return complete_; }  // windows that it completes
  const std::vector<Stretch>& stretches() const { return stretches_; }
  // Whether heads go through the windows in turn in a forward pass: a single head is divided between threads by windows instead,
  // and the end of a window without queries has nothing to read.
  bool in_turn() const { return call_.heads > 1 && has_queries(); }
  bool has_queries() const {
    return std::ranges::any_of(stretches_, [](const Stretch& s) { return s.queries() > 0; });
  }
  int64_t longest() const {  // tokens of a stretch
    int64_t tokens = 0;
    for (const Stretch& s : stretches_) tokens = std::max(tokens, s.tokens);
    return tokens;
  }
  // Windows of a stretch with tokens, and those that are complete.
  int64_t windows_of(const Stretch& s) const { return (s.tokens + call_.window - 1) / call_.window; }
  int64_t complete_of(const Stretch& s) const { return s.tokens / call_.window; }
  std::vector<TokenSpan> complete_tokens(const Stretch& s) const { return {{0, 0, complete_of(s) * call_.window, s.mask()}}; }
  // -|k'|^2 / 2 of the tokens of complete windows, and -|q'|^2 / 2 + offset of all: [1, tokens, G] and [1, tokens, H].
  Array<3> key_norms(const Stretch& s) const;
  Array<3> query_norms(const Stretch& s, float offset) const;
  // Windows of a view [1, tokens, ..] of a stretch, from window `from` of it on.
  template <class AnyView>
  AnyView windows_from(const AnyView& view, int64_t from) const {
    return entries_from(windowed(view, call_.window), from);
  }
  // Queries of window `j` of a stretch, as a sequence of a part over windowed views sliced from window `from` on, which sees
  // `keys` keys.
  PartSequence queries_of(const Stretch& s, int64_t j, int64_t from, int64_t keys) const;

 private:
  void cut(const Sequence& sequence, const WindowState* state, int64_t entry, int64_t held);

  const WindowedCall& call_;
  Sequence sequence_;
  int64_t held_ = 0, before_ = 0, complete_ = 0;
  int64_t own_ = 0;  // tokens of the call in the first stretch, if that has memory of its own
  std::vector<Stretch> stretches_;
  Array<4> held_q_, held_k_, held_v_, held_out_, held_dout_, held_dq_, held_dk_, held_dv_;
  Array<3> held_logsumexp_;
  std::vector<uint8_t> held_valid_;
  Array<4> out_, q_, dout_, dq_, dk_, dv_;  // of the second stretch, if the caller's memory cannot be used
};

// The forward and the backward pass over all sequences of a call: checks the common arguments, calls body(sequence, entry of the
// state) for each sequence, and writes the remaining outputs.
using SequenceBody = std::function<void(const SequenceWindows& windows, int64_t entry)>;
void run_windows(const WindowedCall& call, WindowState* state, MutView4 out, std::span<float> record, const SequenceBody& body);
void run_windows_backward(const WindowedCall& call, const WindowState* initial, View4 out, std::span<const float> record,
                          View4 dout, const QkvGradients& gradients, const SequenceBody& body);

// body(call, windows) for the heads of a sequence: for one key head after the other where they keep all threads busy and the
// inputs of all of them fit in the last cache, so that what the body makes of a head stays there; otherwise once for all heads.
// No head's results depend on which.
void for_heads(const WindowedCall& call, const SequenceWindows& windows,
               const std::function<void(const WindowedCall& call, const SequenceWindows& windows)>& body);

// The exact keys in each query's own window: the first part of the softmax of every windowed op.
SoftmaxPart own_window_part(const WindowedCall& call, const Stretch& stretch);

// Parts of many sequences with few keys each, a few at a time, so that packed keys and queries stay small.
void forward_in_slabs(const SoftmaxPart& part, MutView4 out, MutView3 logsumexp, Start start = Start::anew);

// Keys that a query sees besides its window, heads in the order of memory.
struct StepKeys {
  size_t count = 0, groups = 1;
  float scale = 1;
  Rows k, v;
  Rows bias;
  int64_t k_head = 0, v_head = 0, bias_head = 0;
  bool sampled = false;  // -|q'|^2 / 2 + offset is added to their logits
  float offset = 0;
};

// The entries of one state, or one session with a state of one entry each.
std::vector<StepEntry> step_entries(const char* function, WindowState& state, int64_t batch);
std::vector<StepEntry> step_entries(const char* function, std::span<WindowState* const> sessions, int64_t batch);

// The tokens of a window that a step completes, in the state.
struct WindowTokens {
  WindowTokens(const WindowedCall& call, const StepEntry& entry);
  KeyMask mask() const { return {.valid = valid.data(), .valid_stride = 1, .bias = {}}; }

  View4 q, k, v;  // [1, W, ..]
  std::vector<uint8_t> valid;
};

// The heads of q are processed in `members` turns: heads member, member + members, .. others(entry, member) lists what they see
// besides their window. `complete` is called for entries whose window is full, before it is cleared.
void windowed_step(const WindowedCall& call, const std::vector<StepEntry>& entries, MutView4 out, int64_t members,
                   const std::function<std::vector<StepKeys>(const StepEntry&, int64_t member)>& others,
                   const std::function<void(const StepEntry&)>& complete);

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_SHARED_WINDOWS_H_
