// Causal LARA, backward: heads go through the windows for the gradients of queries, and back for those of keys and values.
#include "estimators/lara/causal.h"
#include "estimators/shared/sample_sweep.h"

namespace raffia::internal {

void LaraSequence::backward_all() const {
  const int64_t S = samples_, H = call_.heads, D = call_.dim;
  for (const Stretch& s : windows_.stretches()) {
    backward(own_window_part(call_, s), s.whole_out, s.whole_logsumexp, s.dout, {}, {.q = s.dq, .k = s.dk, .v = s.dv});
  }
  if (S == 0) return;
  const Array<4> dw({1, S, H, D}, 0.0F), dmeans({1, proposals_, H, D}, 0.0F);
  const Array<3> dmixtures({new_windows_ + 1, S, H}, 0.0F);
  sweep(dw, dmixtures);
  mix_backward(dmixtures, dw, dmeans);
  propose_backward(dw, dmeans);
}

// One query head on its way through the windows and back.
struct LaraSequence::SweepingHead {
  int64_t head;
  SampleSweep sweep;
  float* mixture;       // [S]: b_s of the boundary below, +inf where a sample takes no part
  float* dmixture;      // [S]: its gradient
  float* read_weights;  // [S]: not streaming: log z_s - b_s
  int64_t mixture_at = -1;
};

void LaraSequence::sweep(const Array<4>& dw, const Array<3>& dmixtures) const {
  const Workers workers = call_.workers();
  const int64_t S = samples_, H = call_.heads, D = call_.dim;
  SampleSweep::Shape shape{.samples = {static_cast<size_t>(S), static_cast<size_t>(D), static_cast<size_t>(call_.value_dim)},
                           .windows = static_cast<size_t>(windows_.complete())};
  for (const Stretch& s : windows_.stretches()) shape.tokens += static_cast<size_t>(s.tokens);
  const size_t rows = round_up(static_cast<size_t>(S), kKeyBlock), of_sweep = SampleSweep::floats(shape);
  const size_t of_head = of_sweep + 3 * rows, of_group = static_cast<size_t>(call_.group) * of_head;
  const Scratch memory(workers.count(), of_group + SampleSweep::scratch_floats(shape.samples));
  std::vector<Array<3>> key_norms, query_norms;
  for (const Stretch& s : windows_.stretches()) {
    key_norms.push_back(windows_.key_norms(s));
    query_norms.push_back(windows_.query_norms(s, 0.0F));
  }
  workers.run(call_.groups, memory, [&](int64_t g, float* floats) {
    float* scratch = floats + of_group;
    std::vector<SweepingHead> heads;
    for (int64_t h = g * call_.group; h < (g + 1) * call_.group; ++h, floats += of_head) {
      float* own = floats + of_sweep;
      heads.push_back(
          {h, SampleSweep(shape, rows_of<Rows>(w_.view(), 0, 0, h), floats, scratch), own, own + rows, own + 2 * rows});
      fill_samples(h, heads.back().sweep.samples());
      std::fill_n(own, 3 * rows, 0.0F);
    }
    sweep_group(heads, key_norms, query_norms, dmixtures, scratch);
    for (SweepingHead& head : heads) {
      for (int64_t s = 0; s < S; ++s) {
        std::copy_n(head.sweep.dw(static_cast<size_t>(s)), D, dw.data() + (s * H + head.head) * D);
      }
    }
  });
}

void LaraSequence::sweep_group(std::vector<SweepingHead>& heads, const std::vector<Array<3>>& key_norms,
                               const std::vector<Array<3>>& query_norms, const Array<3>& dmixtures, float* scratch) const {
  const std::vector<Stretch>& stretches = windows_.stretches();
  int64_t token = 0;
  for (size_t n = 0; n < stretches.size(); token += stretches[n++].tokens) {
    for (int64_t j = 0; j < windows_.windows_of(stretches[n]); ++j) {
      for (SweepingHead& head : heads) {
        sweep_right({stretches[n], j, token, key_norms[n].view(), query_norms[n].view()}, dmixtures, head, scratch);
      }
    }
  }
  for (size_t n = stretches.size(); n-- > 0;) {
    token -= stretches[n].tokens;
    for (int64_t j = windows_.windows_of(stretches[n]); j-- > 0;) {
      for (SweepingHead& head : heads) {
        sweep_left({stretches[n], j, token, key_norms[n].view(), query_norms[n].view()}, dmixtures, head, scratch);
      }
    }
  }
  for (SweepingHead& head : heads) move_mixture(-1, dmixtures, head);
}

SampleQueries LaraSequence::queries_of(const SweptWindow& at, const SweepingHead& head) const {
  const Stretch& s = at.stretch;
  const int64_t h = head.head, window = s.window + at.j, begin = std::max(at.j * call_.window, s.first);
  return {.present = static_cast<size_t>(samples_before(window)),
          .count = static_cast<size_t>(std::max<int64_t>(0, std::min((at.j + 1) * call_.window, s.tokens) - begin)),
          .scale = call_.root,
          .q = rows_of<Rows>(s.q, 0, begin, h),
          .dout = rows_of<Rows>(s.dout, 0, begin, h),
          .out = rows_of<Rows>(s.whole_out, 0, begin, h),
          .bias = column_of<Rows>(at.query_norms, 0, begin, h),
          .logsumexp = column_of<Rows>(s.whole_logsumexp, 0, begin, h),
          .log_weights = options_.streaming ? nullptr : head.read_weights,
          .dq = rows_of<MutRows>(s.dq, 0, begin, h),
          .dlog_weights = options_.streaming ? nullptr : head.dmixture};
}

SampleAdd LaraSequence::keys_of(const SweptWindow& at, const SweepingHead& head) const {
  const Stretch& s = at.stretch;
  const int64_t g = head.head / call_.group, begin = at.j * call_.window;
  return {.samples = head.sweep.samples().packed(),
          .present = static_cast<size_t>(options_.streaming ? samples_before(s.window + at.j + 1) : samples_),
          .keys = {rows_of<Rows>(s.k, 0, begin, g), rows_of<Rows>(s.v, 0, begin, g), mask_of(s.valid, at.key_norms, 0, begin, g)},
          .count = static_cast<size_t>(call_.window),
          .scale = call_.root,
          .mixture = options_.streaming ? head.mixture : nullptr};
}

// Not streaming: queries see log z_s - b_s of the proposals before their window.
void LaraSequence::set_read_weights(int64_t window, const Array<3>& dmixtures, SweepingHead& head) const {
  if (options_.streaming) return;
  move_mixture(mixture_before(window), dmixtures, head);
  const float* log_z = head.sweep.log_weights(static_cast<size_t>(window));
  for (int64_t s = 0; s < samples_; ++s) {
    const bool counts = log_z[s] != kNone && head.mixture[s] != -kNone;
    head.read_weights[s] = counts ? log_z[s] - head.mixture[s] : kNone;
  }
}

// The mixture of another boundary, after the gradient of the one before is stored. Mixtures are subtracted from log weights: what
// queries make of those (not streaming) has the other sign than what keys make of the mixture.
void LaraSequence::move_mixture(int64_t boundary, const Array<3>& dmixtures, SweepingHead& head) const {
  if (head.mixture_at == boundary) return;
  if (head.mixture_at >= 0) {
    float* to = dmixtures.entry(head.mixture_at) + head.head;
    const float sign = options_.streaming ? 1.0F : -1.0F;
    for (int64_t s = 0; s < samples_; ++s) to[s * call_.heads] += sign * head.dmixture[s];
    std::fill_n(head.dmixture, samples_, 0.0F);
  }
  head.mixture_at = boundary;
  if (boundary >= 0) fill_mixture(boundary, head.head, head.mixture);
}

void LaraSequence::sweep_right(const SweptWindow& at, const Array<3>& dmixtures, SweepingHead& head, float* scratch) const {
  const int64_t window = at.stretch.window + at.j;
  head.sweep.mark(static_cast<size_t>(window));
  set_read_weights(window, dmixtures, head);
  const SampleQueries queries = queries_of(at, head);
  if (queries.count > 0) head.sweep.read(queries, at.token_of_queries(call_.window), static_cast<size_t>(window), scratch);
  if (at.j >= windows_.complete_of(at.stretch)) return;
  if (options_.streaming) move_mixture(mixture_before(window + 1), dmixtures, head);
  head.sweep.add(keys_of(at, head), static_cast<size_t>(window), scratch);
}

void LaraSequence::sweep_left(const SweptWindow& at, const Array<3>& dmixtures, SweepingHead& head, float* scratch) const {
  const Stretch& s = at.stretch;
  const int64_t window = s.window + at.j, begin = at.j * call_.window, g = head.head / call_.group;
  if (at.j < windows_.complete_of(s)) {
    if (options_.streaming) move_mixture(mixture_before(window + 1), dmixtures, head);
    head.sweep.add_backward({.add = keys_of(at, head),
                             .dk = rows_of<MutRows>(s.dk, 0, begin, g),
                             .dv = rows_of<MutRows>(s.dv, 0, begin, g),
                             .dmixture = options_.streaming ? head.dmixture : nullptr},
                            static_cast<size_t>(window), scratch);
  }
  set_read_weights(window, dmixtures, head);
  const SampleQueries queries = queries_of(at, head);
  if (queries.count > 0) head.sweep.gather(queries, at.token_of_queries(call_.window), static_cast<size_t>(window), scratch);
}

// The mixture of a boundary is a log weight: its gradient joins that of later boundaries on the way back through the windows.
void LaraSequence::mix_backward(const Array<3>& dmixtures, const Array<4>& dw, const Array<4>& dmeans) const {
  if (new_windows_ == 0) return;
  const Workers workers = call_.workers();
  const int64_t S = samples_, H = call_.heads, D = call_.dim, old_samples = old_windows_ * per_;
  // Boundary 0 of the sweep comes before all proposals, boundary n + 1 is that of mixture n.
  const SampleSweep::Shape shape{.samples = {static_cast<size_t>(S), static_cast<size_t>(D), 0},
                                 .windows = static_cast<size_t>(new_windows_ + 1)};
  const size_t floats = SampleSweep::floats(shape);
  const Scratch memory(workers.count(), floats + SampleSweep::scratch_floats(shape.samples));
  workers.run(H, memory, [&](int64_t h, float* own) {
    const SampleSweep sweep(shape, rows_of<Rows>(w_.view(), 0, 0, h), own, own + floats);
    const auto add = [&](int64_t first, int64_t count, int64_t boundary) {
      sweep.add_backward({.add = {.samples = sweep.samples().packed(),
                                  .present = static_cast<size_t>(S),
                                  .keys = proposals_from(first, h),
                                  .count = static_cast<size_t>(count)},
                          .dk = rows_of<MutRows>(dmeans.view(), 0, first, h)},
                         static_cast<size_t>(boundary), own + floats);
    };
    sweep.mark(0);
    for (int64_t n = 0; n <= new_windows_; ++n) {
      for (int64_t s = 0; s < S; ++s) sweep.samples().log_weights()[s] = mixtures_.entry(n)[s * H + h];
      sweep.mark(static_cast<size_t>(n + 1));
    }
    for (int64_t n = new_windows_; n-- > 0;) {
      sweep.receive(dmixtures.entry(n + 1) + h, H);
      add(old_windows_ * call_.chunks() + n * call_.chunks(), call_.chunks(), n + 1);
    }
    if (old_windows_ > 0) {  // mixtures of old samples are constants
      sweep.receive(dmixtures.entry(0) + h, H);
      for (int64_t s = 0; s < S; ++s) {
        sweep.samples().log_weights()[s] = s < old_samples ? kNone : mixtures_.data()[s * H + h];
      }
      sweep.mark(1);
      add(0, old_windows_ * call_.chunks(), 0);
    }
    for (int64_t s = 0; s < S; ++s) LaraSequence::add(sweep.dw(static_cast<size_t>(s)), dw.data() + (s * H + h) * D, D);
  });
}

void LaraSequence::propose_backward(const Array<4>& dw, const Array<4>& dmeans) const {
  const int64_t H = call_.heads, G = call_.groups, D = call_.dim;
  const Array<4> dkey_means({1, proposals_, G, D}, 0.0F);
  for (int64_t s = 0; s < samples_; ++s) {
    add(dw.data() + s * H * D, dmeans.data() + s / options_.samples_per_proposal * H * D, H * D);
  }
  for (int64_t c = 0; c < proposals_; ++c) {
    for (int64_t h = 0; h < H; ++h) {
      add(dmeans.data() + (c * H + h) * D, dkey_means.data() + (c * G + h / call_.group) * D, D);
    }
  }
  for (const Stretch& s : windows_.stretches()) {
    if (proposing(s) == 0) continue;
    const std::vector<ChunkedSequence> tokens = {chunked(s)};
    add_chunk_means_backward(dmeans.view(), call_.root, tokens, s.dq, call_.workers());
    add_chunk_means_backward(dkey_means.view(), call_.root, tokens, s.dk, call_.workers());
  }
}

}  // namespace raffia::internal
