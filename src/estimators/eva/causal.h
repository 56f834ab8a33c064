// Causal EVA: one softmax over the exact keys in a query's own window, summaries of chunks of earlier windows, and random
// features for everything older.
//
//   own window   part 1 of the softmax, as in every windowed op
//   summaries    kbar_c, log|P_c| and beta_c of every chunk of a complete window; part 2 over the last ones before the query
//   folded past  samples over the chunks of each window that leaves the summaries, merged window by window; part 3 over those
//
// Besides O(T) numbers, a call keeps O(T / chunk (D + V)) of summaries per head, for one sequence at a time. A forward pass of
// several heads goes through the windows with all of them in turn and keeps the folded past of one boundary; that of a single
// head, whose windows are divided between threads, keeps O(T / window R V) of it. The backward pass, whose record is only
// logsumexp, computes summaries again and goes through the windows and back with the folded past (kernels/samples.h).
#ifndef RAFFIA_ESTIMATORS_EVA_CAUSAL_H_
#define RAFFIA_ESTIMATORS_EVA_CAUSAL_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "estimators/shared/drawn_rows.h"
#include "estimators/shared/running_samples.h"
#include "estimators/shared/sample_states.h"
#include "estimators/shared/sample_sweep.h"
#include "estimators/shared/windows.h"
#include "raffia/eva.h"

namespace raffia::internal {

void require_options(const char* function, const CausalEvaOptions& options);
WindowStateShape shape_of(const WindowedCall& call, const CausalEvaOptions& options);
// w_r [R, G, D]
DrawnRows features_of(const WindowedCall& call, const CausalEvaOptions& options);

// Where summaries of chunks are stored.
struct ChunkSummaries {
  MutView4 means, keys, values;  // w_c [1, C, H, D], kbar' [1, C, G, D], beta [1, C, H, V]
  MutView3 log_z;                // [1, C, H], the logsumexp of beta
  float* log_counts;             // [C]
};

// Summaries of the chunks of complete windows of a sequence. `norms` are those of its keys.
void summarise_chunks(const WindowedCall& call, View4 q, View4 k, View4 v, View2 valid, View3 norms,
                      const ChunkedSequence& tokens, const ChunkSummaries& summaries);

// Summaries and folded past of one sequence. Chunks are numbered from the oldest one in the state.
class EvaSequence {
 public:
  // `features`: w_r [R, G, D] for all heads of the whole call, not read where nothing is folded. `for_backward`: for the
  // backward pass.
  EvaSequence(const WindowedCall& call, const CausalEvaOptions& options, const float* features, const SequenceWindows& windows,
              const WindowState* state, int64_t entry, bool for_backward);

  // The outputs, and the folded past after the last window: heads go through the sequence together, about 128 tokens at a time.
  void forward_all() const;

  void save(WindowState& state, int64_t entry) const;

  // All gradients of the sequence.
  void backward_all() const;

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
  void load(const WindowState& state, int64_t entry);

  void forward_stretch(const Stretch& s) const;

  ChunkedSequence chunked(const Stretch& s) const;

  SoftmaxPart chunk_part(const Stretch& s, const Array<3>& norms) const;

  void summarise(const Stretch& s);

  void summarise_backward(const Stretch& s, const Array<4>& dkeys, const Array<4>& dvalues) const;

  // Windows leave the summaries in order, each `kept` windows after it was complete: fold n is that of chunks n per.. . With
  // `every_boundary` there is room for the state at each of them: where heads do not go through the windows in turn.
  void prepare_folds(const WindowState* state, int64_t entry, bool every_boundary);

  void fold();

  // One query head on its way through the windows.
  struct RunningHead {
    int64_t head;
    PackedKeys summaries;
    RunningSamples folded;
    int64_t folds = 0;  // made so far
  };

  RunningSamples::Shape shape_of_folded() const;
  size_t packed_floats() const;  // of the summaries of a head
  void run_heads(int64_t begin, int64_t end, float* memory) const;

  PackedKeys packed_summaries(int64_t h, float* memory, float* scratch) const;

  // Windows [begin, end) of a stretch for one head.
  void run_turn(const Stretch& s, int64_t begin, int64_t end, const TurnNorms& norms, int64_t next, RunningHead& head,
                float* scratch) const;

  // Weights and values of the folded past before the first window.
  void fill_folded(int64_t h, const RunningSamples& folded) const;
  // The summaries of a window in the place of keys.
  KeySource folded_keys(int64_t chunk, int64_t g, int64_t h) const;
  void fold_until(int64_t folds, RunningHead& head, float* scratch) const;

  // Samples over the summaries of each window that is folded.
  SoftmaxPart fold_part(int64_t member) const;

  // Queries over the summaries before their window.
  Visibility seen_summaries(const Stretch& s) const;
  SoftmaxPart summary_part(const Stretch& s, int64_t member) const;

  // The first window of a stretch with a folded past.
  int64_t first_read(const Stretch& s) const;

  // Queries over the folded past of their window.
  SoftmaxPart folded_part(const Stretch& s, int64_t from, const Array<3>& norms, int64_t member) const;

  void backward_stretch(const Stretch& s, const Array<4>& dkeys, const Array<4>& dvalues) const;

  // Backward: one query head on its way through the windows and back.
  struct SweepingHead {
    int64_t head;
    const SampleSweep& sweep;
  };
  void sweep(const Array<4>& dkeys, const Array<4>& dvalues) const;
  void sweep_head(const SweepingHead& head, const std::vector<Array<3>>& norms, const Array<4>& dkeys, const Array<4>& dvalues,
                  float* scratch) const;
  SampleAdd fold_of(int64_t fold, const SweepingHead& head) const;
  SampleQueries queries_of(const Stretch& s, int64_t j, View3 norms, int64_t h) const;

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
};

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_EVA_CAUSAL_H_
