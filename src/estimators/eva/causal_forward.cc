// Causal EVA, forward.
#include "estimators/eva/causal.h"

namespace raffia::internal {

void EvaSequence::forward_all() const {
  if (!windows_.in_turn()) {
    for (const Stretch& s : windows_.stretches()) forward_stretch(s);
    return;
  }
  const RunningSamples::Shape shape = shape_of_folded();
  const size_t shared = TurnNorms::floats(call_, windows_.longest()) + RunningSamples::scratch_floats(shape);
  for_head_ranges(call_, RunningSamples::floats(shape) + packed_floats(), shared,
                  [&](int64_t begin, int64_t end, float* memory) { run_heads(begin, end, memory); });
}

void EvaSequence::forward_stretch(const Stretch& s) const {
  if (s.queries() == 0) return;
  forward(own_window_part(call_, s), s.out, s.logsumexp);
  if (chunks_ > 0) {
    for (int64_t member = 0; member < call_.group; ++member) {
      forward(summary_part(s, member), heads_of(s.out, member), heads_of(s.logsumexp, member), Start::resume);
    }
  }
  const int64_t from = first_read(s);
  if (from >= windows_.windows_of(s)) return;
  const Array<3> norms = windows_.query_norms(s, -log_features());
  for (int64_t member = 0; member < call_.group; ++member) {
    forward_in_slabs(folded_part(s, from, norms, member), windows_.windows_from(heads_of(s.out, member), from),
                     windows_.windows_from(heads_of(s.logsumexp, member), from), Start::resume);
  }
}

// Without features where nothing is folded.
RunningSamples::Shape EvaSequence::shape_of_folded() const {
  const bool has_folded = folds_ > 0 || (options_.summaries > 0 && windows_.before() > kept_);
  return {has_folded ? static_cast<size_t>(options_.features) : 0, static_cast<size_t>(call_.dim),
          static_cast<size_t>(call_.value_dim)};
}

size_t EvaSequence::packed_floats() const {
  return round_up(static_cast<size_t>(chunks_), kKeyBlock) *
         (static_cast<size_t>(call_.dim) + round_up(static_cast<size_t>(call_.value_dim), 16) + 1);
}

void EvaSequence::run_heads(int64_t begin, int64_t end, float* memory) const {
  const int64_t G = call_.groups, H = call_.heads, V = call_.value_dim;
  const RunningSamples::Shape shape = shape_of_folded();
  const TurnNorms norms(call_, windows_.longest(), memory);
  float* scratch = memory + TurnNorms::floats(call_, windows_.longest());
  float* own = scratch + RunningSamples::scratch_floats(shape);
  std::vector<RunningHead> heads;
  for (int64_t h = begin; h < end; ++h) {
    const int64_t g = h / call_.group;
    const RunningSamples folded(shape, rows_of<Rows>(features_, 0, 0, g), own, scratch);
    own += RunningSamples::floats(shape);
    heads.push_back({h, packed_summaries(h, own, scratch), folded});
    own += packed_floats();
    fill_folded(h, folded);
  }
  const int64_t turn = windows_per_turn(call_);
  for (const Stretch& s : windows_.stretches()) {
    for (int64_t j = 0; j < windows_.windows_of(s); j += turn) {
      const int64_t end_of_turn = std::min(j + turn, windows_.windows_of(s));
      for (size_t i = 0; i < heads.size(); ++i) {
        const int64_t next = i + 1 < heads.size() ? heads[i + 1].head : -1;
        run_turn(s, j, end_of_turn, norms, next, heads[i], scratch);
      }
    }
  }
  if (folds_ == 0) return;
  for (RunningHead& head : heads) {
    fold_until(folds_, head, scratch);
    for (int64_t r = 0; r < options_.features; ++r) {
      if (head.head % call_.group == 0) weights_.entry(1)[r * G + head.head / call_.group] = head.folded.log_weights()[r];
      head.folded.copy_value(static_cast<size_t>(r), folded_.data() + (r * H + head.head) * V);
    }
  }
}

PackedKeys EvaSequence::packed_summaries(int64_t h, float* memory, float* scratch) const {
  PackedKeys keys{.count = static_cast<size_t>(chunks_),
                  .dim = static_cast<size_t>(call_.dim),
                  .value_dim = static_cast<size_t>(call_.value_dim),
                  .k = memory};
  keys.v = keys.k + keys.blocks() * kKeyBlock * keys.dim;
  keys.bias = keys.v + keys.blocks() * kKeyBlock * keys.value_columns();
  const KeySource source{rows_of<Rows>(keys_.view(), 0, 0, h / call_.group),
                         rows_of<Rows>(values_.view(), 0, 0, h),
                         {.bias = {log_counts_.data(), DType::f32, 1, 1}}};
  for (size_t block = 0; block < keys.blocks(); ++block) pack_keys({.keys = keys, .block = block, .source = source}, scratch);
  return keys;
}

void EvaSequence::run_turn(const Stretch& s, int64_t begin, int64_t end, const TurnNorms& norms, int64_t next, RunningHead& head,
                           float* scratch) const {
  const int64_t W = call_.window, h = head.head;
  const int64_t first_query = std::max(begin * W, s.first), end_query = std::min(end * W, s.tokens);
  if (end_query <= first_query) return;
  const size_t first = static_cast<size_t>(first_query - s.first), last = static_cast<size_t>(end_query - s.first);
  own_window_turn(call_, s, h, first, last, scratch);
  if (next >= 0) prefetch_window(call_, s, next, begin * W, end_query);
  if (std::max(begin, first_read(s)) < end) {
    norms.fill_queries(call_, s, h, first_query, end_query, -log_features());
  }
  ForwardTask task{.keys = head.summaries,
                   .masked = true,
                   .visible = seen_summaries(s),
                   .first = first,
                   .scale = call_.root,
                   .q = rows_of<Rows>(s.q, 0, s.first, h),
                   .out = rows_of<MutRows>(s.out, 0, s.first, h),
                   .logsumexp = column_of<MutRows>(s.logsumexp, 0, s.first, h),
                   .resume = true};
  for (; chunks_ > 0 && task.first < last; task.first += task.count) {
    task.count = std::min(kQueryBlock, last - task.first);
    softmax_forward(task, scratch);
  }
  for (int64_t j = std::max(begin, first_read(s)); j < end; ++j) {
    const int64_t at = std::max(j * W, s.first), count = std::min((j + 1) * W, s.tokens) - at;
    if (count <= 0) continue;
    fold_until(s.window + j - first_boundary_, head, scratch);
    head.folded.read({.scale = call_.root,
                      .q = rows_of<Rows>(s.q, 0, at, h),
                      .query_bias = {norms.queries + (at - first_query), DType::f32, 1, 1},
                      .out = rows_of<MutRows>(s.out, 0, at, h),
                      .logsumexp = column_of<MutRows>(s.logsumexp, 0, at, h)},
                     static_cast<size_t>(count), static_cast<size_t>(options_.features), scratch);
  }
}

void EvaSequence::fill_folded(int64_t h, const RunningSamples& folded) const {
  const int64_t G = call_.groups, H = call_.heads, V = call_.value_dim;
  for (int64_t r = 0; r < static_cast<int64_t>(folded.packed().count); ++r) {
    folded.log_weights()[r] = weights_.data()[r * G + h / call_.group];
    folded.set_value(static_cast<size_t>(r), folded_.data() + (r * H + h) * V);
  }
}

KeySource EvaSequence::folded_keys(int64_t chunk, int64_t g, int64_t h) const {
  return {rows_of<Rows>(keys_.view(), 0, chunk, g),
          rows_of<Rows>(values_.view(), 0, chunk, h),
          {.bias = column_of<Rows>(fold_bias_.view(), 0, chunk, g)}};
}

void EvaSequence::fold_until(int64_t folds, RunningHead& head, float* scratch) const {
  const int64_t h = head.head, g = h / call_.group;
  for (; head.folds < folds; ++head.folds) {
    const int64_t chunk = head.folds * per_;
    const KeySource keys = folded_keys(chunk, g, h);
    head.folded.add(keys, static_cast<size_t>(per_), static_cast<size_t>(options_.features), 1.0F, log_decay(), nullptr, scratch);
  }
}

Visibility EvaSequence::seen_summaries(const Stretch& s) const {
  const int64_t max = options_.summaries == 0 ? INT64_MAX / 2 : options_.summaries;
  return Visibility::earlier(static_cast<size_t>(s.queries()), static_cast<size_t>(chunks_), call_.window, per_, first_chunk(s),
                             s.first, max);
}

SoftmaxPart EvaSequence::summary_part(const Stretch& s, int64_t member) const {
  return {.q = heads_of(s.q, member),
          .k = keys_.view(),
          .v = heads_of(values_.view(), member),
          .scale = call_.root,
          .key_bias = View3(log_counts_.data(), {1, chunks_, call_.groups}, {0, 1, 0}),
          .sequences = {{0, s.first, 0, seen_summaries(s)}},
          .workers = call_.workers()};
}

int64_t EvaSequence::first_read(const Stretch& s) const {
  if (options_.summaries == 0) return windows_.windows_of(s);
  return std::max<int64_t>(0, kept_ + 1 - windows_.before() - s.window);
}

SoftmaxPart EvaSequence::folded_part(const Stretch& s, int64_t from, const Array<3>& norms, int64_t member) const {
  const int64_t boundary = s.window + from - first_boundary_, count = windows_.windows_of(s);
  SoftmaxPart part{.q = windows_.windows_from(heads_of(s.q, member), from),
                   .k = repeated(features_, count - from),
                   .v = entries_from(heads_of(folded_.view(), member), boundary),
                   .scale = call_.root,
                   .key_bias = entries_from(weights_.view(), boundary),
                   .query_bias = windows_.windows_from(heads_of(norms.view(), member), from),
                   .workers = call_.workers()};
  for (int64_t j = from; j < count; ++j) part.sequences.push_back(windows_.queries_of(s, j, from, options_.features));
  return part;
}

}  // namespace raffia::internal
