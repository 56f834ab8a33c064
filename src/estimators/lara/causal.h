// Causal LARA: one softmax over the exact keys in a query's own window and samples for all earlier windows.
//
//   own window   part 1 of the softmax, as in every windowed op
//   proposals    mu_c of every chunk of the first windows; samples w_s = mu_c + e_s
//   mixtures     b_s = log per + logsumexp_c (w_s . mu_c - |mu_c|^2 / 2), merged window by window as proposals come
//   samples      each over the keys of each window: log z_s, f_s; merged window by window (streaming: log z_s - b_s of then)
//   part 2       queries over the samples of windows before theirs, with the weights and values of that boundary
//
// A forward pass of several heads goes through the windows with all of them in turn and keeps the samples of one boundary. That
// of a single head, whose windows are divided between threads, and that without streaming keep O(T / window S V) of samples at
// boundaries besides O(T) numbers. The backward pass goes through the windows once more and back (kernels/samples.h): its record
// is only logsumexp, and it keeps the log weights of samples at boundaries, but no values.
#ifndef RAFFIA_ESTIMATORS_LARA_CAUSAL_H_
#define RAFFIA_ESTIMATORS_LARA_CAUSAL_H_

#include <cstdint>
#include <vector>

#include "estimators/shared/drawn_rows.h"
#include "estimators/shared/running_samples.h"
#include "estimators/shared/sample_states.h"
#include "estimators/shared/windows.h"
#include "raffia/lara.h"

namespace raffia::internal {

inline int64_t samples_of_window(const CausalLaraOptions& options) {
  return options.window / options.chunk * options.samples_per_proposal;
}
inline int64_t proposing_windows(const CausalLaraOptions& options) { return options.samples / samples_of_window(options); }
// Of a state that is full.
inline int64_t all_samples(const CausalLaraOptions& options) { return proposing_windows(options) * samples_of_window(options); }

void require_options(const char* function, const CausalLaraOptions& options);
WindowStateShape shape_of(const WindowedCall& call, const CausalLaraOptions& options);
// e_s [S, G, D], of the first `count` samples.
DrawnRows noise_of(const WindowedCall& call, const CausalLaraOptions& options, int64_t count);

// The samples of one sequence, those of the state first.
class LaraSequence {
 public:
  // `noise`: e_s [S, G, D] for all heads of the whole call, read where windows propose. `for_backward`: for the backward pass.
  LaraSequence(const WindowedCall& call, const CausalLaraOptions& options, const float* noise, const SequenceWindows& windows,
               const WindowState* state, int64_t entry, bool for_backward);

  // The outputs, and the samples after the last window.
  void forward_all() const;

  void forward_stretch(const Stretch& s) const;

  void save(WindowState& state, int64_t entry) const;

  // All gradients of the sequence.
  void backward_all() const;

 private:
  HeadRows rows_of_heads(int64_t width) const { return {call_, HeadsOf::queries, width}; }
  bool is_alive(int64_t s) const { return alive_[static_cast<size_t>(s / options_.samples_per_proposal)] != 0; }
  // The mixture of the proposals of windows before window `j`.
  int64_t mixture_before(int64_t j) const { return std::min(j, new_windows_); }
  // Samples of windows before window `j`.
  int64_t samples_before(int64_t j) const { return std::min(windows_.before() + j, max_) * per_; }

  // Windows of a stretch that propose.
  int64_t proposing(const Stretch& s) const;
  ChunkedSequence chunked(const Stretch& s) const;

  void load(const WindowState& state, int64_t entry);

  // mu_c and w_s of the windows that propose in this call.
  void propose(const float* noise);

  void propose_backward(const Array<4>& dw, const Array<4>& dmeans) const;

  // Proposals of one head from `first` on, in the place of keys: their log xi at a sample, and log per.
  KeySource proposals_from(int64_t first, int64_t h) const;
  void mix(const WindowState* state, int64_t entry);

  void mix_backward(const Array<3>& dmixtures, const Array<4>& dw, const Array<4>& dmeans) const;

  // Samples over the keys of each window that is complete.
  SoftmaxPart keys_part(const Stretch& s, const Array<3>& norms) const;

  // Weights and values of the state at the first boundary.
  void load_samples(const WindowState* state, int64_t entry) const;

  // One query head on its way through the windows.
  struct RunningHead {
    int64_t head;
    RunningSamples samples;
    float* mixture;           // [S]: b_s, +inf where a sample takes no part
    int64_t mixture_at = -1;  // the boundary that it is of
  };

  RunningSamples::Shape shape_of_samples() const;
  void run_heads(int64_t begin, int64_t end, float* memory) const;

  // Windows [begin, end) of a stretch for one head: their queries, then their keys.
  // `next`: the head that follows, or -1.
  void run_turn(const Stretch& s, int64_t begin, int64_t end, const TurnNorms& norms, int64_t next, RunningHead& head,
                float* scratch) const;

  void set_mixture(int64_t boundary, RunningHead& head) const;
  // b_s of a boundary for one head, +inf where a sample takes no part.
  void fill_mixture(int64_t boundary, int64_t h, float* mixture) const;
  // Weights and values before the first window.
  void fill_samples(int64_t h, const RunningSamples& samples) const;

  void read_keys(const WindowState* state, int64_t entry);

  // Samples that take no part keep a weight of -inf.
  void subtract_mixture(int64_t mixture, float* log_weights) const;

  // Backward: one window of a sequence, and the norms of its stretch.
  struct SweptWindow {
    const Stretch& stretch;
    int64_t j;            // number of the window in the stretch
    int64_t first_token;  // of the stretch, among all tokens of the sequence
    View3 key_norms, query_norms;

    size_t token_of_queries(int64_t window) const {
      return static_cast<size_t>(first_token + std::max(j * window, stretch.first));
    }
  };
  struct SweepingHead;
  void sweep(const Array<4>& dw, const Array<3>& dmixtures) const;
  void sweep_group(std::vector<SweepingHead>& heads, const std::vector<Array<3>>& key_norms,
                   const std::vector<Array<3>>& query_norms, const Array<3>& dmixtures, float* scratch) const;
  SampleQueries queries_of(const SweptWindow& at, const SweepingHead& head) const;
  SampleAdd keys_of(const SweptWindow& at, const SweepingHead& head) const;
  void set_read_weights(int64_t window, const Array<3>& dmixtures, SweepingHead& head) const;
  void move_mixture(int64_t boundary, const Array<3>& dmixtures, SweepingHead& head) const;
  void sweep_right(const SweptWindow& at, const Array<3>& dmixtures, SweepingHead& head, float* scratch) const;
  void sweep_left(const SweptWindow& at, const Array<3>& dmixtures, SweepingHead& head, float* scratch) const;

  // The first window of a stretch with samples before it.
  int64_t first_read(const Stretch& s) const { return windows_.before() + s.window > 0 ? 0 : 1; }

  // Queries over the samples of windows before theirs.
  SoftmaxPart samples_part(const Stretch& s, int64_t from, const Array<3>& norms) const;

  static void add(const float* from, float* to, int64_t count);

  const WindowedCall& call_;
  const CausalLaraOptions& options_;
  const SequenceWindows& windows_;
  bool runs_;                          // forward pass: samples are read and extended in turn, and only the last state is kept
  int64_t per_;                        // samples of a window
  int64_t max_;                        // windows that propose
  int64_t old_windows_, new_windows_;  // that did so before this call, and in it
  int64_t samples_, proposals_;        // of all of these
  Array<4> w_, means_;                 // [1, S, H, D], [1, P, H, D]
  std::vector<uint8_t> alive_;         // [P]: the proposal has tokens
  Array<3> mean_bias_;                 // [1, P, H]: log per - |mu|^2 / 2
  Array<3> mixtures_;                  // [new windows + 1, S, H]: b_s at boundaries, from the first of the call on
  Array<3> weights_;                   // [complete + 1, S, H]: l_s at boundaries; not streaming: log z_s
  Array<3> full_weights_;              // not streaming: l_s
  Array<4> values_;                    // [complete + 1, S, H, V]: f_s
};

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_LARA_CAUSAL_H_
