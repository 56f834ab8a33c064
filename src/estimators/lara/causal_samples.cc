// The samples of causal LARA: proposals, the samples drawn around them, and their mixtures.
#include <cmath>

#include "estimators/lara/causal.h"

namespace raffia::internal {

LaraSequence::LaraSequence(const WindowedCall& call, const CausalLaraOptions& options, const float* noise,
                           const SequenceWindows& windows, const WindowState* state, int64_t entry, bool for_backward)
    : call_(call),
      options_(options),
      windows_(windows),
      runs_(options.streaming && !for_backward && windows.in_turn()),
      per_(samples_of_window(options)),
      max_(proposing_windows(options)),
      old_windows_(std::min(windows.before(), max_)),
      new_windows_(std::min(windows.before() + windows.complete(), max_) - old_windows_),
      samples_((old_windows_ + new_windows_) * per_),
      proposals_((old_windows_ + new_windows_) * call.chunks()) {
  if (samples_ == 0) return;
  w_ = Array<4>({1, samples_, call.heads, call.dim});
  means_ = Array<4>({1, proposals_, call.heads, call.dim});
  alive_.assign(static_cast<size_t>(proposals_), 0);
  if (old_windows_ > 0) load(*state, entry);
  if (new_windows_ > 0) propose(noise);
  mix(state, entry);
  if (runs_ || for_backward) {
    weights_ = Array<3>({1, samples_, call.heads}, kNone);
    values_ = Array<4>({1, samples_, call.heads, call.value_dim}, 0.0F);
    load_samples(state, entry);
  } else {
    read_keys(state, entry);
  }
}

void LaraSequence::save(WindowState& state, int64_t entry) const {
  if (samples_ == 0) return;
  const auto put = [&](WindowPart part, const float* from, int64_t rows, int64_t width) {
    rows_of_heads(width).save(from, rows, state, part, entry, 0);
  };
  put(WindowPart::summary_keys, w_.data(), samples_, call_.dim);
  put(WindowPart::means, means_.data(), proposals_, call_.dim);
  const int64_t last = weights_.view().extent(0) - 1;
  put(WindowPart::summary_weights, weights_.entry(last), samples_, 1);
  put(WindowPart::summary_values, values_.entry(last), samples_, call_.value_dim);
  put(WindowPart::mixtures, mixtures_.entry(new_windows_), samples_, 1);
  // Samples of chunks without tokens are in no mixture, which marks them in the state.
  const std::vector<float> none(static_cast<size_t>(call_.heads), kNone);
  for (int64_t s = 0; s < samples_; ++s) {
    if (!is_alive(s)) rows_of_heads(1).save(none.data(), 1, state, WindowPart::mixtures, entry, s);
  }
}

int64_t LaraSequence::proposing(const Stretch& s) const {
  return std::clamp<int64_t>(max_ - windows_.before() - s.window, 0, windows_.complete_of(s));
}

ChunkedSequence LaraSequence::chunked(const Stretch& s) const {
  return {0, 0, (old_windows_ + s.window) * call_.chunks(), s.mask(),
          equal_stretches(s.mask(), proposing(s) * call_.window, call_.chunk)};
}

void LaraSequence::load(const WindowState& state, int64_t entry) {
  const int64_t old_samples = old_windows_ * per_, old_proposals = old_windows_ * call_.chunks();
  rows_of_heads(call_.dim).load(state, WindowPart::summary_keys, entry, 0, old_samples, w_.data());
  rows_of_heads(call_.dim).load(state, WindowPart::means, entry, 0, old_proposals, means_.data());
  std::vector<float> mixture(static_cast<size_t>(call_.heads));
  for (int64_t c = 0; c < old_proposals; ++c) {
    rows_of_heads(1).load(state, WindowPart::mixtures, entry, c * options_.samples_per_proposal, 1, mixture.data());
    alive_[static_cast<size_t>(c)] = mixture[0] != kNone;
  }
}

void LaraSequence::propose(const float* noise) {
  const int64_t H = call_.heads, G = call_.groups, D = call_.dim;
  const Array<4> key_means({1, proposals_, G, D});
  for (const Stretch& s : windows_.stretches()) {
    if (proposing(s) == 0) continue;
    const std::vector<ChunkedSequence> tokens = {chunked(s)};
    chunk_means(s.q, call_.root, tokens, means_.view(), call_.workers());
    chunk_means(s.k, call_.root, tokens, key_means.view(), call_.workers());
    for (size_t c = 0; c < tokens[0].chunks.size(); ++c) {
      alive_[static_cast<size_t>(tokens[0].first_mean) + c] = tokens[0].chunks[c].count > 0;
    }
  }
  for (int64_t c = old_windows_ * call_.chunks(); c < proposals_; ++c) {
    for (int64_t h = 0; h < H; ++h) add(key_means.data() + (c * G + h / call_.group) * D, means_.data() + (c * H + h) * D, D);
  }
  for (int64_t s = old_windows_ * per_; s < samples_; ++s) {
    for (int64_t h = 0; h < H; ++h) {
      float* w = w_.data() + (s * H + h) * D;
      std::copy_n(noise + (s * call_.all_groups + call_.first_group + h / call_.group) * D, D, w);
      add(means_.data() + (s / options_.samples_per_proposal * H + h) * D, w, D);
    }
  }
}

KeySource LaraSequence::proposals_from(int64_t first, int64_t h) const {
  return {
      .k = rows_of<Rows>(means_.view(), 0, first, h), .v = {}, .mask = {.bias = column_of<Rows>(mean_bias_.view(), 0, first, h)}};
}

void LaraSequence::mix(const WindowState* state, int64_t entry) {
  const int64_t S = samples_, H = call_.heads, old_proposals = old_windows_ * call_.chunks();
  mixtures_ = Array<3>({new_windows_ + 1, S, H}, kNone);
  if (old_windows_ > 0) {
    rows_of_heads(1).load(*state, WindowPart::mixtures, entry, 0, old_windows_ * per_, mixtures_.data());
  }
  if (new_windows_ == 0) return;
  mean_bias_ = Array<3>({1, proposals_, H});
  half_norms(means_.view(), 1.0F, {{0, 0, proposals_, {}}}, mean_bias_.view(), call_.workers());
  const float log_per = std::log(static_cast<float>(options_.samples_per_proposal));
  for (int64_t i = 0; i < proposals_ * H; ++i) {
    mean_bias_.data()[i] = alive_[static_cast<size_t>(i / H)] != 0 ? mean_bias_.data()[i] + log_per : kNone;
  }
  // Samples without values, to which proposals are added in the place of keys.
  const Workers workers = call_.workers();
  const RunningSamples::Shape shape{static_cast<size_t>(S), static_cast<size_t>(call_.dim), 0};
  const size_t floats = RunningSamples::floats(shape), all = static_cast<size_t>(S);
  workers.run(H, Scratch(workers.count(), floats + RunningSamples::scratch_floats(shape)), [&](int64_t h, float* memory) {
    const RunningSamples samples(shape, rows_of<Rows>(w_.view(), 0, 0, h), memory, memory + floats);
    const auto store = [&](int64_t boundary, int64_t first) {
      for (int64_t s = first; s < S; ++s) mixtures_.entry(boundary)[s * H + h] = samples.log_weights()[s];
    };
    if (old_proposals > 0) {  // those of old samples are known
      samples.add(proposals_from(0, h), static_cast<size_t>(old_proposals), all, 1.0F, 0.0F, nullptr, memory + floats);
      store(0, old_windows_ * per_);
      for (int64_t s = 0; s < S; ++s) samples.log_weights()[s] = mixtures_.data()[s * H + h];
    }
    for (int64_t n = 0; n < new_windows_; ++n) {
      samples.add(proposals_from(old_proposals + n * call_.chunks(), h), static_cast<size_t>(call_.chunks()), all, 1.0F, 0.0F,
                  nullptr, memory + floats);
      store(n + 1, 0);
    }
  });
}

void LaraSequence::add(const float* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

}  // namespace raffia::internal
