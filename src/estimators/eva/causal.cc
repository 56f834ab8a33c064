// Causal EVA: one softmax over the exact keys in a query's own window, summaries of chunks of earlier windows, and random
// features for everything older.
//
//   own window   part 1 of the softmax, as in every windowed op
//   summaries    kbar_c, log|P_c| and beta_c of every chunk of a complete window; part 2 over the last ones before the query
//   folded past  samples over the chunks of each window that leaves the summaries, merged window by window; part 3 over those
//
// Besides O(T) numbers, a call keeps O(T / chunk (D + V)) of summaries per head, for one sequence at a time. A forward pass of
// several heads goes through the windows with all of them in turn and keeps the folded past of one boundary; that of a single
// head, whose windows are divided between threads, and the backward pass keep O(T / window R V) of it. The backward pass computes
// both again: its record is only logsumexp.
#include <cmath>
#include <optional>
#include <vector>

#include "core/check.h"
#include "core/trace.h"
#include "core/window_layout.h"
#include "estimators/shared/drawn_rows.h"
#include "estimators/shared/running_samples.h"
#include "estimators/shared/sample_states.h"
#include "estimators/shared/windows.h"
#include "raffia/eva.h"

namespace raffia {

using namespace internal;
namespace {

void require_options(const char* function, const CausalEvaOptions& options) {
  require_windows(function, options.window, options.chunk);
  require(options.summaries >= 0 && options.summaries % (options.window / options.chunk) == 0,
          "{}: summaries is {}, expected a multiple of {} (window / chunk)", function, options.summaries,
          options.window / options.chunk);
  require(options.summaries <= kMaxOfAWindow, "{}: summaries is {}, expected at most {}", function, options.summaries,
          kMaxOfAWindow);
  require(options.features >= 1 && options.features <= kMaxOfAWindow, "{}: features is {}, expected 1 to {}", function,
          options.features, kMaxOfAWindow);
  require(options.decay > 0 && options.decay <= 1, "{}: decay is {}, expected above 0 and at most 1", function, options.decay);
}

// w_r [R, G, D]
DrawnRows features_of(const WindowedCall& call, const CausalEvaOptions& options) {
  return DrawnRows(call.function,
                   {options.seed, options.layer, options.draw, options.draws, options.features, call.groups, call.dim});
}

// Whether a sequence without a past has windows that leave the summaries.
bool folds(const CausalEvaOptions& options, const SequenceWindows& windows) {
  return options.summaries > 0 && windows.complete() > options.summaries / (options.window / options.chunk);
}

// Summaries and folded past of one sequence. Chunks are numbered from the oldest one in the state.
class EvaSequence {
 public:
  // `features`: w_r [R, G, D] for all heads of the whole call, not read where nothing is folded. `keep_partials`: for the
  // backward pass.
  EvaSequence(const WindowedCall& call, const CausalEvaOptions& options, const float* features, const SequenceWindows& windows,
              const WindowState* state, int64_t entry, bool keep_partials)
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
    const bool folds_later = !keep_partials && windows.in_turn();  // in forward_all()
    if (complete >= first_boundary_) prepare_folds(state, entry, !folds_later);
    if (!folds_later && folds_ > 0) fold(keep_partials);
  }

  // The outputs, and the folded past after the last window: heads go through the sequence together, about 128 tokens at a time.
  void forward_all() const {
    if (!windows_.in_turn()) {
      for (const Stretch& s : windows_.stretches()) forward_stretch(s);
      return;
    }
    std::vector<Array<3>> norms;
    for (const Stretch& s : windows_.stretches()) {
      const bool reads = first_read(s) < windows_.windows_of(s);
      norms.push_back(reads ? windows_.query_norms(s, -log_features()) : Array<3>());
    }
    for_head_ranges(call_, [&](int64_t begin, int64_t end) { run_heads(begin, end, norms); });
  }

  void save(WindowState& state, int64_t entry) const {
    const int64_t G = call_.groups, D = call_.dim, H = call_.heads, V = call_.value_dim, ring = options_.summaries;
    const int64_t seen = (windows_.before() + windows_.complete()) * per_;  // chunks since the first token
    for (int64_t c = std::max(lead_, chunks_ - ring); c < chunks_; ++c) {
      const int64_t slot = (seen - chunks_ + c) % ring;
      of_keys(D).save(keys_.data() + c * G * D, 1, state, WindowPart::summary_keys, entry, slot);
      of_queries(V).save(values_.data() + c * H * V, 1, state, WindowPart::summary_values, entry, slot);
      state.part(WindowPart::summary_weights, entry)[static_cast<size_t>(slot)] = log_counts_.data()[c];
    }
    if (folds_ == 0) return;
    of_keys(1).save(weights_.entry(weights_.view().extent(0) - 1), options_.features, state, WindowPart::folded_weights, entry,
                    0);
    of_queries(V).save(folded_.entry(folded_.view().extent(0) - 1), options_.features, state, WindowPart::folded_values, entry,
                       0);
  }

  // All gradients of the sequence.
  void backward_all() const {
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

 private:
  HeadRows of_queries(int64_t width) const { return {call_, HeadsOf::queries, width}; }
  HeadRows of_keys(int64_t width) const { return {call_, HeadsOf::keys, width}; }
  template <class AnyView>
  AnyView heads_of(const AnyView& view, int64_t member) const {
    return member_of(view, member, call_.group);
  }
  float log_features() const { return std::log(static_cast<float>(options_.features)); }
  float log_decay() const { return std::log(options_.decay); }
  int64_t first_chunk(const Stretch& s) const { return lead_ + s.window * per_; }
  int64_t chunks_of(const Stretch& s) const { return windows_.complete_of(s) * per_; }

  // The summaries of the state, oldest first.
  void load(const WindowState& state, int64_t entry) {
    const int64_t G = call_.groups, D = call_.dim, H = call_.heads, V = call_.value_dim;
    for (int64_t c = 0; c < lead_; ++c) {
      const int64_t slot = (windows_.before() * per_ - lead_ + c) % options_.summaries;
      of_keys(D).load(state, WindowPart::summary_keys, entry, slot, 1, keys_.data() + c * G * D);
      of_queries(V).load(state, WindowPart::summary_values, entry, slot, 1, values_.data() + c * H * V);
      log_counts_.data()[c] = state.part(WindowPart::summary_weights, entry)[static_cast<size_t>(slot)];
    }
  }

  void forward_stretch(const Stretch& s) const {
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

  ChunkedSequence chunked(const Stretch& s) const {
    return {0, 0, first_chunk(s), s.mask(), equal_stretches(s.mask(), windows_.complete_of(s) * call_.window, call_.chunk)};
  }

  // beta_c: sample w_c over the keys of its chunk.
  SoftmaxPart chunk_part(const Stretch& s, const Array<3>& norms) const {
    const size_t count = static_cast<size_t>(chunks_of(s));
    return {
        .q = means_.view(),
        .k = s.k,
        .v = s.v,
        .scale = call_.root,
        .key_bias = norms.view(),
        .valid = s.valid,
        .sequences = {{0, first_chunk(s), 0, Visibility::own(count, count * static_cast<size_t>(call_.chunk), 1, call_.chunk)}},
        .workers = call_.workers()};
  }

  void summarise(const Stretch& s) {
    if (chunks_of(s) == 0) return;
    const std::vector<ChunkedSequence> chunked_tokens = {chunked(s)};
    chunk_means(s.q, call_.root, chunked_tokens, means_.view(), call_.workers());
    chunk_means(s.k, call_.root, chunked_tokens, keys_.view(), call_.workers());
    for (int64_t c = first_chunk(s); c < first_chunk(s) + chunks_of(s); ++c) {
      const int64_t count = chunked_tokens[0].chunks[static_cast<size_t>(c - first_chunk(s))].count;
      log_counts_.data()[c] = count > 0 ? std::log(static_cast<float>(count)) : kNone;
      for (int64_t h = 0; h < call_.heads; ++h) {
        float* mean = means_.data() + (c * call_.heads + h) * call_.dim;
        const float* key = keys_.data() + (c * call_.groups + h / call_.group) * call_.dim;
        for (int64_t i = 0; i < call_.dim; ++i) mean[i] += key[i];
      }
    }
    const Array<3> norms = windows_.key_norms(s);
    forward(chunk_part(s, norms), values_.view(), log_z_.view());
  }

  void summarise_backward(const Stretch& s, const Array<4>& dkeys, const Array<4>& dvalues) const {
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

  // Windows leave the summaries in order, each `kept` windows after it was complete: fold n is that of chunks n per.. . The
  // backward pass has room for the state at every boundary, the forward pass for the first and the last one.
  void prepare_folds(const WindowState* state, int64_t entry, bool every_boundary) {
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

  void fold(bool keep_partials) {
    SampleStates partials{entries_from(weights_.view(), 1), entries_from(folded_.view(), 1)};
    if (keep_partials) {
      partial_weights_ = Array<3>({folds_, options_.features, call_.groups});
      partial_values_ = Array<4>({folds_, options_.features, call_.heads, call_.value_dim});
      partials = {partial_weights_.view(), partial_values_.view()};
    }
    for (int64_t member = 0; member < call_.group; ++member) {
      forward_in_slabs(fold_part(member), heads_of(partials.values, member), partials.log_weights);
    }
    merge_windows(partials, log_decay(), {weights_.view(), folded_.view()}, call_.workers());
  }

  // One query head on its way through the windows.
  struct RunningHead {
    int64_t head;
    PackedKeys summaries;
    RunningSamples folded;
    int64_t folds = 0;  // made so far
  };

  void run_heads(int64_t begin, int64_t end, const std::vector<Array<3>>& norms) const {
    const int64_t G = call_.groups, H = call_.heads, V = call_.value_dim;
    const size_t dim = static_cast<size_t>(call_.dim), value_dim = static_cast<size_t>(V),
                 count = static_cast<size_t>(end - begin);
    const bool has_folded = folds_ > 0 || (options_.summaries > 0 && windows_.before() > kept_);
    const size_t features = has_folded ? static_cast<size_t>(options_.features) : 0;
    const RunningSamples::Shape shape{features, dim, value_dim};
    const size_t rows = round_up(static_cast<size_t>(chunks_), kKeyBlock);
    const size_t of_folded = RunningSamples::floats(shape);
    const size_t of_head = round_up(of_folded + rows * (dim + round_up(value_dim, 16) + 1), 16);
    const Scratch memory(1, count * of_head), scratch(1, RunningSamples::scratch_floats(shape));
    std::vector<RunningHead> heads;
    for (int64_t h = begin; h < end; ++h) {
      const int64_t g = h / call_.group;
      float* own = memory.of(0) + static_cast<size_t>(h - begin) * of_head;
      heads.push_back({h, packed_summaries(h, own + of_folded, scratch.of(0)),
                       RunningSamples(shape, rows_of<Rows>(features_, 0, 0, g), own, scratch.of(0))});
      for (int64_t r = 0; r < static_cast<int64_t>(features); ++r) {
        heads.back().folded.log_weights()[r] = weights_.data()[r * G + g];
        std::copy_n(folded_.data() + (r * H + h) * V, V, heads.back().folded.values() + r * V);
      }
    }
    const int64_t turn = windows_per_turn(call_);
    for (size_t n = 0; n < windows_.stretches().size(); ++n) {
      const Stretch& s = windows_.stretches()[n];
      for (int64_t j = 0; j < windows_.windows_of(s); j += turn) {
        const int64_t end_of_turn = std::min(j + turn, windows_.windows_of(s));
        for (RunningHead& head : heads) run_turn(s, j, end_of_turn, norms[n], head, scratch.of(0));
      }
    }
    if (folds_ == 0) return;
    for (RunningHead& head : heads) {
      fold_until(folds_, head, scratch.of(0));
      for (int64_t r = 0; r < options_.features; ++r) {
        if (head.head % call_.group == 0) weights_.entry(1)[r * G + head.head / call_.group] = head.folded.log_weights()[r];
        std::copy_n(head.folded.values() + r * V, V, folded_.data() + (r * H + head.head) * V);
      }
    }
  }

  PackedKeys packed_summaries(int64_t h, float* memory, float* scratch) const {
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

  // Windows [begin, end) of a stretch for one head.
  void run_turn(const Stretch& s, int64_t begin, int64_t end, const Array<3>& norms, RunningHead& head, float* scratch) const {
    const int64_t W = call_.window, h = head.head;
    const int64_t first_query = std::max(begin * W, s.first), end_query = std::min(end * W, s.tokens);
    if (end_query <= first_query) return;
    const size_t first = static_cast<size_t>(first_query - s.first), last = static_cast<size_t>(end_query - s.first);
    own_window_turn(call_, s, h, first, last, scratch);
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
                        .query_bias = column_of<Rows>(norms.view(), 0, at, h),
                        .out = rows_of<MutRows>(s.out, 0, at, h),
                        .logsumexp = column_of<MutRows>(s.logsumexp, 0, at, h)},
                       static_cast<size_t>(count), static_cast<size_t>(options_.features), scratch);
    }
  }

  void fold_until(int64_t folds, RunningHead& head, float* scratch) const {
    const int64_t h = head.head, g = h / call_.group;
    for (; head.folds < folds; ++head.folds) {
      const int64_t chunk = head.folds * per_;
      const KeySource keys{rows_of<Rows>(keys_.view(), 0, chunk, g),
                           rows_of<Rows>(values_.view(), 0, chunk, h),
                           {.bias = column_of<Rows>(fold_bias_.view(), 0, chunk, g)}};
      head.folded.add(keys, static_cast<size_t>(per_), static_cast<size_t>(options_.features), 1.0F, log_decay(), nullptr,
                      scratch);
    }
  }

  // Samples over the summaries of each window that is folded.
  SoftmaxPart fold_part(int64_t member) const {
    SoftmaxPart part{.q = repeated(features_, folds_),
                     .k = windowed(keys_.view(), per_),
                     .v = windowed(heads_of(values_.view(), member), per_),
                     .key_bias = windowed(fold_bias_.view(), per_),
                     .workers = call_.workers()};
    const Visibility visible = Visibility::all(static_cast<size_t>(options_.features), static_cast<size_t>(per_));
    for (int64_t n = 0; n < folds_; ++n) part.sequences.push_back({n, 0, 0, visible});
    return part;
  }

  // Queries over the summaries before their window.
  Visibility seen_summaries(const Stretch& s) const {
    const int64_t max = options_.summaries == 0 ? INT64_MAX / 2 : options_.summaries;
    return Visibility::earlier(static_cast<size_t>(s.queries()), static_cast<size_t>(chunks_), call_.window, per_, first_chunk(s),
                               s.first, max);
  }
  SoftmaxPart summary_part(const Stretch& s, int64_t member) const {
    return {.q = heads_of(s.q, member),
            .k = keys_.view(),
            .v = heads_of(values_.view(), member),
            .scale = call_.root,
            .key_bias = View3(log_counts_.data(), {1, chunks_, call_.groups}, {0, 1, 0}),
            .sequences = {{0, s.first, 0, seen_summaries(s)}},
            .workers = call_.workers()};
  }

  // The first window of a stretch with a folded past.
  int64_t first_read(const Stretch& s) const {
    if (options_.summaries == 0) return windows_.windows_of(s);
    return std::max<int64_t>(0, kept_ + 1 - windows_.before() - s.window);
  }

  // Queries over the folded past of their window.
  SoftmaxPart folded_part(const Stretch& s, int64_t from, const Array<3>& norms, int64_t member) const {
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

  void backward_stretch(const Stretch& s, const Array<4>& dkeys, const Array<4>& dvalues, const Array<3>& dweights,
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

  const WindowedCall& call_;
  const CausalEvaOptions& options_;
  View4 features_;  // w_r [1, R, G, D]
  const SequenceWindows& windows_;
  int64_t per_;                             // chunks of a window
  int64_t kept_ = 0;                        // windows whose summaries are kept
  int64_t lead_ = 0, chunks_ = 0;           // summaries that the state brought, and in all
  Array<4> keys_, values_;                  // kbar' [1, C, G, D], beta [1, C, H, V]
  Array<3> log_counts_;                     // [1, C, 1]
  Array<4> means_;                          // w_c [1, C, H, D]; of the chunks made here, as is
  Array<3> log_z_;                          // [1, C, H], the logsumexp of beta
  int64_t first_boundary_ = 0, folds_ = 0;  // state n of the folded past is that of window first_boundary + n
  Array<3> weights_, fold_bias_;            // [folds + 1, R, G], [1, C, G]
  Array<4> folded_;                         // [folds + 1, R, H, V]
  Array<3> partial_weights_;                // [folds, R, G]
  Array<4> partial_values_;                 // [folds, R, H, V]
};

WindowStateShape shape_of(int64_t batch, int64_t query_heads, int64_t heads, int64_t dim, int64_t value_dim,
                          const CausalEvaOptions& options) {
  return {.kind = WindowKind::eva,
          .batch = batch,
          .query_heads = query_heads,
          .heads = heads,
          .dim = dim,
          .value_dim = value_dim,
          .window = options.window,
          .summaries = options.summaries,
          .features = options.features,
          .chunk = options.chunk,
          .recipe = recipe_of({options.seed, options.layer, options.draw, static_cast<uint64_t>(options.draws),
                               bits_of(scale_or_default(options.scale, dim)), bits_of(options.decay)})};
}
WindowStateShape shape_of(const WindowedCall& call, const CausalEvaOptions& options) {
  return shape_of(1, call.heads, call.groups, call.dim, call.value_dim, options);
}

void require_state(const WindowedCall& call, const CausalEvaOptions& options, const WindowState* state, const char* argument) {
  require(state == nullptr || options.summaries > 0,
          "{}: {} is given with summaries = 0, expected none (such a state would grow without bound)", call.function, argument);
  call.require_state(state, argument, shape_of(call, options));
}

void step(const char* function, View3 q, View3 k, View3 v, const std::vector<StepEntry>& entries, MutView3 out,
          const CausalEvaOptions& options) {
  require_options(function, options);
  require(options.summaries > 0, "{}: summaries is 0, expected at least {} (such a state would grow without bound)", function,
          options.window / options.chunk);
  const WindowedCall call(function, with_time(q), with_time(k), with_time(v), options);
  call.check_step(entries, out, shape_of(call, options));
  const Trace trace(function, "q", q);
  const int64_t G = call.groups, H = call.heads, D = call.dim, V = call.value_dim, per = call.chunks();
  DrawnRows features = features_of(call, options);
  for (const auto& [state, entry] : entries) {
    if (state->tokens(entry) == 0) features.give_to(*state, entry);
  }
  const auto others = [&](const StepEntry& entry, int64_t member) {
    const auto rows = [&](WindowPart part, int64_t stride, int64_t offset = 0) {
      return Rows{entry.state->part(part, entry.b).data() + offset, DType::f32, stride, 1};
    };
    const int64_t before = entry.state->tokens(entry.b) / call.window;
    std::vector<StepKeys> keys;
    keys.push_back({.count = static_cast<size_t>(std::min(before, options.summaries / per) * per),
                    .groups = static_cast<size_t>(G),
                    .scale = call.root,
                    .k = rows(WindowPart::summary_keys, G * D),
                    .v = rows(WindowPart::summary_values, H * V, member * V),
                    .bias = rows(WindowPart::summary_weights, 1),
                    .k_head = D,
                    .v_head = call.group * V});
    if (before > options.summaries / per) {
      keys.push_back({.count = static_cast<size_t>(options.features),
                      .groups = static_cast<size_t>(G),
                      .scale = call.root,
                      .k = rows(WindowPart::projections, G * D),
                      .v = rows(WindowPart::folded_values, H * V, member * V),
                      .bias = rows(WindowPart::folded_weights, G),
                      .k_head = D,
                      .v_head = call.group * V,
                      .bias_head = 1,
                      .sampled = true,
                      .offset = -std::log(static_cast<float>(options.features))});
    }
    return keys;
  };
  windowed_step(call, entries, with_time(out), call.group, others, [&](const StepEntry& entry) {
    const SequenceWindows windows(call, *entry.state, entry.b);
    const EvaSequence eva(call, options, features.of_entry(entry.state, entry.b, false), windows, entry.state, entry.b, false);
    eva.save(*entry.state, entry.b);
  });
}

// The operations, with null instead of a state that is not given.

void attend(View4 q, View4 k, View4 v, WindowState* state, MutView4 out, const CausalEvaOptions& options,
            std::span<float> record) {
  constexpr const char* kName = "causal_eva_attention";
  require_options(kName, options);
  const WindowedCall call(kName, q, k, v, options);
  require_state(call, options, state, "state");
  DrawnRows features = features_of(call, options);
  run_windows(call, state, out, record, [&](const SequenceWindows& windows, int64_t entry) {
    const float* rows = features.of_entry(state, entry, folds(options, windows));
    const EvaSequence eva(call, options, rows, windows, state, entry, false);
    eva.forward_all();
    if (state == nullptr || windows.stretches().empty()) return;
    if (state->tokens(entry) == 0) features.give_to(*state, entry);
    eva.save(*state, entry);
  });
}

int64_t record_size(View4 q, View4 k, View4 v, const WindowState* initial, const CausalEvaOptions& options) {
  constexpr const char* kName = "causal_eva_record_size";
  require_options(kName, options);
  const WindowedCall call(kName, q, k, v, options);
  require_state(call, options, initial, "initial");
  return call.record_size();
}

void backward(View4 q, View4 k, View4 v, const WindowState* initial, View4 out, std::span<const float> record, View4 dout,
              const QkvGradients& gradients, const CausalEvaOptions& options) {
  constexpr const char* kName = "causal_eva_attention_backward";
  require_options(kName, options);
  const WindowedCall call(kName, q, k, v, options);
  require_state(call, options, initial, "initial");
  DrawnRows features = features_of(call, options);
  call.check_output("out", out);
  const ForwardOutputs outputs(out, [&](MutView4 again) {
    std::optional<WindowState> state;
    if (initial != nullptr) state = *initial;
    attend(q, k, v, state ? &*state : nullptr, again, options, {});
  });
  run_windows_backward(call, initial, outputs.view(), record, dout, gradients,
                       [&](const SequenceWindows& windows, int64_t entry) {
                         const float* rows = features.of_entry(initial, entry, folds(options, windows));
                         for_heads(call, windows, [&](const WindowedCall& of_heads, const SequenceWindows& theirs) {
                           EvaSequence(of_heads, options, rows, theirs, initial, entry, true).backward_all();
                         });
                       });
}

}  // namespace

WindowStateShape causal_eva_state_shape(int64_t batch, int64_t query_heads, int64_t heads, int64_t dim, int64_t value_dim,
                                        const CausalEvaOptions& options) {
  constexpr const char* kName = "causal_eva_state_shape";
  require_options(kName, options);
  require(options.summaries > 0, "{}: summaries is 0, expected at least {} (such a state would grow without bound)", kName,
          options.window / options.chunk);
  return shape_of(batch, query_heads, heads, dim, value_dim, options);
}

void causal_eva_attention(View4 q, View4 k, View4 v, WindowState& state, MutView4 out, const CausalEvaOptions& options,
                          std::span<float> record) {
  attend(q, k, v, &state, out, options, record);
}

void causal_eva_attention(View4 q, View4 k, View4 v, MutView4 out, const CausalEvaOptions& options, std::span<float> record) {
  attend(q, k, v, nullptr, out, options, record);
}

int64_t causal_eva_record_size(View4 q, View4 k, View4 v, const WindowState& initial, const CausalEvaOptions& options) {
  return record_size(q, k, v, &initial, options);
}

int64_t causal_eva_record_size(View4 q, View4 k, View4 v, const CausalEvaOptions& options) {
  return record_size(q, k, v, nullptr, options);
}

void causal_eva_attention_backward(View4 q, View4 k, View4 v, const WindowState& initial, View4 out,
                                   std::span<const float> record, View4 dout, const QkvGradients& gradients,
                                   const CausalEvaOptions& options) {
  backward(q, k, v, &initial, out, record, dout, gradients, options);
}

void causal_eva_attention_backward(View4 q, View4 k, View4 v, View4 out, std::span<const float> record, View4 dout,
                                   const QkvGradients& gradients, const CausalEvaOptions& options) {
  backward(q, k, v, nullptr, out, record, dout, gradients, options);
}

void causal_eva_step(View3 q, View3 k, View3 v, WindowState& state, MutView3 out, const CausalEvaOptions& options) {
  step("causal_eva_step", q, k, v, step_entries("causal_eva_step", state, q.extent(0)), out, options);
}

void causal_eva_step(View3 q, View3 k, View3 v, std::span<WindowState* const> sessions, MutView3 out,
                     const CausalEvaOptions& options) {
  step("causal_eva_step", q, k, v, step_entries("causal_eva_step", sessions, q.extent(0)), out, options);
}

}  // namespace raffia
