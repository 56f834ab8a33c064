// Decoding with windows: the token is added to the unfinished window of its session, and attends to it and to the older past.
#include <algorithm>

#include "core/check.h"
#include "estimators/shared/windows.h"

namespace raffia::internal {
namespace {

// Token `b` is added to the window of its session, as row `at`.
void join(View4 from, int64_t b, WindowState& state, int64_t entry, WindowPart part, int64_t at) {
  const int64_t width = from.extent(3);
  float* row = state.part(part, entry).data() + at * from.extent(2) * width;
  for (int64_t h = 0; h < from.extent(2); ++h, row += width) {
    copy_floats(rows_of<Rows>(from, b, 0, h), 0, static_cast<size_t>(width), row);
  }
}

}  // namespace

std::vector<StepEntry> step_entries(const char* function, WindowState& state, int64_t batch) {
  require(state.shape().batch == batch, "{}: state has {} entries, expected {} (batch of q)", function, state.shape().batch,
          batch);
  std::vector<StepEntry> entries;
  for (int64_t b = 0; b < batch; ++b) entries.push_back({&state, b});
  return entries;
}

std::vector<StepEntry> step_entries(const char* function, std::span<WindowState* const> sessions, int64_t batch) {
  require(sessions.size() == static_cast<size_t>(batch), "{}: {} sessions are given, expected {} (batch of q)", function,
          sessions.size(), batch);
  std::vector<StepEntry> entries;
  for (size_t b = 0; b < sessions.size(); ++b) {
    require(sessions[b] != nullptr && sessions[b]->shape().batch == 1, "{}: session {} is {}, expected a state of one entry",
            function, b, sessions[b] == nullptr ? "null" : "a state of several entries");
    entries.push_back({sessions[b], 0});
  }
  std::vector<const WindowState*> sorted(sessions.begin(), sessions.end());
  std::ranges::sort(sorted);
  require(std::ranges::adjacent_find(sorted) == sorted.end(), "{}: a session is given twice, expected distinct sessions",
          function);
  return entries;
}

WindowTokens::WindowTokens(const WindowedCall& call, const StepEntry& entry) {
  const int64_t W = call.window;
  const auto part = [&](WindowPart which) { return entry.state->part(which, entry.b).data(); };
  q = View4(part(WindowPart::queries), {1, W, call.heads, call.dim});
  k = View4(part(WindowPart::keys), {1, W, call.groups, call.dim});
  v = View4(part(WindowPart::values), {1, W, call.groups, call.value_dim});
  for (int64_t t = 0; t < W; ++t) valid.push_back(part(WindowPart::present)[t] != 0.0F);
}

void windowed_step(const WindowedCall& call, const std::vector<StepEntry>& entries, MutView4 out, int64_t members,
                   const std::function<std::vector<StepKeys>(const StepEntry&, int64_t member)>& others,
                   const std::function<void(const StepEntry&)>& complete) {
  const int64_t W = call.window, H = call.heads, G = call.groups, D = call.dim, V = call.value_dim;
  const size_t heads = static_cast<size_t>(H / members), dim = static_cast<size_t>(D), value_dim = static_cast<size_t>(V);
  std::vector<uint8_t> valid(entries.size() * static_cast<size_t>(W));
  std::vector<StepTask> tasks;
  std::vector<CombineTask> turns;  // one for each session and member
  int64_t floats = 0;
  for (size_t b = 0; b < entries.size(); ++b) {
    const auto& [state, entry] = entries[b];
    const int64_t at = state->tokens(entry) % W, token = static_cast<int64_t>(b);
    join(call.q, token, *state, entry, WindowPart::queries, at);
    join(call.k, token, *state, entry, WindowPart::keys, at);
    join(call.v, token, *state, entry, WindowPart::values, at);
    const std::span<float> present = state->part(WindowPart::present, entry);
    present[static_cast<size_t>(at)] = 1.0F;
    uint8_t* takes_part = valid.data() + b * static_cast<size_t>(W);
    bool gaps = false;
    for (int64_t t = 0; t <= at; ++t) {
      takes_part[t] = present[static_cast<size_t>(t)] != 0.0F;
      gaps = gaps || takes_part[t] == 0;
    }
    const KeyMask own_mask = gaps ? KeyMask{.valid = takes_part, .valid_stride = 1, .bias = {}} : KeyMask{};

    for (int64_t member = 0; member < members; ++member) {
      const MutRows outs = rows_of<MutRows>(member_of(out, member, members).permuted({0, 2, 1, 3}), token, 0, 0);
      CombineTask turn{.heads = heads, .value_dim = value_dim, .out = outs, .logsumexp = {}};
      const Rows q = rows_of<Rows>(member_of(call.q, member, members).permuted({0, 2, 1, 3}), token, 0, 0);
      const auto add = [&](const StepKeys& keys, const KeyMask& key_mask) {
        for (size_t begin = 0; begin < keys.count; begin += kStepKeys) {
          tasks.push_back({.heads = heads,
                           .groups = keys.groups,
                           .dim = dim,
                           .value_dim = value_dim,
                           .begin = begin,
                           .end = std::min(begin + kStepKeys, keys.count),
                           .scale = keys.scale,
                           .q = q,
                           .k = keys.k,
                           .v = keys.v,
                           .mask = key_mask,
                           .k_head = keys.k_head,
                           .v_head = keys.v_head,
                           .bias_head = keys.bias_head,
                           .sampled = keys.sampled,
                           .offset = keys.offset});
          ++turn.stretches;
        }
        floats += static_cast<int64_t>(keys.count * keys.groups) * (D + V);
      };
      add({.count = static_cast<size_t>(at + 1),
           .groups = static_cast<size_t>(G),
           .scale = call.scale,
           .k = {state->part(WindowPart::keys, entry).data(), DType::f32, G * D, 1},
           .v = {state->part(WindowPart::values, entry).data(), DType::f32, G * V, 1},
           .k_head = D,
           .v_head = V},
          own_mask);
      for (const StepKeys& keys : others({state, entry}, member)) add(keys, {.bias = keys.bias});
      turns.push_back(turn);
    }
  }

  const Scratch partials(1, tasks.size() * StepPartial::size(heads, value_dim));
  for (size_t i = 0; i < tasks.size(); ++i) tasks[i].partial = partials.of(0) + i * StepPartial::size(heads, value_dim);
  for (size_t i = 0, task = 0; i < turns.size(); task += turns[i++].stretches) turns[i].partials = tasks[task].partial;
  const Workers workers({.threads = floats < kMinParallelFloats ? 1 : call.run.threads, .executor = call.run.executor});
  const Scratch scratch(workers.count(), step_scratch(heads, dim, value_dim));
  workers.run(tasks, scratch, softmax_step_stretch);
  workers.run(turns, scratch, softmax_step_combine);

  for (const auto& [state, entry] : entries) {
    if (++state->tokens(entry) % W != 0) continue;
    complete({state, entry});
    for (WindowPart part : {WindowPart::queries, WindowPart::keys, WindowPart::values, WindowPart::present}) {
      std::ranges::fill(state->part(part, entry), 0.0F);
    }
  }
}

}  // namespace raffia::internal
