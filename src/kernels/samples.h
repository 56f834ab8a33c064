// Samples over a past that grows window by window, for one head: sample w_s has the log of a weight l_s and a mean value f_s.
//
//   add    keys of a window, A = W K^T + bias:   l' = log(exp(l + decay) + sum_m exp(A_sm - b_s))
//                                                f' = exp(l + decay - l') f + sum_m exp(A_sm - b_s - l') v_m
//   read   queries, after exact keys:            softmax_s(q . w_s + l_s + bias) f_s: softmax_forward() of kernels/softmax.h
//
// The gradient goes through the windows twice. From left to right, queries need the samples that they read. From right to left,
// keys need what later queries made of them: with L_i the logsumexp of query i over all that it sees, and delta_i = dout_i .
// out_i,
//
//   P_is = exp(q_i . w_s + bias_i + l_s - L_i)   dS_is = P_is (dout_i . f_s - delta_i)      dq = dS W,  dW += dS^T q
//   G_s  = sum_i P_is dout_i,  D_s = sum_i P_is delta_i   of all later queries, as if l_s were that after the window of the keys:
//          going back one window, both are multiplied by exp(l + decay - l')
//   R_sm = exp(A_sm - b_s - l'_s)                dA_sm = R_sm (v_m . G_s - D_s)             dk = dA^T W,  dW += dA k,  dv = R^T G
//
// so that no values of samples are kept. All exponents are at most 0. Products have tokens as rows and samples on the lanes: the
// softmax over the keys of a sample needs no sum across lanes.
#ifndef RAFFIA_KERNELS_SAMPLES_H_
#define RAFFIA_KERNELS_SAMPLES_H_

#include <cstddef>

#include "kernels/softmax.h"

namespace raffia::internal {

constexpr size_t kSampleTokens = 128;  // keys or queries at once; longer windows come in pieces

// The samples of one head, in blocks of kKeyBlock as PackedKeys has them.
struct PackedSamples {
  size_t count = 0, dim = 0, value_dim = 0;
  float* w = nullptr;            // as PackedKeys::k
  float* values = nullptr;       // as PackedKeys::v
  float* log_weights = nullptr;  // [blocks][kKeyBlock]; -inf: none

  size_t blocks() const { return (count + kKeyBlock - 1) / kKeyBlock; }
  size_t columns() const { return round_up(dim, 16); }
  size_t value_columns() const { return round_up(value_dim, 16); }
  // The first `present` samples as keys of queries.
  PackedKeys keys(size_t present) const {
    return {.count = present, .dim = dim, .value_dim = value_dim, .k = w, .v = values, .bias = log_weights};
  }
};

// norms[t] = offset - scale |x_t|^2 / 2 of rows [first, first + count), from the first row on; offset where a row takes no part.
// In double, since logits are differences of such norms and of products as large.
struct HalfNorms {
  Rows x;
  KeyMask mask;
  size_t first = 0, count = 0, dim = 0;
  float scale = 1, offset = 0;
  MutRows norms;  // [.., 1]
};
void half_norms(const HalfNorms& task);

// At most kSampleTokens keys, the bias of whose mask is that of their logits.
struct SampleAdd {
  PackedSamples samples;
  size_t present = 0;  // samples that read them: the first ones
  KeySource keys;
  size_t first = 0, count = 0;  // rows of the source
  float scale = 1;              // of the keys
  float log_decay = 0;
  const float* mixture = nullptr;  // [samples]: b_s; +inf where a sample takes no part; null: 0
};

void add_to_samples(const SampleAdd& task, float* scratch);
size_t sample_add_scratch(size_t dim, size_t value_dim);

// What the gradients of one head share. Rows are padded with zeros to a multiple of 16 columns.
struct SampleGradients {
  PackedSamples samples;
  const float* w_rows = nullptr;  // [blocks kKeyBlock, columns]
  float* dw = nullptr;            // [blocks kKeyBlock, columns]; null: not needed
  float* from_values = nullptr;   // G [blocks kKeyBlock, value columns]
  float* from_weights = nullptr;  // D [blocks kKeyBlock]
};

// At most kSampleTokens queries of a window, and the samples before it. Biases of queries and keys are constants and
// - |scale x|^2 / 2, whose gradient goes into dq and dk.
struct SampleQueries {
  size_t present = 0;
  size_t count = 0;
  float scale = 1;
  Rows q, dout;                        // [count, ..]
  Rows out, bias, logsumexp;           // [count, ..]: out is not read by gather_queries()
  float* delta = nullptr;              // [count]: written by read_samples_backward()
  const float* log_weights = nullptr;  // [samples]: l_s that they read
  MutRows dq;                          // added to
  float* dlog_weights = nullptr;       // [samples]: added to; null: not needed
};

// From left to right: dq and dW. samples.values are those that the queries read.
void read_samples_backward(const SampleGradients& gradients, const SampleQueries& queries, float* scratch);
// From right to left: G and D of one more window.
void gather_queries(const SampleGradients& gradients, const SampleQueries& queries, float* scratch);

// Keys of a window, after gather_queries() of all later ones.
struct SampleKeys {
  SampleAdd add;                       // as it was; values and log weights of the samples are not used
  const float* log_weights = nullptr;  // [samples]: l'_s
  MutRows dk, dv;                      // added to
  float* dmixture = nullptr;           // [samples]: added to; null: not needed
};
void add_to_samples_backward(const SampleGradients& gradients, const SampleKeys& keys, float* scratch);

// G and D times exp(before + log_decay - after), for the first `present` samples.
void rescale_gathered(const SampleGradients& gradients, size_t present, const float* before, float log_decay, const float* after);

size_t sample_backward_scratch(size_t dim, size_t value_dim);

}  // namespace raffia::internal

#endif  // RAFFIA_KERNELS_SAMPLES_H_
