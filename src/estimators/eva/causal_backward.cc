// Causal EVA, backward.
#include "estimators/eva/causal.h"

namespace raffia::internal {

void EvaSequence::backward_all() const {
  const int64_t G = call_.groups, H = call_.heads, D = call_.dim, V = call_.value_dim, R = options_.features;
  const Workers workers = call_.workers();
  const Array<4> dkeys({1, chunks_, G, D}, 0.0F), dvalues({1, chunks_, H, V}, 0.0F);
  const Array<3> dweights({folds_ + 1, R, G}, 0.0F);
  const Array<4> dfolded({folds_ + 1, R, H, V}, 0.0F);
  for (const Stretch& s : windows_.stretches()) backward_stretch(s, dkeys, dvalues, dweights, dfolded);
  if (folds_ > 0) {
    merge_windows_backward({partial_weights_.view(), partial_values_.view()}, log_decay(), {weights_.view(), folded_.view()},
                           {dweights.view(), dfolded.view()}, workers);
    const Array<3> dbias({1, chunks_, G}, 0.0F);
    for (int64_t member = 0; member < call_.group; ++member) {
      backward_in_slabs(fold_part(member), heads_of(partial_values_.view(), member), partial_weights_.view(),
                        heads_of(entries_from(dfolded.view(), 1), member),
                        member == 0 ? View3(entries_from(dweights.view(), 1)) : View3(),
                        {.k = windowed(dkeys.view(), per_),
                         .v = windowed(heads_of(dvalues.view(), member), per_),
                         .key_bias = windowed(dbias.view(), per_)},
                        {.k = true});
    }
    add_half_norms_backward(keys_.view(), 1.0F, dbias.view(), {{0, 0, chunks_, {}}}, dkeys.view(), workers);
  }
  for (const Stretch& s : windows_.stretches()) summarise_backward(s, dkeys, dvalues);
}

void EvaSequence::backward_stretch(const Stretch& s, const Array<4>& dkeys, const Array<4>& dvalues, const Array<3>& dweights,
                                   const Array<4>& dfolded) const {
  backward(own_window_part(call_, s), s.whole_out, s.whole_logsumexp, s.dout, {}, {.q = s.dq, .k = s.dk, .v = s.dv});
  for (int64_t member = 0; member < call_.group && chunks_ > 0; ++member) {
    backward(summary_part(s, member), heads_of(s.whole_out, member), heads_of(s.whole_logsumexp, member),
             heads_of(s.dout, member), {},
             {.q = heads_of(s.dq, member), .k = dkeys.view(), .v = heads_of(dvalues.view(), member)}, {.q = true, .k = true});
  }
  const int64_t from = first_read(s);
  if (from >= windows_.windows_of(s)) return;
  const Array<3> norms = windows_.query_norms(s, -log_features());
  const int64_t boundary = s.window + from - first_boundary_;
  const Array<4> part_out({1, s.tokens, call_.heads, call_.value_dim});
  const Array<3> part_logsumexp({1, s.tokens, call_.heads}, kNone), dnorms({1, s.tokens, call_.heads});
  for (int64_t member = 0; member < call_.group; ++member) {
    const SoftmaxPart part = folded_part(s, from, norms, member);
    forward_in_slabs(part, windows_.windows_from(heads_of(part_out.view(), member), from),
                     windows_.windows_from(heads_of(part_logsumexp.view(), member), from));
    backward_in_slabs(part, windows_.windows_from(heads_of(s.whole_out, member), from),
                      windows_.windows_from(heads_of(s.whole_logsumexp, member), from),
                      windows_.windows_from(heads_of(s.dout, member), from), {},
                      {.q = windows_.windows_from(heads_of(s.dq, member), from),
                       .v = entries_from(heads_of(dfolded.view(), member), boundary),
                       .key_bias = entries_from(dweights.view(), boundary)},
                      {.q = true, .k = true});
  }
  query_bias_gradients(call_, s, part_out.view(), part_logsumexp.view(), dnorms.view());
  add_half_norms_backward(s.q, call_.scale, dnorms.view(), {{0, s.first, s.queries(), {}}}, s.dq, call_.workers());
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
