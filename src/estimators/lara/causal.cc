// Causal LARA: one softmax over the exact keys in a query's own window and samples for all earlier windows.
//
//   own window   part 1 of the softmax, as in every windowed op
//   proposals    mu_c of every chunk of the first windows; samples w_s = mu_c + e_s
//   mixtures     b_s = log per + logsumexp_c (w_s . mu_c - |mu_c|^2 / 2), merged window by window as proposals come
//   samples      each over the keys of each window: log z_s, f_s; merged window by window (streaming: log z_s - b_s of then)
//   part 2       queries over the samples of windows before theirs, with the weights and values of that boundary
//
// A forward pass of several heads goes through the windows with all of them in turn and keeps the samples of one boundary. That
// of a single head, whose windows are divided between threads, keeps O(T / window S V) of samples at boundaries besides O(T)
// numbers. The backward pass, which computes them again (its record is only logsumexp), keeps O(T / window S (D + V)) per head,
// for one sequence at a time.
#include <cmath>
#include <optional>

#include "core/check.h"
#include "core/trace.h"
#include "core/window_layout.h"
#include "estimators/shared/drawn_rows.h"
#include "estimators/shared/running_samples.h"
#include "estimators/shared/sample_states.h"
#include "estimators/shared/windows.h"
#include "raffia/lara.h"

namespace raffia {

using namespace internal;
namespace {

int64_t samples_of_window(const CausalLaraOptions& options) {
  return options.window / options.chunk * options.samples_per_proposal;
}
int64_t proposing_windows(const CausalLaraOptions& options) { return options.samples / samples_of_window(options); }

void require_options(const char* function, const CausalLaraOptions& options) {
  require_windows(function, options.window, options.chunk);
  require(options.samples <= kMaxOfAWindow, "{}: samples is {}, expected at most {}", function, options.samples, kMaxOfAWindow);
  require(options.samples_per_proposal >= 1, "{}: samples_per_proposal is {}, expected at least 1", function,
          options.samples_per_proposal);
  require(options.samples / (options.window / options.chunk) >= options.samples_per_proposal,
          "{}: samples is {}, expected at least window / chunk * samples_per_proposal, {} * {} (those of one window)", function,
          options.samples, options.window / options.chunk, options.samples_per_proposal);
}

WindowStateShape shape_of(int64_t batch, int64_t query_heads, int64_t heads, int64_t dim, int64_t value_dim,
                          const CausalLaraOptions& options) {
  const int64_t windows = proposing_windows(options);
  return {
      .kind = WindowKind::lara,
      .batch = batch,
      .query_heads = query_heads,
      .heads = heads,
      .dim = dim,
      .value_dim = value_dim,
      .window = options.window,
      .summaries = windows * samples_of_window(options),
      .proposals = windows * (options.window / options.chunk),
      .chunk = options.chunk,
      .recipe = recipe_of({options.seed, options.layer, options.draw, static_cast<uint64_t>(options.draws),
                           bits_of(scale_or_default(options.scale, dim)), static_cast<uint64_t>(options.samples_per_proposal)})};
}

// e_s [S, G, D], of the first `count` samples.
DrawnRows noise_of(const WindowedCall& call, const CausalLaraOptions& options, int64_t count) {
  return DrawnRows(call.function, {options.seed, options.layer, options.draw, options.draws, count, call.groups, call.dim});
}
// The number of samples that the sequences of a call draw.
DrawnRows noise_of(const WindowedCall& call, const CausalLaraOptions& options) {
  int64_t windows = 0;
  for (const Sequence& s : call.sequences) windows = std::max(windows, s.keys / options.window);
  return noise_of(call, options, std::min(windows, proposing_windows(options)) * samples_of_window(options));
}

// The samples of one sequence, those of the state first.
class LaraSequence {
 public:
  // `noise`: e_s [S, G, D] for all heads of the whole call, read where windows propose. `keep_partials`: for the backward pass.
  LaraSequence(const WindowedCall& call, const CausalLaraOptions& options, const float* noise, const SequenceWindows& windows,
               const WindowState* state, int64_t entry, bool keep_partials)
      : call_(call),
        options_(options),
        windows_(windows),
        keep_partials_(keep_partials),
        runs_(options.streaming && !keep_partials && windows.in_turn()),
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
    if (runs_) {
      weights_ = Array<3>({1, samples_, call.heads}, kNone);
      values_ = Array<4>({1, samples_, call.heads, call.value_dim}, 0.0F);
      load_samples(state, entry);
    } else {
      read_keys(state, entry);
    }
  }

  // The outputs, and the samples after the last window.
  void forward_all() const {
    if (!runs_ || samples_ == 0) {
      for (const Stretch& s : windows_.stretches()) forward_stretch(s);
      return;
    }
    std::vector<Array<3>> key_norms, query_norms;
    for (const Stretch& s : windows_.stretches()) {
      key_norms.push_back(windows_.key_norms(s));
      query_norms.push_back(windows_.query_norms(s, 0.0F));
    }
    for_head_ranges(call_, [&](int64_t begin, int64_t end) { run_heads(begin, end, key_norms, query_norms); });
  }

  void forward_stretch(const Stretch& s) const {
    if (s.queries() == 0) return;
    forward(own_window_part(call_, s), s.out, s.logsumexp);
    const int64_t from = first_read(s);
    if (from >= windows_.windows_of(s)) return;
    const Array<3> norms = windows_.query_norms(s, 0.0F);
    forward_in_slabs(samples_part(s, from, norms), windows_.windows_from(s.out, from), windows_.windows_from(s.logsumexp, from),
                     Start::resume);
  }

  void save(WindowState& state, int64_t entry) const {
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

  // All gradients of the sequence.
  void backward_all() const {
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

 private:
  HeadRows rows_of_heads(int64_t width) const { return {call_, HeadsOf::queries, width}; }
  bool is_alive(int64_t s) const { return alive_[static_cast<size_t>(s / options_.samples_per_proposal)] != 0; }
  // The mixture of the proposals of windows before window `j`.
  int64_t mixture_before(int64_t j) const { return std::min(j, new_windows_); }
  // Samples of windows before window `j`.
  int64_t samples_before(int64_t j) const { return std::min(windows_.before() + j, max_) * per_; }

  // Windows of a stretch that propose.
  int64_t proposing(const Stretch& s) const {
    return std::clamp<int64_t>(max_ - windows_.before() - s.window, 0, windows_.complete_of(s));
  }
  ChunkedSequence chunked(const Stretch& s) const {
    return {0, 0, (old_windows_ + s.window) * call_.chunks(), s.mask(),
            equal_stretches(s.mask(), proposing(s) * call_.window, call_.chunk)};
  }

  void load(const WindowState& state, int64_t entry) {
    const int64_t old_samples = old_windows_ * per_, old_proposals = old_windows_ * call_.chunks();
    rows_of_heads(call_.dim).load(state, WindowPart::summary_keys, entry, 0, old_samples, w_.data());
    rows_of_heads(call_.dim).load(state, WindowPart::means, entry, 0, old_proposals, means_.data());
    std::vector<float> mixture(static_cast<size_t>(call_.heads));
    for (int64_t c = 0; c < old_proposals; ++c) {
      rows_of_heads(1).load(state, WindowPart::mixtures, entry, c * options_.samples_per_proposal, 1, mixture.data());
      alive_[static_cast<size_t>(c)] = mixture[0] != kNone;
    }
  }

  // mu_c and w_s of the windows that propose in this call.
  void propose(const float* noise) {
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

  void propose_backward(const Array<4>& dw, const Array<4>& dmeans) const {
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

  // Samples over the proposals of each new window; logsumexp alone is wanted.
  SoftmaxPart mixture_part() const {
    SoftmaxPart part{.q = repeated(View4(w_.view()), new_windows_),
                     .k = entries_from(windowed(View4(means_.view()), call_.chunks()), old_windows_),
                     .v = nothing(new_windows_, call_.chunks()),
                     .key_bias = entries_from(windowed(View3(mean_bias_.view()), call_.chunks()), old_windows_),
                     .workers = call_.workers()};
    const Visibility visible = Visibility::all(static_cast<size_t>(samples_), static_cast<size_t>(call_.chunks()));
    for (int64_t n = 0; n < new_windows_; ++n) part.sequences.push_back({n, 0, 0, visible});
    return part;
  }
  // New samples over the proposals of the state.
  SoftmaxPart old_mixture_part() const {
    const int64_t old_samples = old_windows_ * per_, old_proposals = old_windows_ * call_.chunks();
    return {.q = w_.view(),
            .k = means_.view(),
            .v = nothing(1, proposals_),
            .key_bias = mean_bias_.view(),
            .sequences = {{0, old_samples, 0,
                           Visibility::all(static_cast<size_t>(samples_ - old_samples), static_cast<size_t>(old_proposals))}},
            .workers = call_.workers()};
  }
  MutView4 nothing(int64_t entries, int64_t rows) const { return MutView4(w_.data(), {entries, rows, call_.heads, 0}); }

  void mix(const WindowState* state, int64_t entry) {
    const int64_t H = call_.heads;
    mixtures_ = Array<3>({new_windows_ + 1, samples_, H}, kNone);
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
    if (old_windows_ > 0) {
      const Array<3> initial({1, samples_, H});
      forward(old_mixture_part(), nothing(1, samples_), initial.view());
      std::copy(initial.data() + old_windows_ * per_ * H, initial.data() + samples_ * H,
                mixtures_.data() + old_windows_ * per_ * H);
    }
    SampleStates partials = {entries_from(mixtures_.view(), 1), nothing(new_windows_, samples_)};
    if (keep_partials_) {
      mixture_partials_ = Array<3>({new_windows_, samples_, H});
      partials.log_weights = mixture_partials_.view();
    }
    forward_in_slabs(mixture_part(), partials.values, partials.log_weights);
    merge_windows(partials, 0.0F, {mixtures_.view(), nothing(new_windows_ + 1, samples_)}, call_.workers());
  }

  void mix_backward(const Array<3>& dmixtures, const Array<4>& dw, const Array<4>& dmeans) const {
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
    add_half_norms_backward(means_.view(), 1.0F, dbias.view(), {{0, old_proposals, proposals_ - old_proposals, {}}},
                            dmeans.view(), call_.workers());
  }

  // Samples over the keys of each window that is complete.
  SoftmaxPart keys_part(const Stretch& s, const Array<3>& norms) const {
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

  // Weights and values of the state at the first boundary.
  void load_samples(const WindowState* state, int64_t entry) const {
    const int64_t old_samples = old_windows_ * per_;
    if (old_samples == 0) return;
    rows_of_heads(1).load(*state, WindowPart::summary_weights, entry, 0, old_samples, weights_.data());
    rows_of_heads(call_.value_dim).load(*state, WindowPart::summary_values, entry, 0, old_samples, values_.data());
  }

  // One query head on its way through the windows.
  struct RunningHead {
    int64_t head;
    RunningSamples samples;
    float* mixture;           // [S]: b_s, +inf where a sample takes no part
    int64_t mixture_at = -1;  // the boundary that it is of
  };

  void run_heads(int64_t begin, int64_t end, const std::vector<Array<3>>& key_norms,
                 const std::vector<Array<3>>& query_norms) const {
    const int64_t S = samples_, H = call_.heads, V = call_.value_dim;
    const RunningSamples::Shape shape{static_cast<size_t>(S), static_cast<size_t>(call_.dim), static_cast<size_t>(V)};
    const size_t floats = RunningSamples::floats(shape), of_head = floats + round_up(static_cast<size_t>(S), 16);
    const Scratch memory(1, static_cast<size_t>(end - begin) * of_head), scratch(1, RunningSamples::scratch_floats(shape));
    std::vector<RunningHead> heads;
    for (int64_t h = begin; h < end; ++h) {
      float* own = memory.of(0) + static_cast<size_t>(h - begin) * of_head;
      const RunningSamples samples(shape, rows_of<Rows>(w_.view(), 0, 0, h), own, scratch.of(0));
      for (int64_t s = 0; s < S; ++s) {
        samples.log_weights()[s] = weights_.data()[s * H + h];
        std::copy_n(values_.data() + (s * H + h) * V, V, samples.values() + s * V);
      }
      heads.push_back({h, samples, own + floats});
    }
    const int64_t turn = windows_per_turn(call_);
    for (size_t n = 0; n < windows_.stretches().size(); ++n) {
      const Stretch& s = windows_.stretches()[n];
      for (int64_t j = 0; j < windows_.windows_of(s); j += turn) {
        for (RunningHead& head : heads) {
          run_turn(s, j, std::min(j + turn, windows_.windows_of(s)), key_norms[n], query_norms[n], head, scratch.of(0));
        }
      }
    }
    for (const RunningHead& head : heads) {
      for (int64_t s = 0; s < S; ++s) {
        weights_.data()[s * H + head.head] = head.samples.log_weights()[s];
        std::copy_n(head.samples.values() + s * V, V, values_.data() + (s * H + head.head) * V);
      }
    }
  }

  // Windows [begin, end) of a stretch for one head: their queries, then their keys.
  void run_turn(const Stretch& s, int64_t begin, int64_t end, const Array<3>& key_norms, const Array<3>& query_norms,
                RunningHead& head, float* scratch) const {
    const int64_t W = call_.window, h = head.head, g = h / call_.group;
    const int64_t first_query = std::max(begin * W, s.first), end_query = std::min(end * W, s.tokens);
    if (end_query > first_query) {
      own_window_turn(call_, s, h, static_cast<size_t>(first_query - s.first), static_cast<size_t>(end_query - s.first), scratch);
    }
    for (int64_t j = begin; j < end; ++j) {
      const int64_t first = std::max(j * W, s.first), count = std::min((j + 1) * W, s.tokens) - first;
      const int64_t present = samples_before(s.window + j);
      if (present > 0 && count > 0) {
        head.samples.read({.scale = call_.root,
                           .q = rows_of<Rows>(s.q, 0, first, h),
                           .query_bias = column_of<Rows>(query_norms.view(), 0, first, h),
                           .out = rows_of<MutRows>(s.out, 0, first, h),
                           .logsumexp = column_of<MutRows>(s.logsumexp, 0, first, h)},
                          static_cast<size_t>(count), static_cast<size_t>(present), scratch);
      }
      if (j >= windows_.complete_of(s)) continue;
      set_mixture(mixture_before(s.window + j + 1), head);
      const KeySource keys{rows_of<Rows>(s.k, 0, j * W, g), rows_of<Rows>(s.v, 0, j * W, g),
                           mask_of(s.valid, key_norms.view(), 0, j * W, g)};
      head.samples.add(keys, static_cast<size_t>(W), static_cast<size_t>(samples_before(s.window + j + 1)), call_.root, 0.0F,
                       head.mixture, scratch);
    }
  }

  void set_mixture(int64_t boundary, RunningHead& head) const {
    if (head.mixture_at == boundary) return;
    head.mixture_at = boundary;
    const float* b = mixtures_.entry(boundary);
    for (int64_t s = 0; s < samples_; ++s) {
      const float of_sample = b[s * call_.heads + head.head];
      head.mixture[s] = of_sample != kNone && is_alive(s) ? of_sample : -kNone;
    }
  }

  void read_keys(const WindowState* state, int64_t entry) {
    const int64_t S = samples_, H = call_.heads, V = call_.value_dim, complete = windows_.complete();
    weights_ = Array<3>({complete + 1, S, H}, kNone);
    values_ = Array<4>({complete + 1, S, H, V});
    std::fill_n(values_.data(), S * H * V, 0.0F);
    load_samples(state, entry);
    SampleStates partials = {entries_from(weights_.view(), 1), entries_from(values_.view(), 1)};
    if (keep_partials_) {
      partial_weights_ = Array<3>({complete, S, H}, kNone);
      partial_values_ = Array<4>({complete, S, H, V});
      partials = {partial_weights_.view(), partial_values_.view()};
    }
    for (const Stretch& s : windows_.stretches()) {
      if (windows_.complete_of(s) == 0) continue;
      const Array<3> norms = windows_.key_norms(s);
      forward_in_slabs(keys_part(s, norms), entries_from(partials.values, s.window),
                       entries_from(partials.log_weights, s.window));
    }
    if (keep_partials_) {
      log_z_ = Array<3>({complete, S, H});
      std::copy_n(partial_weights_.data(), complete * S * H, log_z_.data());
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

  // Samples that take no part keep a weight of -inf.
  void subtract_mixture(int64_t mixture, float* log_weights) const {
    const int64_t H = call_.heads;
    const float* b = mixtures_.entry(mixture);
    for (int64_t i = 0; i < samples_ * H; ++i) {
      const bool counts = log_weights[i] != kNone && b[i] != kNone && is_alive(i / H);
      log_weights[i] = counts ? log_weights[i] - b[i] : kNone;
    }
  }

  void read_keys_backward(const Stretch& s, const Array<4>& dw, const Array<3>& dweights, const Array<4>& dvalues) const {
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

  // The first window of a stretch with samples before it.
  int64_t first_read(const Stretch& s) const { return windows_.before() + s.window > 0 ? 0 : 1; }

  // Queries over the samples of windows before theirs.
  SoftmaxPart samples_part(const Stretch& s, int64_t from, const Array<3>& norms) const {
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

  void backward_stretch(const Stretch& s, const Array<4>& dw, const Array<3>& dweights, const Array<4>& dvalues) const {
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

  static void add(const float* from, float* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] += from[i];
  }

  // dw += the shares [N, S, H, D] of all windows.
  void add_shares(const Array<4>& shares, const Array<4>& dw) const {
    const Workers workers = call_.workers();
    const int64_t row = call_.heads * call_.dim;
    workers.run(samples_, Scratch(workers.count(), 0), [&](int64_t s, float*) {
      for (int64_t n = 0; n < shares.view().extent(0); ++n) add(shares.entry(n) + s * row, dw.data() + s * row, row);
    });
  }

  const WindowedCall& call_;
  const CausalLaraOptions& options_;
  const SequenceWindows& windows_;
  bool keep_partials_;
  bool runs_;                          // forward pass: samples are read and extended in turn, and only the last state is kept
  int64_t per_;                        // samples of a window
  int64_t max_;                        // windows that propose
  int64_t old_windows_, new_windows_;  // that did so before this call, and in it
  int64_t samples_, proposals_;        // of all of these
  Array<4> w_, means_;                 // [1, S, H, D], [1, P, H, D]
  std::vector<uint8_t> alive_;         // [P]: the proposal has tokens
  Array<3> mean_bias_;                 // [1, P, H]: log per - |mu|^2 / 2
  Array<3> mixtures_;                  // [new windows + 1, S, H]: b_s at boundaries, from the first of the call on
  Array<3> mixture_partials_;          // [new windows, S, H]
  Array<3> weights_;                   // [complete + 1, S, H]: l_s at boundaries; not streaming: log z_s
  Array<3> full_weights_;              // not streaming: l_s
  Array<4> values_;                    // [complete + 1, S, H, V]: f_s
  Array<3> partial_weights_, log_z_;   // [complete, S, H]: of single windows, with and without b_s
  Array<4> partial_values_;            // [complete, S, H, V]
};

void require_state(const WindowedCall& call, const CausalLaraOptions& options, const WindowState* state, const char* argument) {
  require(state == nullptr || options.streaming, "{}: {} is given without streaming, expected none (new samples read all keys)",
          call.function, argument);
  call.require_state(state, argument, shape_of(1, call.heads, call.groups, call.dim, call.value_dim, options));
}

void step(const char* function, View3 q, View3 k, View3 v, const std::vector<StepEntry>& entries, MutView3 out,
          const CausalLaraOptions& options) {
  require_options(function, options);
  require(options.streaming, "{}: streaming is off, expected on (no state can be carried otherwise)", function);
  const WindowedCall call(function, with_time(q), with_time(k), with_time(v), options);
  call.check_step(entries, out, shape_of(1, call.heads, call.groups, call.dim, call.value_dim, options));
  const Trace trace(function, "q", q);
  const int64_t H = call.heads, D = call.dim, V = call.value_dim;
  DrawnRows noise = noise_of(call, options, proposing_windows(options) * samples_of_window(options));
  for (const auto& [state, entry] : entries) {
    if (state->tokens(entry) == 0) noise.give_to(*state, entry);
  }
  const auto others = [&](const StepEntry& entry, int64_t) {
    const auto rows = [&](WindowPart part, int64_t stride) {
      return Rows{entry.state->part(part, entry.b).data(), DType::f32, stride, 1};
    };
    const int64_t windows = std::min(entry.state->tokens(entry.b) / call.window, proposing_windows(options));
    return std::vector<StepKeys>{{.count = static_cast<size_t>(windows * samples_of_window(options)),
                                  .groups = static_cast<size_t>(H),
                                  .scale = call.root,
                                  .k = rows(WindowPart::summary_keys, H * D),
                                  .v = rows(WindowPart::summary_values, H * V),
                                  .bias = rows(WindowPart::summary_weights, H),
                                  .k_head = D,
                                  .v_head = V,
                                  .bias_head = 1,
                                  .sampled = true}};
  };
  windowed_step(call, entries, with_time(out), 1, others, [&](const StepEntry& entry) {
    const SequenceWindows windows(call, *entry.state, entry.b);
    LaraSequence(call, options, noise.of_entry(entry.state, entry.b, false), windows, entry.state, entry.b, false)
        .save(*entry.state, entry.b);
  });
}

// The operations, with null instead of a state that is not given.

void attend(View4 q, View4 k, View4 v, WindowState* state, MutView4 out, const CausalLaraOptions& options,
            std::span<float> record) {
  constexpr const char* kName = "causal_lara_attention";
  require_options(kName, options);
  const WindowedCall call(kName, q, k, v, options);
  require_state(call, options, state, "state");
  DrawnRows noise = state == nullptr ? noise_of(call, options)
                                     : noise_of(call, options, proposing_windows(options) * samples_of_window(options));
  run_windows(call, state, out, record, [&](const SequenceWindows& windows, int64_t entry) {
    const float* rows = noise.of_entry(state, entry, windows.complete() > 0);
    const bool saves = state != nullptr && !windows.stretches().empty();
    const LaraSequence lara(call, options, rows, windows, state, entry, false);
    lara.forward_all();
    if (!saves) return;
    if (state->tokens(entry) == 0) noise.give_to(*state, entry);
    lara.save(*state, entry);
  });
}

int64_t record_size(View4 q, View4 k, View4 v, const WindowState* initial, const CausalLaraOptions& options) {
  constexpr const char* kName = "causal_lara_record_size";
  require_options(kName, options);
  const WindowedCall call(kName, q, k, v, options);
  require_state(call, options, initial, "initial");
  return call.record_size();
}

void backward(View4 q, View4 k, View4 v, const WindowState* initial, View4 out, std::span<const float> record, View4 dout,
              const QkvGradients& gradients, const CausalLaraOptions& options) {
  constexpr const char* kName = "causal_lara_attention_backward";
  require_options(kName, options);
  const WindowedCall call(kName, q, k, v, options);
  require_state(call, options, initial, "initial");
  DrawnRows noise = noise_of(call, options);
  call.check_output("out", out);
  const ForwardOutputs outputs(out, [&](MutView4 again) {
    std::optional<WindowState> state;
    if (initial != nullptr) state = *initial;
    attend(q, k, v, state ? &*state : nullptr, again, options, {});
  });
  run_windows_backward(call, initial, outputs.view(), record, dout, gradients,
                       [&](const SequenceWindows& windows, int64_t entry) {
                         const float* rows = noise.of_entry(initial, entry, windows.complete() > 0);
                         for_heads(call, windows, [&](const WindowedCall& of_heads, const SequenceWindows& theirs) {
                           LaraSequence(of_heads, options, rows, theirs, initial, entry, true).backward_all();
                         });
                       });
}

}  // namespace

WindowStateShape causal_lara_state_shape(int64_t batch, int64_t query_heads, int64_t heads, int64_t dim, int64_t value_dim,
                                         const CausalLaraOptions& options) {
  constexpr const char* kName = "causal_lara_state_shape";
  require_options(kName, options);
  require(options.streaming, "{}: streaming is off, expected on (no state can be carried otherwise)", kName);
  return shape_of(batch, query_heads, heads, dim, value_dim, options);
}

void causal_lara_attention(View4 q, View4 k, View4 v, WindowState& state, MutView4 out, const CausalLaraOptions& options,
                           std::span<float> record) {
  attend(q, k, v, &state, out, options, record);
}

void causal_lara_attention(View4 q, View4 k, View4 v, MutView4 out, const CausalLaraOptions& options, std::span<float> record) {
  attend(q, k, v, nullptr, out, options, record);
}

int64_t causal_lara_record_size(View4 q, View4 k, View4 v, const WindowState& initial, const CausalLaraOptions& options) {
  return record_size(q, k, v, &initial, options);
}

int64_t causal_lara_record_size(View4 q, View4 k, View4 v, const CausalLaraOptions& options) {
  return record_size(q, k, v, nullptr, options);
}

void causal_lara_attention_backward(View4 q, View4 k, View4 v, const WindowState& initial, View4 out,
                                    std::span<const float> record, View4 dout, const QkvGradients& gradients,
                                    const CausalLaraOptions& options) {
  backward(q, k, v, &initial, out, record, dout, gradients, options);
}

void causal_lara_attention_backward(View4 q, View4 k, View4 v, View4 out, std::span<const float> record, View4 dout,
                                    const QkvGradients& gradients, const CausalLaraOptions& options) {
  backward(q, k, v, nullptr, out, record, dout, gradients, options);
}

void causal_lara_step(View3 q, View3 k, View3 v, WindowState& state, MutView3 out, const CausalLaraOptions& options) {
  step("causal_lara_step", q, k, v, step_entries("causal_lara_step", state, q.extent(0)), out, options);
}

void causal_lara_step(View3 q, View3 k, View3 v, std::span<WindowState* const> sessions, MutView3 out,
                      const CausalLaraOptions& options) {
  step("causal_lara_step", q, k, v, step_entries("causal_lara_step", sessions, q.extent(0)), out, options);
}

}  // namespace raffia
