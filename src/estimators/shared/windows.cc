#include "estimators/shared/windows.h"

#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/trace.h"
#include "core/window_layout.h"
#include "estimators/shared/sample_states.h"

namespace raffia::internal {
namespace {

bool takes_part(View2 valid, int64_t b, int64_t t) {
  return valid.absent() || static_cast<const uint8_t*>(valid.data())[valid.offset(b, t)] != 0;
}

// Tokens [begin, begin + count) of entry b, all heads, to tokens from `at` of entry `to_b`; 0 where `valid` says so.
void copy_tokens(const Workers& workers, View4 from, int64_t b, int64_t begin, int64_t count, View2 valid, MutView4 to,
                 int64_t to_b, int64_t at) {
  constexpr int64_t kTokensPerTask = 64;  // per task
  workers.run((count + kTokensPerTask - 1) / kTokensPerTask, Scratch(workers.count(), 0), [&](int64_t task, float*) {
    for (int64_t t = task * kTokensPerTask; t < std::min((task + 1) * kTokensPerTask, count); ++t) {
      const bool present = takes_part(valid, b, begin + t);
      for (int64_t h = 0; h < from.extent(2); ++h) {
        const MutRows copy = rows_of<MutRows>(to, to_b, at + t, h);
        if (present) {
          copy_row(rows_of<Rows>(from, b, begin + t, h), 0, static_cast<size_t>(from.extent(3)), copy, 0);
        } else {
          for (size_t c = 0; c < static_cast<size_t>(to.extent(3)); ++c) copy.set(0, c, 0.0F);
        }
      }
    }
  });
}

void copy_tokens(View3 from, int64_t b, int64_t begin, int64_t count, MutView3 to, int64_t to_b, int64_t at) {
  for (int64_t h = 0; h < from.extent(2); ++h) {
    const Rows rows = column_of<Rows>(from, b, begin, h);
    const MutRows copies = column_of<MutRows>(to, to_b, at, h);
    for (size_t t = 0; t < static_cast<size_t>(count); ++t) copies.set(t, 0, rows.at(t, 0));
  }
}

// `count` tokens of batch entry b from `begin` on, as a batch of one.
template <class AnyView>
AnyView tokens_of(const AnyView& view, int64_t b, int64_t begin, int64_t count) {
  return view.absent() ? view : view.slice(0, b, 1).slice(1, begin, count);
}

const float* part_of(const WindowState& state, WindowPart part, int64_t entry) { return state.part(part, entry).data(); }

[[noreturn]] void throw_wrong_state(const char* function, std::string_view argument, const WindowStateShape& found,
                                    const WindowStateShape& expected) {
  throw InvalidArgument(
      fmt::format("{}: {} has {} (shapes of q, k, v, and options)", function, argument, difference_of(found, expected)));
}

}  // namespace

void require_windows(const char* function, int64_t window, int64_t chunk) {
  require(window >= 1 && window <= kMaxOfAWindow, "{}: window is {}, expected 1 to {}", function, window, kMaxOfAWindow);
  require(chunk >= 1 && window % chunk == 0, "{}: chunk is {}, expected a divisor of window, {}", function, chunk, window);
}

void WindowedCall::check() const {
  require_shape(function, "k", k, {batch, length, groups, dim}, "batch, length and dimensions of q");
  require(self, "{}: cu_seqlens_k is given, expected as many keys as queries", function);
  require(heads >= 1 && value_dim >= 1, "{}: out would have shape {}, expected at least one head and dimension", function,
          to_string(Extents<4>{batch, length, heads, value_dim}.data(), 4));
}

WindowedCall WindowedCall::of_group(int64_t g) const {
  WindowedCall one = *this;
  one.q = q.slice(2, g * group, group);
  one.k = k.slice(2, g, 1);
  one.v = v.slice(2, g, 1);
  one.heads = group;
  one.groups = 1;
  one.first_group = first_group + g;
  one.run.threads = 1;
  return one;
}

void HeadRows::load(const WindowState& state, WindowPart part, int64_t entry, int64_t row, int64_t count, float* to) const {
  const float* from = part_of(state, part, entry) + row * stride + begin;
  if (stride == columns) {
    std::copy_n(from, count * columns, to);
    return;
  }
  for (int64_t i = 0; i < count; ++i) std::copy_n(from + i * stride, columns, to + i * columns);
}

void HeadRows::save(const float* from, int64_t count, WindowState& state, WindowPart part, int64_t entry, int64_t row) const {
  float* to = state.part(part, entry).data() + row * stride + begin;
  if (stride == columns) {
    std::copy_n(from, count * columns, to);
    return;
  }
  for (int64_t i = 0; i < count; ++i) std::copy_n(from + i * columns, columns, to + i * stride);
}

void WindowedCall::require_state(const WindowState* state, const char* argument, WindowStateShape expected) const {
  if (state == nullptr) return;
  const WindowStateShape& found = state->shape();
  expected.batch = static_cast<int64_t>(sequences.size());
  require(found.batch == expected.batch, "{}: {} has {} entries, expected {} (sequences)", function, argument, found.batch,
          expected.batch);
  if (found != expected) throw_wrong_state(function, argument, found, expected);
}

void WindowedCall::check_step(const std::vector<StepEntry>& entries, MutView3 out, WindowStateShape expected) const {
  require(valid.absent() && !packed && !padded, "{}: a layout is given, but a step has one token for every session", function);
  check_output("out", with_time(out));
  for (size_t b = 0; b < entries.size(); ++b) {
    expected.batch = entries[b].state->shape().batch;
    const WindowStateShape& found = entries[b].state->shape();
    if (found != expected) throw_wrong_state(function, fmt::format("the state of session {}", b), found, expected);
  }
}

void SequenceWindows::cut(const Sequence& sequence, const WindowState* state, int64_t entry, int64_t held) {
  const int64_t W = call_.window, H = call_.heads, G = call_.groups, D = call_.dim, V = call_.value_dim;
  sequence_ = sequence;
  held_ = held;
  before_ = state == nullptr ? 0 : (state->tokens(entry) - held) / W;
  complete_ = (held + sequence.keys) / W;
  const int64_t b = sequence.batch, begin = sequence.first_key;
  if (held > 0) {
    own_ = std::min(sequence.keys, W - held);
    held_q_ = Array<4>({1, W, H, D}, 0.0F);
    held_k_ = Array<4>({1, W, G, D}, 0.0F);
    held_v_ = Array<4>({1, W, G, V}, 0.0F);
    std::copy_n(part_of(*state, WindowPart::queries, entry), held * H * D, held_q_.data());
    std::copy_n(part_of(*state, WindowPart::keys, entry), held * G * D, held_k_.data());
    std::copy_n(part_of(*state, WindowPart::values, entry), held * G * V, held_v_.data());
    copy_tokens(call_.workers(), call_.q, b, begin, own_, call_.valid, held_q_.view(), 0, held);
    copy_tokens(call_.workers(), call_.k, b, begin, own_, call_.valid, held_k_.view(), 0, held);
    copy_tokens(call_.workers(), call_.v, b, begin, own_, call_.valid, held_v_.view(), 0, held);
    held_valid_.assign(static_cast<size_t>(W), 0);
    for (int64_t t = 0; t < held; ++t) {
      held_valid_[static_cast<size_t>(t)] = part_of(*state, WindowPart::present, entry)[t] != 0.0F;
    }
    for (int64_t t = 0; t < own_; ++t) {
      held_valid_[static_cast<size_t>(held + t)] = takes_part(call_.valid, b, begin + t);
    }
    const int64_t tokens = held + own_;
    stretches_.push_back({.window = 0,
                          .first = held,
                          .tokens = tokens,
                          .q = held_q_.view().slice(1, 0, tokens),
                          .k = held_k_.view().slice(1, 0, tokens),
                          .v = held_v_.view().slice(1, 0, tokens),
                          .valid = View2(held_valid_.data(), {1, tokens})});
  }
  const int64_t rest = sequence.keys - own_;
  if (rest > 0) {
    stretches_.push_back({.window = held > 0 ? 1 : 0,
                          .tokens = rest,
                          .q = tokens_of(call_.q, b, begin + own_, rest),
                          .k = tokens_of(call_.k, b, begin + own_, rest),
                          .v = tokens_of(call_.v, b, begin + own_, rest),
                          .valid = tokens_of(call_.valid, b, begin + own_, rest)});
  }
}

SequenceWindows::SequenceWindows(const WindowedCall& call, const Sequence& sequence, const WindowState* state, int64_t entry,
                                 MutView4 out, MutView3 logsumexp)
    : call_(call) {
  cut(sequence, state, entry, state == nullptr ? 0 : state->tokens(entry) % call.window);
  for (Stretch& s : stretches_) {
    if (s.first > 0) {
      held_out_ = Array<4>({1, s.tokens, call.heads, call.value_dim}, 0.0F);
      held_logsumexp_ = Array<3>({1, s.tokens, call.heads}, kNone);
      s.out = held_out_.view();
      s.logsumexp = held_logsumexp_.view();
      continue;
    }
    if (out.dtype() != DType::f32) out_ = Array<4>({1, s.tokens, call.heads, call.value_dim});
    s.out = out.dtype() == DType::f32 ? tokens_of(out, sequence.batch, sequence.first_key + own_, s.tokens) : out_.view();
    s.logsumexp = tokens_of(logsumexp, sequence.batch, sequence.first_key + own_, s.tokens);
  }
}

void SequenceWindows::write_outputs(MutView4 out, MutView3 logsumexp) const {
  const int64_t b = sequence_.batch, begin = sequence_.first_key;
  for (const Stretch& s : stretches_) {
    if (s.first > 0) {
      copy_tokens(call_.workers(), s.out, 0, s.first, own_, {}, out, b, begin);
      copy_tokens(s.logsumexp, 0, s.first, own_, logsumexp, b, begin);
    } else if (out.dtype() != DType::f32) {
      copy_tokens(call_.workers(), s.out, 0, 0, s.tokens, {}, out, b, begin + own_);
    }
  }
  if (call_.valid.absent()) return;
  for (int64_t t = begin; t < begin + sequence_.keys; ++t) {
    if (takes_part(call_.valid, b, t)) continue;
    fill_rest(out.slice(1, t, 1), b, 0);
    fill_rest(logsumexp.slice(1, t, 1), b, 0, kNone);
  }
}

void SequenceWindows::save(WindowState& state, int64_t entry) const {
  const int64_t W = call_.window, left = (held_ + sequence_.keys) % W;
  // What the unfinished window has of this call: the last `added` tokens. What is not used stays 0.
  const int64_t added = std::min(left, sequence_.keys), at = left - added, begin = sequence_.first_key + sequence_.keys - added;
  const auto put = [&](WindowPart part, View4 from, int64_t heads, int64_t width) {
    const std::span<float> rows = state.part(part, entry);
    std::fill(rows.begin() + at * heads * width, rows.end(), 0.0F);
    copy_tokens(call_.workers(), from, sequence_.batch, begin, added, call_.valid, MutView4(rows.data(), {1, W, heads, width}), 0,
                at);
  };
  put(WindowPart::queries, call_.q, call_.heads, call_.dim);
  put(WindowPart::keys, call_.k, call_.groups, call_.dim);
  put(WindowPart::values, call_.v, call_.groups, call_.value_dim);
  const std::span<float> present = state.part(WindowPart::present, entry);
  std::fill(present.begin() + at, present.end(), 0.0F);
  for (int64_t t = 0; t < added; ++t) {
    present[static_cast<size_t>(at + t)] = takes_part(call_.valid, sequence_.batch, begin + t) ? 1.0F : 0.0F;
  }
  state.tokens(entry) += sequence_.keys;
}

SequenceWindows::SequenceWindows(const WindowedCall& call, const Sequence& sequence, const WindowState* state, int64_t entry,
                                 View4 out, View3 logsumexp, View4 dout, const QkvGradients& gradients)
    : call_(call) {
  cut(sequence, state, entry, state == nullptr ? 0 : state->tokens(entry) % call.window);
  const int64_t b = sequence.batch, begin = sequence.first_key;
  const int64_t H = call.heads, G = call.groups, D = call.dim, V = call.value_dim;
  for (Stretch& s : stretches_) {
    if (s.first > 0) {
      held_out_ = Array<4>({1, s.tokens, H, V}, 0.0F);
      held_dout_ = Array<4>({1, s.tokens, H, V}, 0.0F);
      held_logsumexp_ = Array<3>({1, s.tokens, H}, kNone);
      held_dq_ = Array<4>({1, s.tokens, H, D}, 0.0F);
      held_dk_ = Array<4>({1, s.tokens, G, D}, 0.0F);
      held_dv_ = Array<4>({1, s.tokens, G, V}, 0.0F);
      copy_tokens(call_.workers(), out, b, begin, own_, call.valid, held_out_.view(), 0, s.first);
      copy_tokens(call_.workers(), dout, b, begin, own_, call.valid, held_dout_.view(), 0, s.first);
      copy_tokens(logsumexp, b, begin, own_, held_logsumexp_.view(), 0, s.first);
      s.whole_out = held_out_.view(), s.whole_logsumexp = held_logsumexp_.view(), s.dout = held_dout_.view();
      s.dq = held_dq_.view(), s.dk = held_dk_.view(), s.dv = held_dv_.view();
      continue;
    }
    s.whole_out = tokens_of(out, b, begin + own_, s.tokens);
    s.whole_logsumexp = tokens_of(logsumexp, b, begin + own_, s.tokens);
    s.dout = tokens_of(dout, b, begin + own_, s.tokens);
    if (!call.valid.absent()) {
      q_ = Array<4>({1, s.tokens, H, D});
      dout_ = Array<4>({1, s.tokens, H, V});
      copy_tokens(call_.workers(), call.q, b, begin + own_, s.tokens, call.valid, q_.view(), 0, 0);
      copy_tokens(call_.workers(), dout, b, begin + own_, s.tokens, call.valid, dout_.view(), 0, 0);
      s.q = q_.view(), s.dout = dout_.view();
    }
    const auto choose = [&](MutView4 wanted, Array<4>& own, int64_t heads, int64_t width) {
      if (!wanted.absent() && wanted.dtype() == DType::f32) return tokens_of(wanted, b, begin + own_, s.tokens);
      own = Array<4>({1, s.tokens, heads, width});
      return own.view();
    };
    s.dq = choose(gradients.q, dq_, H, D);
    s.dk = choose(gradients.k, dk_, G, D);
    s.dv = choose(gradients.v, dv_, G, V);
  }
}

void SequenceWindows::write_gradients(const QkvGradients& gradients) const {
  const int64_t b = sequence_.batch, begin = sequence_.first_key;
  const auto write = [&](MutView4 from, const Stretch& s, MutView4 to) {
    if (to.absent()) return;
    if (s.first > 0) {
      copy_tokens(call_.workers(), from, 0, s.first, own_, {}, to, b, begin);
    } else if (to.dtype() != DType::f32) {
      copy_tokens(call_.workers(), from, 0, 0, s.tokens, {}, to, b, begin + own_);
    }
  };
  for (const Stretch& s : stretches_) {
    write(s.dq, s, gradients.q);
    write(s.dk, s, gradients.k);
    write(s.dv, s, gradients.v);
  }
}

SequenceWindows::SequenceWindows(const WindowedCall& call, const WindowState& state, int64_t entry) : call_(call) {
  cut({0, 0, 0, 0, 0}, &state, entry, call.window);
}

SequenceWindows::SequenceWindows(const WindowedCall& call, const SequenceWindows& whole)
    : call_(call),
      sequence_(whole.sequence_),
      held_(whole.held_),
      before_(whole.before_),
      complete_(whole.complete_),
      own_(whole.own_),
      stretches_(whole.stretches_) {
  const int64_t first = call.first_group - whole.call_.first_group;
  const auto keep = [&](auto& view, int64_t begin, int64_t count) {
    if (!view.absent()) view = view.slice(2, begin, count);
  };
  const auto of_queries = [&](auto&... views) { (keep(views, first * call.group, call.heads), ...); };
  const auto of_keys = [&](auto&... views) { (keep(views, first, call.groups), ...); };
  for (Stretch& s : stretches_) {
    of_queries(s.q, s.out, s.logsumexp, s.whole_out, s.whole_logsumexp, s.dout, s.dq);
    of_keys(s.k, s.v, s.dk, s.dv);
  }
}

void for_heads(const WindowedCall& call, const SequenceWindows& windows,
               const std::function<void(const WindowedCall& call, const SequenceWindows& windows)>& body) {
  const Workers workers = call.workers();
  const int64_t turns = (call.groups + workers.count() - 1) / workers.count();
  const bool busy = 4 * call.groups >= 3 * turns * workers.count();
  // Queries of all heads that fit in the last cache: rows of one head are far apart, and slow to read from memory.
  constexpr int64_t kMaxFloats = 1 << 21;  // EVA backward, 8 heads of 64, Zen 5: 28 -> 20 ms at 2,048 tokens, 275 -> 315 at 8,192
  const bool cached = call.length * call.heads * call.dim <= kMaxFloats;
  if (call.groups == 1 || !busy || !cached) return body(call, windows);
  workers.run(call.groups, Scratch(workers.count(), 0), [&](int64_t g, float*) {
    const WindowedCall one = call.of_group(g);
    body(one, SequenceWindows(one, windows));
  });
}

Array<3> SequenceWindows::key_norms(const Stretch& s) const {
  Array<3> norms({1, s.tokens, call_.groups});
  half_norms(s.k, call_.scale, complete_tokens(s), norms.view(), call_.workers());
  return norms;
}

Array<3> SequenceWindows::query_norms(const Stretch& s, float offset) const {
  Array<3> norms({1, s.tokens, call_.heads});
  half_norms(s.q, call_.scale, {{0, 0, s.tokens, {}}}, norms.view(), call_.workers());
  for (int64_t i = 0; i < norms.size(); ++i) norms.data()[i] += offset;
  return norms;
}

PartSequence SequenceWindows::queries_of(const Stretch& s, int64_t j, int64_t from, int64_t keys) const {
  const int64_t first = j == 0 ? s.first : 0, count = std::min(call_.window, s.tokens - j * call_.window) - first;
  return {j - from, first, 0, Visibility::all(static_cast<size_t>(count), static_cast<size_t>(keys))};
}

void run_windows(const WindowedCall& call, WindowState* state, MutView4 out, std::span<float> record, const SequenceBody& body) {
  call.check_output("out", out);
  if (!record.empty()) call.check_record(record, call.record_size());
  const Trace trace(call.function, "q", call.q, call.chunk);
  const Extents<3> shape{call.batch, call.length, call.heads};
  const Array<3> own(record.empty() ? shape : Extents<3>{});
  const MutView3 logsumexp = record.empty() ? own.view() : MutView3(record.data(), shape);
  for (size_t n = 0; n < call.sequences.size(); ++n) {
    const Sequence& s = call.sequences[n];
    const SequenceWindows windows(call, s, state, static_cast<int64_t>(n), out, logsumexp);
    body(windows, static_cast<int64_t>(n));
    windows.write_outputs(out, logsumexp);
    if (state != nullptr) windows.save(*state, static_cast<int64_t>(n));
    if (!call.packed) fill_rest(logsumexp, s.batch, s.keys, kNone);
  }
  zero_padding(out, call, &Sequence::keys);
}

void run_windows_backward(const WindowedCall& call, const WindowState* initial, View4 out, std::span<const float> record,
                          View4 dout, const QkvGradients& gradients, const SequenceBody& body) {
  call.check_output("out", out);
  call.check_output("dout", dout);
  call.check_record(record, call.record_size());
  call.check_gradients(gradients);
  const Trace trace(call.function, "q", call.q, call.chunk);
  const View3 logsumexp(record.data(), {call.batch, call.length, call.heads});
  for (size_t n = 0; n < call.sequences.size(); ++n) {
    const SequenceWindows windows(call, call.sequences[n], initial, static_cast<int64_t>(n), out, logsumexp, dout, gradients);
    body(windows, static_cast<int64_t>(n));
    windows.write_gradients(gradients);
  }
  for (MutView4 gradient : {gradients.q, gradients.k, gradients.v}) zero_padding(gradient, call, &Sequence::keys);
}

SoftmaxPart own_window_part(const WindowedCall& call, const Stretch& stretch) {
  return {.q = stretch.q,
          .k = stretch.k,
          .v = stretch.v,
          .scale = call.scale,
          .valid = stretch.valid,
          .sequences = {{0, stretch.first, 0,
                         Visibility::recent(static_cast<size_t>(stretch.queries()), static_cast<size_t>(stretch.tokens),
                                            call.window, 0, 0)}},
          .workers = call.workers()};
}

namespace {

constexpr size_t kSlabFloats = 1 << 20;  // 4 MB of packed keys or queries: fits the last cache, and is work enough for threads

// body(part with some of the sequences), so that floats_of(sequence) add up to about a slab.
template <class FloatsOf, class Body>
void for_slabs(const SoftmaxPart& part, const FloatsOf& floats_of, const Body& body) {
  SoftmaxPart some = part;
  for (size_t begin = 0, end = 0; begin < part.sequences.size(); begin = end) {
    size_t floats = 0;
    while (end < part.sequences.size() && (end == begin || floats < kSlabFloats)) floats += floats_of(part.sequences[end++]);
    some.sequences.assign(part.sequences.begin() + static_cast<std::ptrdiff_t>(begin),
                          part.sequences.begin() + static_cast<std::ptrdiff_t>(end));
    body(some);
  }
}

}  // namespace

void forward_in_slabs(const SoftmaxPart& part, MutView4 out, MutView3 logsumexp, Start start) {
  const size_t per_key = static_cast<size_t>(part.k.extent(2) * (part.k.extent(3) + part.v.extent(3)));
  for_slabs(
      part, [&](const PartSequence& s) { return round_up(s.visible.keys, kKeyBlock) * per_key; },
      [&](const SoftmaxPart& some) { forward(some, out, logsumexp, start); });
}

}  // namespace raffia::internal
