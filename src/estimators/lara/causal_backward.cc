// Causal LARA, backward.
#include "estimators/lara/causal.h"

namespace raffia::internal {

void LaraSequence::backward_all() const {
  const int64_t S = samples_, H = call_.heads, D = call_.dim, V = call_.value_dim, complete = windows_.complete();
  const Array<4> dw({1, S, H, D}, 0.0F), dvalues({complete + 1, S, H, V}, 0.0F);
  const Array<3> dweights({complete + 1, S, H}, 0.0F), dmixtures({new_windows_ + 1, S, H}, 0.0F);
  for (const Stretch& s : windows_.stretches()) backward_stretch(s, dw, dweights, dvalues);
  if (S == 0) return;
  const auto to_mixtures = [&](int64_t boundary, int64_t mixture) {
    const float* from = dweights.entry(boundary);
    float* to = dmixtures.entry(mixture);
    for (int64_t i = 0; i < S * H; ++i) to[i] -= from[i];
  };
  if (!options_.streaming) {
    for (int64_t j = 1; j <= complete; ++j) to_mixtures(j, mixture_before(j));
  }
  merge_windows_backward({partial_weights_.view(), partial_values_.view()}, 0.0F, {weights_.view(), values_.view()},
                         {dweights.view(), dvalues.view()}, call_.workers());
  if (options_.streaming) {
    for (int64_t j = 1; j <= complete; ++j) to_mixtures(j, mixture_before(j));
  }
  for (const Stretch& s : windows_.stretches()) read_keys_backward(s, dw, dweights, dvalues);
  const Array<4> dmeans({1, proposals_, H, D}, 0.0F);
  mix_backward(dmixtures, dw, dmeans);
  propose_backward(dw, dmeans);
}

void LaraSequence::backward_stretch(const Stretch& s, const Array<4>& dw, const Array<3>& dweights,
                                    const Array<4>& dvalues) const {
  backward(own_window_part(call_, s), s.whole_out, s.whole_logsumexp, s.dout, {}, {.q = s.dq, .k = s.dk, .v = s.dv});
  const int64_t from = first_read(s), count = windows_.windows_of(s);
  if (from >= count) return;
  const Array<3> norms = windows_.query_norms(s, 0.0F);
  const SoftmaxPart part = samples_part(s, from, norms);
  const Array<4> part_out({1, s.tokens, call_.heads, call_.value_dim});
  const Array<3> part_logsumexp({1, s.tokens, call_.heads}, kNone), dnorms({1, s.tokens, call_.heads});
  forward_in_slabs(part, windows_.windows_from(part_out.view(), from), windows_.windows_from(part_logsumexp.view(), from));
  query_bias_gradients(call_, s, part_out.view(), part_logsumexp.view(), dnorms.view());
  const Array<4> shares({count - from, samples_, call_.heads, call_.dim}, 0.0F);
  backward_in_slabs(part, windows_.windows_from(s.whole_out, from), windows_.windows_from(s.whole_logsumexp, from),
                    windows_.windows_from(s.dout, from), {},
                    {.q = windows_.windows_from(s.dq, from),
                     .k = shares.view(),
                     .v = entries_from(dvalues.view(), s.window + from),
                     .key_bias = entries_from(dweights.view(), s.window + from)},
                    {.q = true, .k = true});
  add_shares(shares, dw);
  add_half_norms_backward(s.q, call_.scale, dnorms.view(), {{0, s.first, s.queries(), {}}}, s.dq, call_.workers());
}

void LaraSequence::read_keys_backward(const Stretch& s, const Array<4>& dw, const Array<3>& dweights,
                                      const Array<4>& dvalues) const {
  const int64_t count = windows_.complete_of(s);
  if (count == 0) return;
  const Array<3> norms = windows_.key_norms(s);
  const Array<3> dnorms({1, s.tokens, call_.groups}, 0.0F);
  const Array<4> shares({count, samples_, call_.heads, call_.dim}, 0.0F);
  backward_in_slabs(keys_part(s, norms), entries_from(partial_values_.view(), s.window), entries_from(log_z_.view(), s.window),
                    entries_from(dvalues.view(), s.window + 1), entries_from(dweights.view(), s.window + 1),
                    {.q = shares.view(),
                     .k = windowed(s.dk, call_.window),
                     .v = windowed(s.dv, call_.window),
                     .key_bias = windowed(dnorms.view(), call_.window)},
                    {.k = true});
  add_shares(shares, dw);
  add_half_norms_backward(s.k, call_.scale, dnorms.view(), windows_.complete_tokens(s), s.dk, call_.workers());
}

void LaraSequence::mix_backward(const Array<3>& dmixtures, const Array<4>& dw, const Array<4>& dmeans) const {
  if (new_windows_ == 0) return;
  const int64_t H = call_.heads, D = call_.dim;
  merge_windows_backward({mixture_partials_.view(), nothing(new_windows_, samples_)}, 0.0F,
                         {mixtures_.view(), nothing(new_windows_ + 1, samples_)},
                         {dmixtures.view(), nothing(new_windows_ + 1, samples_)}, call_.workers());
  const Array<4> shares({new_windows_, samples_, H, D});
  const Array<3> dbias({1, proposals_, H}, 0.0F);
  backward_in_slabs(mixture_part(), nothing(new_windows_, samples_), mixture_partials_.view(), nothing(new_windows_, samples_),
                    entries_from(dmixtures.view(), 1),
                    {.q = shares.view(),
                     .k = entries_from(windowed(dmeans.view(), call_.chunks()), old_windows_),
                     .key_bias = entries_from(windowed(dbias.view(), call_.chunks()), old_windows_)},
                    {.k = true});
  add_shares(shares, dw);
  if (old_windows_ > 0) {
    const Array<3> old_logsumexp({1, samples_, H});
    std::copy_n(mixtures_.data(), samples_ * H, old_logsumexp.data());
    backward(old_mixture_part(), nothing(1, samples_), old_logsumexp.view(), nothing(1, samples_),
             View3(dmixtures.data(), {1, samples_, H}), {.q = dw.view()}, {.q = true});
  }
  const int64_t old_proposals = old_windows_ * call_.chunks();
  add_half_norms_backward(means_.view(), 1.0F, dbias.view(), {{0, old_proposals, proposals_ - old_proposals, {}}}, dmeans.view(),
                          call_.workers());
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

void LaraSequence::add_shares(const Array<4>& shares, const Array<4>& dw) const {
  const Workers workers = call_.workers();
  const int64_t row = call_.heads * call_.dim;
  workers.run(samples_, Scratch(workers.count(), 0), [&](int64_t s, float*) {
    for (int64_t n = 0; n < shares.view().extent(0); ++n) add(shares.entry(n) + s * row, dw.data() + s * row, row);
  });
}

}  // namespace raffia::internal
