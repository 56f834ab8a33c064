#include "estimators/shared/sample_sweep.h"

#include <algorithm>
#include <type_traits>

#include "estimators/shared/sample_states.h"

namespace raffia::internal {
namespace {

size_t rows_for(const RunningSamples::Shape& shape) { return round_up(shape.samples, kKeyBlock); }
size_t columns_for(size_t dim) { return round_up(dim, 16); }

// Rows from `first` on.
template <class AnyRows>
AnyRows from_row(AnyRows rows, size_t first) {
  if (rows.data == nullptr || first == 0) return rows;
  using Byte = std::conditional_t<std::is_same_v<AnyRows, MutRows>, std::byte, const std::byte>;
  rows.data = static_cast<Byte*>(rows.data) + static_cast<int64_t>(first * size_of(rows.dtype)) * rows.row_stride;
  return rows;
}

}  // namespace

size_t SampleSweep::floats(const Shape& shape) {
  const size_t rows = rows_for(shape.samples);
  const size_t of_row = (shape.moves ? 2 : 1) * columns_for(shape.samples.dim) + columns_for(shape.samples.value_dim) + 1;
  return round_up(RunningSamples::floats(shape.samples) + rows * (of_row + shape.windows + 1) + shape.tokens, 16);
}

size_t SampleSweep::scratch_floats(const RunningSamples::Shape& shape) {
  return std::max(RunningSamples::scratch_floats(shape), sample_backward_scratch(shape.dim, shape.value_dim));
}

SampleSweep::SampleSweep(const Shape& shape, const Rows& w, float* memory, float* scratch)
    : samples_(shape.samples, w, memory, scratch), rows_(rows_for(shape.samples)) {
  const size_t columns = columns_for(shape.samples.dim), value_columns = columns_for(shape.samples.value_dim);
  float* w_rows = memory + RunningSamples::floats(shape.samples);
  float* from_values = w_rows + rows_ * columns;
  float* from_weights = from_values + rows_ * value_columns;
  boundaries_ = from_weights + rows_;
  float* dw = boundaries_ + (shape.windows + 1) * rows_;
  delta_ = dw + (shape.moves ? rows_ * columns : 0);
  gradients_ = {.samples = samples_.packed(),
                .w_rows = w_rows,
                .dw = shape.moves ? dw : nullptr,
                .from_values = from_values,
                .from_weights = from_weights};
  std::fill_n(w_rows, rows_ * columns, 0.0F);
  std::fill_n(from_values, rows_ * (value_columns + 1), 0.0F);
  if (shape.moves) std::fill_n(dw, rows_ * columns, 0.0F);
  for (size_t s = 0; s < shape.samples.samples; ++s) {
    for (size_t c = 0; c < shape.samples.dim; ++c) w_rows[s * columns + c] = w.at(s, c);
  }
}

template <class Body>
void SampleSweep::for_pieces(SampleQueries queries, size_t at, size_t window, const Body& body) const {
  if (queries.log_weights == nullptr) queries.log_weights = log_weights(window);
  const size_t count = queries.count;
  for (size_t first = 0; first < count; first += kSampleTokens) {
    SampleQueries piece = queries;
    piece.count = std::min(kSampleTokens, count - first);
    piece.q = from_row(queries.q, first);
    piece.dout = from_row(queries.dout, first);
    piece.out = from_row(queries.out, first);
    piece.bias = from_row(queries.bias, first);
    piece.logsumexp = from_row(queries.logsumexp, first);
    piece.dq = from_row(queries.dq, first);
    piece.delta = delta_ + at + first;
    body(piece);
  }
}

void SampleSweep::read(SampleQueries queries, size_t at, size_t window, float* scratch) const {
  for_pieces(queries, at, window, [&](const SampleQueries& piece) { read_samples_backward(gradients_, piece, scratch); });
}

void SampleSweep::add(SampleAdd keys, size_t window, float* scratch) const {
  samples_.add(keys.keys, keys.count, keys.present, keys.scale, keys.log_decay, keys.mixture, scratch);
  mark(window + 1);
}

void SampleSweep::gather(SampleQueries queries, size_t at, size_t window, float* scratch) const {
  for_pieces(queries, at, window, [&](const SampleQueries& piece) { gather_queries(gradients_, piece, scratch); });
}

void SampleSweep::receive(const float* dlog_weights, int64_t stride) const {
  // D is what gradients of logits are lessened by.
  for (size_t s = 0; s < samples_.packed().count; ++s) {
    gradients_.from_weights[s] -= dlog_weights[static_cast<int64_t>(s) * stride];
  }
}

void SampleSweep::add_backward(SampleKeys keys, size_t window, float* scratch) const {
  keys.log_weights = log_weights(window + 1);
  const size_t count = keys.add.count;
  SampleKeys piece = keys;
  for (size_t first = 0; first < count; first += kSampleTokens) {
    piece.add.first = first;
    piece.add.count = std::min(kSampleTokens, count - first);
    piece.dk = from_row(keys.dk, first);
    piece.dv = from_row(keys.dv, first);
    add_to_samples_backward(gradients_, piece, scratch);
  }
  rescale_gathered(gradients_, keys.add.present, log_weights(window), keys.add.log_decay, log_weights(window + 1));
}

}  // namespace raffia::internal
