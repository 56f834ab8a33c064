// The gradients of a past of samples for one query head, which goes through its windows from left to right and then back: see
// kernels/samples.h. What is kept for each window is the log weights of the samples, no values.
#ifndef RAFFIA_ESTIMATORS_SHARED_SAMPLE_SWEEP_H_
#define RAFFIA_ESTIMATORS_SHARED_SAMPLE_SWEEP_H_

#include <algorithm>
#include <cstddef>

#include "estimators/shared/running_samples.h"
#include "kernels/samples.h"

namespace raffia::internal {

class SampleSweep {
 public:
  struct Shape {
    RunningSamples::Shape samples;
    size_t windows = 0;  // that are added
    size_t tokens = 0;   // of all queries
    bool moves = true;   // whether samples have gradients
  };
  static size_t floats(const Shape& shape);
  static size_t scratch_floats(const RunningSamples::Shape& shape);

  SampleSweep(const Shape& shape, const Rows& w, float* memory, float* scratch);

  // What the past holds before the first window is the caller's to fill in.
  const RunningSamples& samples() const { return samples_; }
  size_t rows() const { return rows_; }  // of samples, filled up to whole blocks
  // Log weights after `window` windows, [rows].
  const float* log_weights(size_t window) const { return boundaries_ + window * rows_; }
  const float* dw(size_t s) const { return gradients_.dw + s * samples_.packed().columns(); }

  // Before the first of the two calls for a window, from left to right: stores the log weights before it.
  void mark(size_t window) const { std::copy_n(samples_.log_weights(), rows_, boundaries_ + window * rows_); }
  // From left to right. Queries of a window: `queries` has those of the window from its first row on, `count` of any number; its
  // log weights are set here unless they are given. `at`: where they are among all tokens.
  void read(SampleQueries queries, size_t at, size_t window, float* scratch) const;
  // The keys of window number `window`, in whole; `keys.first` is 0.
  void add(SampleAdd keys, size_t window, float* scratch) const;

  // The gradient of log weights at the boundary where the sweep is on its way back; that of sample s is dlog_weights[s stride].
  void receive(const float* dlog_weights, int64_t stride) const;
  // From right to left: first the keys of a window, then its queries.
  void add_backward(SampleKeys keys, size_t window, float* scratch) const;
  void gather(SampleQueries queries, size_t at, size_t window, float* scratch) const;

 private:
  template <class Body>
  void for_pieces(SampleQueries queries, size_t at, size_t window, const Body& body) const;

  RunningSamples samples_;
  size_t rows_;
  SampleGradients gradients_;
  float* boundaries_;  // [windows + 1][rows]
  float* delta_;       // [tokens]
};

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_SHARED_SAMPLE_SWEEP_H_
