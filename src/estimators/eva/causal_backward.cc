// Causal EVA, backward.
#include <algorithm>

#include "estimators/eva/causal.h"

namespace raffia::internal {

void EvaSequence::backward_all() const {
  const Array<4> dkeys({1, chunks_, call_.groups, call_.dim}, 0.0F), dvalues({1, chunks_, call_.heads, call_.value_dim}, 0.0F);
  for (const Stretch& s : windows_.stretches()) backward_stretch(s, dkeys, dvalues);
  sweep(dkeys, dvalues);
  for (const Stretch& s : windows_.stretches()) summarise_backward(s, dkeys, dvalues);
}

void EvaSequence::backward_stretch(const Stretch& s, const Array<4>& dkeys, const Array<4>& dvalues) const {
  backward(own_window_part(call_, s), s.whole_out, s.whole_logsumexp, s.dout, {}, {.q = s.dq, .k = s.dk, .v = s.dv});
  for (int64_t member = 0; member < call_.group && chunks_ > 0; ++member) {
    backward(summary_part(s, member), heads_of(s.whole_out, member), heads_of(s.whole_logsumexp, member),
             heads_of(s.dout, member), {},
             {.q = heads_of(s.dq, member), .k = dkeys.view(), .v = heads_of(dvalues.view(), member)}, {.q = true, .k = true});
  }
}

// The folded past: heads go through the windows for the gradients of queries, and back for those of the summaries.
void EvaSequence::sweep(const Array<4>& dkeys, const Array<4>& dvalues) const {
  const std::vector<Stretch>& stretches = windows_.stretches();
  if (std::ranges::none_of(stretches, [&](const Stretch& s) { return first_read(s) < windows_.windows_of(s); })) return;
  SampleSweep::Shape shape{.samples = shape_of_folded(), .windows = static_cast<size_t>(folds_), .moves = false};
  std::vector<Array<3>> norms;
  for (const Stretch& s : stretches) {
    shape.tokens += static_cast<size_t>(s.tokens);
    norms.push_back(windows_.query_norms(s, -log_features()));
  }
  const Workers workers = call_.workers();
  const size_t floats = SampleSweep::floats(shape);
  const Scratch memory(workers.count(), floats + SampleSweep::scratch_floats(shape.samples));
  workers.run(call_.groups, memory, [&](int64_t g, float* own) {
    for (int64_t h = g * call_.group; h < (g + 1) * call_.group; ++h) {
      const SampleSweep folded(shape, rows_of<Rows>(features_, 0, 0, g), own, own + floats);
      fill_folded(h, folded.samples());
      sweep_head({h, folded}, norms, dkeys, dvalues, own + floats);
    }
  });
}

void EvaSequence::sweep_head(const SweepingHead& head, const std::vector<Array<3>>& norms, const Array<4>& dkeys,
                             const Array<4>& dvalues, float* scratch) const {
  const std::vector<Stretch>& stretches = windows_.stretches();
  int64_t folds = 0, token = 0;  // folds: that the sweep has come past
  head.sweep.mark(0);
  for (size_t n = 0; n < stretches.size(); token += stretches[n++].tokens) {
    const Stretch& s = stretches[n];
    for (int64_t j = first_read(s); j < windows_.windows_of(s); ++j) {
      const int64_t boundary = s.window + j - first_boundary_;
      for (; folds < boundary; ++folds) head.sweep.add(fold_of(folds, head), static_cast<size_t>(folds), scratch);
      const SampleQueries queries = queries_of(s, j, norms[n].view(), head.head);
      head.sweep.read(queries, static_cast<size_t>(token + std::max(j * call_.window, s.first)), static_cast<size_t>(boundary),
                      scratch);
    }
  }
  const auto back_to = [&](int64_t boundary) {
    while (folds > boundary) {
      const int64_t chunk = --folds * per_;
      head.sweep.add_backward({.add = fold_of(folds, head),
                               .dk = rows_of<MutRows>(dkeys.view(), 0, chunk, head.head / call_.group),
                               .dv = rows_of<MutRows>(dvalues.view(), 0, chunk, head.head)},
                              static_cast<size_t>(folds), scratch);
    }
  };
  for (size_t n = stretches.size(); n-- > 0;) {
    const Stretch& s = stretches[n];
    token -= s.tokens;
    for (int64_t j = windows_.windows_of(s); j-- > first_read(s);) {
      const int64_t boundary = s.window + j - first_boundary_;
      back_to(boundary);
      const SampleQueries queries = queries_of(s, j, norms[n].view(), head.head);
      head.sweep.gather(queries, static_cast<size_t>(token + std::max(j * call_.window, s.first)), static_cast<size_t>(boundary),
                        scratch);
    }
  }
  back_to(0);
}

SampleAdd EvaSequence::fold_of(int64_t fold, const SweepingHead& head) const {
  const int64_t g = head.head / call_.group, chunk = fold * per_;
  return {.samples = head.sweep.samples().packed(),
          .present = static_cast<size_t>(options_.features),
          .keys = folded_keys(chunk, g, head.head),
          .count = static_cast<size_t>(per_),
          .log_decay = log_decay()};
}

SampleQueries EvaSequence::queries_of(const Stretch& s, int64_t j, View3 norms, int64_t h) const {
  const int64_t begin = std::max(j * call_.window, s.first);
  return {.present = static_cast<size_t>(options_.features),
          .count = static_cast<size_t>(std::max<int64_t>(0, std::min((j + 1) * call_.window, s.tokens) - begin)),
          .scale = call_.root,
          .q = rows_of<Rows>(s.q, 0, begin, h),
          .dout = rows_of<Rows>(s.dout, 0, begin, h),
          .out = rows_of<Rows>(s.whole_out, 0, begin, h),
          .bias = column_of<Rows>(norms, 0, begin, h),
          .logsumexp = column_of<Rows>(s.whole_logsumexp, 0, begin, h),
          .dq = rows_of<MutRows>(s.dq, 0, begin, h)};
}

void EvaSequence::summarise_backward(const Stretch& s, const Array<4>& dkeys, const Array<4>& dvalues) const {
  if (chunks_of(s) == 0) return;
  const int64_t H = call_.heads, G = call_.groups, D = call_.dim;
  const Workers workers = call_.workers();
  const Array<3> norms = windows_.key_norms(s);
  const Array<3> dnorms({1, s.tokens, G}, 0.0F);
  const Array<4> dmeans({1, chunks_, H, D});
  backward(chunk_part(s, norms), values_.view(), log_z_.view(), dvalues.view(), {},
           {.q = dmeans.view(), .k = s.dk, .v = s.dv, .key_bias = dnorms.view()}, {.k = true});
  for (int64_t c = first_chunk(s); c < first_chunk(s) + chunks_of(s); ++c) {
    for (int64_t h = 0; h < H; ++h) {
      const float* dmean = dmeans.data() + (c * H + h) * D;
      float* dkey = dkeys.data() + (c * G + h / call_.group) * D;
      for (int64_t i = 0; i < D; ++i) dkey[i] += dmean[i];
    }
  }
  const std::vector<ChunkedSequence> chunked_tokens = {chunked(s)};
  add_chunk_means_backward(dmeans.view(), call_.root, chunked_tokens, s.dq, workers);
  add_chunk_means_backward(dkeys.view(), call_.root, chunked_tokens, s.dk, workers);
  add_half_norms_backward(s.k, call_.scale, dnorms.view(), windows_.complete_tokens(s), s.dk, workers);
}

}  // namespace raffia::internal
