// Causal LARA, forward: keys are added to the samples of each window, which later windows read.
#include "estimators/lara/causal.h"

namespace raffia::internal {

void LaraSequence::forward_all() const {
  if (!runs_ || samples_ == 0) {
    for (const Stretch& s : windows_.stretches()) forward_stretch(s);
    return;
  }
  const RunningSamples::Shape shape = shape_of_samples();
  const size_t of_head = RunningSamples::floats(shape) + round_up(shape.samples, 16);
  const size_t shared = TurnNorms::floats(call_, windows_.longest()) + RunningSamples::scratch_floats(shape);
  for_head_ranges(call_, of_head, shared, [&](int64_t begin, int64_t end, float* memory) { run_heads(begin, end, memory); });
}

void LaraSequence::forward_stretch(const Stretch& s) const {
  if (s.queries() == 0) return;
  forward(own_window_part(call_, s), s.out, s.logsumexp);
  const int64_t from = first_read(s);
  if (from >= windows_.windows_of(s)) return;
  const Array<3> norms = windows_.query_norms(s, 0.0F);
  forward_in_slabs(samples_part(s, from, norms), windows_.windows_from(s.out, from), windows_.windows_from(s.logsumexp, from),
                   Start::resume);
}

RunningSamples::Shape LaraSequence::shape_of_samples() const {
  return {static_cast<size_t>(samples_), static_cast<size_t>(call_.dim), static_cast<size_t>(call_.value_dim)};
}

void LaraSequence::run_heads(int64_t begin, int64_t end, float* memory) const {
  const int64_t S = samples_, H = call_.heads, V = call_.value_dim;
  const RunningSamples::Shape shape = shape_of_samples();
  const TurnNorms norms(call_, windows_.longest(), memory);
  float* scratch = memory + TurnNorms::floats(call_, windows_.longest());
  float* own = scratch + RunningSamples::scratch_floats(shape);
  std::vector<RunningHead> heads;
  for (int64_t h = begin; h < end; ++h) {
    const RunningSamples samples(shape, rows_of<Rows>(w_.view(), 0, 0, h), own, scratch);
    fill_samples(h, samples);
    own += RunningSamples::floats(shape);
    heads.push_back({h, samples, own});
    own += round_up(shape.samples, 16);
  }
  const int64_t turn = windows_per_turn(call_);
  for (const Stretch& s : windows_.stretches()) {
    for (int64_t j = 0; j < windows_.windows_of(s); j += turn) {
      for (size_t i = 0; i < heads.size(); ++i) {
        const int64_t next = i + 1 < heads.size() ? heads[i + 1].head : -1;
        run_turn(s, j, std::min(j + turn, windows_.windows_of(s)), norms, next, heads[i], scratch);
      }
    }
  }
  for (const RunningHead& head : heads) {
    for (int64_t s = 0; s < S; ++s) {
      weights_.data()[s * H + head.head] = head.samples.log_weights()[s];
      head.samples.copy_value(static_cast<size_t>(s), values_.data() + (s * H + head.head) * V);
    }
  }
}

void LaraSequence::run_turn(const Stretch& s, int64_t begin, int64_t end, const TurnNorms& norms, int64_t next, RunningHead& head,
                            float* scratch) const {
  const int64_t W = call_.window, h = head.head, g = h / call_.group;
  const int64_t first_query = std::max(begin * W, s.first), end_query = std::min(end * W, s.tokens);
  const int64_t first_key = begin * W, end_key = std::min(end, windows_.complete_of(s)) * W;
  norms.fill_keys(call_, s, g, first_key, end_key);
  norms.fill_queries(call_, s, h, first_query, end_query, 0.0F);
  if (end_query > first_query) {
    own_window_turn(call_, s, h, static_cast<size_t>(first_query - s.first), static_cast<size_t>(end_query - s.first), scratch);
  }
  for (int64_t j = begin; j < end; ++j) {
    const int64_t first = std::max(j * W, s.first), count = std::min((j + 1) * W, s.tokens) - first;
    const int64_t present = samples_before(s.window + j);
    if (next >= 0) prefetch_window(call_, s, next, j * W, std::min((j + 1) * W, s.tokens));
    if (present > 0 && count > 0) {
      head.samples.read({.scale = call_.root,
                         .q = rows_of<Rows>(s.q, 0, first, h),
                         .query_bias = {norms.queries + (first - first_query), DType::f32, 1, 1},
                         .out = rows_of<MutRows>(s.out, 0, first, h),
                         .logsumexp = column_of<MutRows>(s.logsumexp, 0, first, h)},
                        static_cast<size_t>(count), static_cast<size_t>(present), scratch);
    }
    if (j >= windows_.complete_of(s)) continue;
    set_mixture(mixture_before(s.window + j + 1), head);
    KeySource keys{rows_of<Rows>(s.k, 0, j * W, g), rows_of<Rows>(s.v, 0, j * W, g), mask_of(s.valid, {}, 0, j * W, g)};
    keys.mask.bias = {norms.keys + (j * W - first_key), DType::f32, 1, 1};
    head.samples.add(keys, static_cast<size_t>(W), static_cast<size_t>(samples_before(s.window + j + 1)), call_.root, 0.0F,
                     head.mixture, scratch);
  }
}

void LaraSequence::fill_mixture(int64_t boundary, int64_t h, float* mixture) const {
  const float* b = mixtures_.entry(boundary);
  for (int64_t s = 0; s < samples_; ++s) {
    const float of_sample = b[s * call_.heads + h];
    mixture[s] = of_sample != kNone && is_alive(s) ? of_sample : -kNone;
  }
}

void LaraSequence::set_mixture(int64_t boundary, RunningHead& head) const {
  if (head.mixture_at == boundary) return;
  head.mixture_at = boundary;
  fill_mixture(boundary, head.head, head.mixture);
}

void LaraSequence::fill_samples(int64_t h, const RunningSamples& samples) const {
  const int64_t H = call_.heads, V = call_.value_dim;
  for (int64_t s = 0; s < samples_; ++s) {
    samples.log_weights()[s] = weights_.data()[s * H + h];
    samples.set_value(static_cast<size_t>(s), values_.data() + (s * H + h) * V);
  }
}

void LaraSequence::load_samples(const WindowState* state, int64_t entry) const {
  const int64_t old_samples = old_windows_ * per_;
  if (old_samples == 0) return;
  rows_of_heads(1).load(*state, WindowPart::summary_weights, entry, 0, old_samples, weights_.data());
  rows_of_heads(call_.value_dim).load(*state, WindowPart::summary_values, entry, 0, old_samples, values_.data());
}

void LaraSequence::read_keys(const WindowState* state, int64_t entry) {
  const int64_t S = samples_, H = call_.heads, V = call_.value_dim, complete = windows_.complete();
  weights_ = Array<3>({complete + 1, S, H}, kNone);
  values_ = Array<4>({complete + 1, S, H, V});
  std::fill_n(values_.data(), S * H * V, 0.0F);
  load_samples(state, entry);
  SampleStates partials = {entries_from(weights_.view(), 1), entries_from(values_.view(), 1)};
  for (const Stretch& s : windows_.stretches()) {
    if (windows_.complete_of(s) == 0) continue;
    const Array<3> norms = windows_.key_norms(s);
    forward_in_slabs(keys_part(s, norms), entries_from(partials.values, s.window), entries_from(partials.log_weights, s.window));
  }
  if (options_.streaming) {
    for (int64_t j = 0; j < complete; ++j) {
      subtract_mixture(mixture_before(j + 1), static_cast<float*>(partials.log_weights.data()) + j * S * H);
    }
  }
  merge_windows(partials, 0.0F, {weights_.view(), values_.view()}, call_.workers());
  if (!options_.streaming) {
    full_weights_ = Array<3>({complete + 1, S, H});
    std::copy_n(weights_.data(), weights_.size(), full_weights_.data());
    for (int64_t j = 0; j <= complete; ++j) subtract_mixture(mixture_before(j), full_weights_.entry(j));
  }
}

void LaraSequence::subtract_mixture(int64_t mixture, float* log_weights) const {
  const int64_t H = call_.heads;
  const float* b = mixtures_.entry(mixture);
  for (int64_t i = 0; i < samples_ * H; ++i) {
    const bool counts = log_weights[i] != kNone && b[i] != kNone && is_alive(i / H);
    log_weights[i] = counts ? log_weights[i] - b[i] : kNone;
  }
}

SoftmaxPart LaraSequence::keys_part(const Stretch& s, const Array<3>& norms) const {
  const int64_t count = windows_.complete_of(s);
  SoftmaxPart part{.q = repeated(View4(w_.view()), count),
                   .k = windowed(s.k, call_.window),
                   .v = windowed(s.v, call_.window),
                   .scale = call_.root,
                   .key_bias = windowed(View3(norms.view()), call_.window),
                   .valid = windowed(s.valid, call_.window),
                   .workers = call_.workers()};
  for (int64_t j = 0; j < count; ++j) {
    const int64_t present = options_.streaming ? samples_before(s.window + j + 1) : samples_;
    part.sequences.push_back({j, 0, 0, Visibility::all(static_cast<size_t>(present), static_cast<size_t>(call_.window))});
  }
  return part;
}

SoftmaxPart LaraSequence::samples_part(const Stretch& s, int64_t from, const Array<3>& norms) const {
  const int64_t count = windows_.windows_of(s);
  const Array<3>& weights = options_.streaming ? weights_ : full_weights_;
  SoftmaxPart part{.q = windows_.windows_from(s.q, from),
                   .k = repeated(View4(w_.view()), count - from),
                   .v = entries_from(View4(values_.view()), s.window + from),
                   .scale = call_.root,
                   .key_bias = entries_from(View3(weights.view()), s.window + from),
                   .query_bias = windows_.windows_from(View3(norms.view()), from),
                   .workers = call_.workers()};
  for (int64_t j = from; j < count; ++j) {
    part.sequences.push_back(windows_.queries_of(s, j, from, samples_before(s.window + j)));
  }
  return part;
}

}  // namespace raffia::internal
