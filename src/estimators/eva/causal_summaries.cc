// The summaries of causal EVA: means of chunks, and what becomes of those that are folded.
#include "core/window_layout.h"
#include "estimators/eva/causal.h"

namespace raffia::internal {
namespace {

// beta_c: sample w_c over the keys of its chunk.
SoftmaxPart own_chunks_part(const WindowedCall& call, View4 means, View4 k, View4 v, View2 valid, View3 norms, int64_t first,
                            int64_t chunks) {
  const size_t count = static_cast<size_t>(chunks);
  return {.q = means,
          .k = k,
          .v = v,
          .scale = call.root,
          .key_bias = norms,
          .valid = valid,
          .sequences = {{0, first, 0, Visibility::own(count, count * static_cast<size_t>(call.chunk), 1, call.chunk)}},
          .workers = call.workers()};
}

}  // namespace

void summarise_chunks(const WindowedCall& call, View4 q, View4 k, View4 v, View2 valid, View3 norms,
                      const ChunkedSequence& tokens, const ChunkSummaries& summaries) {
  const Workers workers = call.workers();
  chunk_means(q, call.root, {tokens}, summaries.means, workers);
  chunk_means(k, call.root, {tokens}, summaries.keys, workers);
  const int64_t first = tokens.first_mean, count = static_cast<int64_t>(tokens.chunks.size());
  for (int64_t c = first; c < first + count; ++c) {
    const int64_t present = tokens.chunks[static_cast<size_t>(c - first)].count;
    summaries.log_counts[c] = present > 0 ? std::log(static_cast<float>(present)) : kNone;
    for (int64_t h = 0; h < call.heads; ++h) {
      float* mean = row(summaries.means, 0, c, h);
      const float* key = row(summaries.keys, 0, c, h / call.group);
      for (int64_t i = 0; i < call.dim; ++i) mean[i] += key[i];
    }
  }
  forward(own_chunks_part(call, summaries.means, k, v, valid, norms, first, count), summaries.values, summaries.log_z);
}

EvaSequence::EvaSequence(const WindowedCall& call, const CausalEvaOptions& options, const float* features,
                         const SequenceWindows& windows, const WindowState* state, int64_t entry, bool for_backward)
    : call_(call),
      options_(options),
      features_(features == nullptr ? nullptr : features + call.first_group * call.dim,
                {1, options.features, call.groups, call.dim}, {0, call.all_groups * call.dim, call.dim, 1}),
      windows_(windows),
      per_(call.chunks()) {
  const int64_t before = windows.before(), complete = windows.complete();
  kept_ = options.summaries / per_;
  // The state holds summaries of this many windows, which come first; the rest are computed here.
  const int64_t held = state == nullptr ? 0 : std::min(kept_, before);
  lead_ = held * per_;
  chunks_ = lead_ + complete * per_;
  keys_ = Array<4>({1, chunks_, call.groups, call.dim});
  values_ = Array<4>({1, chunks_, call.heads, call.value_dim});
  log_counts_ = Array<3>({1, chunks_, 1});
  means_ = Array<4>({1, chunks_, call.heads, call.dim});
  log_z_ = Array<3>({1, chunks_, call.heads});
  if (lead_ > 0) load(*state, entry);
  for (const Stretch& s : windows.stretches()) summarise(s);
  if (options.summaries == 0) return;
  first_boundary_ = std::max<int64_t>(0, kept_ - before);
  const bool folds_later = for_backward || windows.in_turn();  // in forward_all() or sweep()
  if (complete >= first_boundary_) prepare_folds(state, entry, !folds_later);
  if (!folds_later && folds_ > 0) fold();
}

void EvaSequence::save(WindowState& state, int64_t entry) const {
  const int64_t G = call_.groups, D = call_.dim, H = call_.heads, V = call_.value_dim, ring = options_.summaries;
  const int64_t seen = (windows_.before() + windows_.complete()) * per_;  // chunks since the first token
  for (int64_t c = std::max(lead_, chunks_ - ring); c < chunks_; ++c) {
    const int64_t slot = (seen - chunks_ + c) % ring;
    of_keys(D).save(keys_.data() + c * G * D, 1, state, WindowPart::summary_keys, entry, slot);
    of_queries(V).save(values_.data() + c * H * V, 1, state, WindowPart::summary_values, entry, slot);
    state.part(WindowPart::summary_weights, entry)[static_cast<size_t>(slot)] = log_counts_.data()[c];
  }
  if (folds_ == 0) return;
  of_keys(1).save(weights_.entry(weights_.view().extent(0) - 1), options_.features, state, WindowPart::folded_weights, entry, 0);
  of_queries(V).save(folded_.entry(folded_.view().extent(0) - 1), options_.features, state, WindowPart::folded_values, entry, 0);
}

void EvaSequence::load(const WindowState& state, int64_t entry) {
  const int64_t G = call_.groups, D = call_.dim, H = call_.heads, V = call_.value_dim;
  for (int64_t c = 0; c < lead_; ++c) {
    const int64_t slot = (windows_.before() * per_ - lead_ + c) % options_.summaries;
    of_keys(D).load(state, WindowPart::summary_keys, entry, slot, 1, keys_.data() + c * G * D);
    of_queries(V).load(state, WindowPart::summary_values, entry, slot, 1, values_.data() + c * H * V);
    log_counts_.data()[c] = state.part(WindowPart::summary_weights, entry)[static_cast<size_t>(slot)];
  }
}

ChunkedSequence EvaSequence::chunked(const Stretch& s) const {
  return {0, 0, first_chunk(s), s.mask(), equal_stretches(s.mask(), windows_.complete_of(s) * call_.window, call_.chunk)};
}

SoftmaxPart EvaSequence::chunk_part(const Stretch& s, const Array<3>& norms) const {
  return own_chunks_part(call_, means_.view(), s.k, s.v, s.valid, norms.view(), first_chunk(s), chunks_of(s));
}

void EvaSequence::summarise(const Stretch& s) {
  if (chunks_of(s) == 0) return;
  const Array<3> norms = windows_.key_norms(s);
  summarise_chunks(call_, s.q, s.k, s.v, s.valid, norms.view(), chunked(s),
                   {.means = means_.view(),
                    .keys = keys_.view(),
                    .values = values_.view(),
                    .log_z = log_z_.view(),
                    .log_counts = log_counts_.data()});
}

void EvaSequence::prepare_folds(const WindowState* state, int64_t entry, bool every_boundary) {
  const int64_t R = options_.features, G = call_.groups, H = call_.heads, V = call_.value_dim;
  folds_ = windows_.complete() - first_boundary_;
  weights_ = Array<3>({every_boundary ? folds_ + 1 : 2, R, G});  // heads that share weights read the first ones, and then write
  folded_ = Array<4>({every_boundary ? folds_ + 1 : 1, R, H, V});
  if (state == nullptr) {
    std::fill_n(weights_.data(), R * G, kNone);
    std::fill_n(folded_.data(), R * H * V, 0.0F);
  } else {
    of_keys(1).load(*state, WindowPart::folded_weights, entry, 0, R, weights_.data());
    of_queries(V).load(*state, WindowPart::folded_values, entry, 0, R, folded_.data());
  }
  if (folds_ == 0) return;
  fold_bias_ = Array<3>({1, chunks_, G});
  half_norms(keys_.view(), 1.0F, {{0, 0, chunks_, {}}}, fold_bias_.view(), call_.workers());
  for (int64_t c = 0; c < chunks_; ++c) {
    for (int64_t g = 0; g < G; ++g) fold_bias_.data()[c * G + g] += log_counts_.data()[c];
  }
}

void EvaSequence::fold() {
  const SampleStates partials{entries_from(weights_.view(), 1), entries_from(folded_.view(), 1)};
  for (int64_t member = 0; member < call_.group; ++member) {
    forward_in_slabs(fold_part(member), heads_of(partials.values, member), partials.log_weights);
  }
  merge_windows(partials, log_decay(), {weights_.view(), folded_.view()}, call_.workers());
}

SoftmaxPart EvaSequence::fold_part(int64_t member) const {
  SoftmaxPart part{.q = repeated(features_, folds_),
                   .k = windowed(keys_.view(), per_),
                   .v = windowed(heads_of(values_.view(), member), per_),
                   .key_bias = windowed(fold_bias_.view(), per_),
                   .workers = call_.workers()};
  const Visibility visible = Visibility::all(static_cast<size_t>(options_.features), static_cast<size_t>(per_));
  for (int64_t n = 0; n < folds_; ++n) part.sequences.push_back({n, 0, 0, visible});
  return part;
}

}  // namespace raffia::internal
