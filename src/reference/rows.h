// Common to the twins: which tokens make up a sequence, and rows of views as vectors of doubles.
#ifndef RAFFIA_REFERENCE_ROWS_H_
#define RAFFIA_REFERENCE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "raffia/attention.h"
#include "raffia/views.h"

namespace raffia::internal::twins {

// Tokens that attend to each other. Its index in the list is its batch entry in a state.
struct Sequence {
  int64_t batch;  // entry of q, k, v
  int64_t first_query, queries;
  int64_t first_key, keys;
};

inline std::vector<Sequence> sequences_of(const Layout& layout, int64_t batch, int64_t query_length, int64_t key_length) {
  std::vector<Sequence> sequences;
  if (!layout.cu_seqlens.empty()) {
    const auto& cu_q = layout.cu_seqlens;
    const auto& cu_k = layout.cu_seqlens_k.empty() ? cu_q : layout.cu_seqlens_k;
    for (size_t n = 0; n + 1 < cu_q.size(); ++n)
      sequences.push_back({0, cu_q[n], cu_q[n + 1] - cu_q[n], cu_k[n], cu_k[n + 1] - cu_k[n]});
    return sequences;
  }
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t keys = layout.lengths.empty() ? key_length : layout.lengths[static_cast<size_t>(b)];
    sequences.push_back({b, 0, query_length == key_length ? keys : query_length, 0, keys});
  }
  return sequences;
}

inline bool takes_part(const Layout& layout, int64_t b, int64_t t) { return layout.valid.absent() || layout.valid(b, t) != 0; }

inline std::vector<double> row(View4 view, int64_t b, int64_t t, int64_t h) {
  std::vector<double> values(static_cast<size_t>(view.extent(3)));
  for (int64_t i = 0; i < view.extent(3); ++i) values[static_cast<size_t>(i)] = view(b, t, h, i);
  return values;
}

inline void store_row(std::span<const double> values, MutView4 view, int64_t b, int64_t t, int64_t h) {
  for (int64_t i = 0; i < view.extent(3); ++i) view.set(values[static_cast<size_t>(i)], b, t, h, i);
}

// Every element of a view [B, T, H, ..]; absent views have none.
inline void fill(MutView4 view, double value) {
  for (int64_t b = 0; b < view.extent(0); ++b) {
    for (int64_t t = 0; t < view.extent(1); ++t) {
      for (int64_t h = 0; h < view.extent(2); ++h) {
        for (int64_t i = 0; i < view.extent(3); ++i) view.set(value, b, t, h, i);
      }
    }
  }
}

inline void fill(MutView3 view, double value) {
  for (int64_t b = 0; b < view.extent(0); ++b) {
    for (int64_t t = 0; t < view.extent(1); ++t) {
      for (int64_t h = 0; h < view.extent(2); ++h) view.set(value, b, t, h);
    }
  }
}

inline double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace raffia::internal::twins

#endif  // RAFFIA_REFERENCE_ROWS_H_
