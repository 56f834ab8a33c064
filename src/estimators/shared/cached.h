// Causal attention whose memory is a KeyCache: exact attention, and what draws keys from all of the past.
#ifndef RAFFIA_ESTIMATORS_SHARED_CACHED_H_
#define RAFFIA_ESTIMATORS_SHARED_CACHED_H_

#include <cstdint>
#include <functional>
#include <span>

#include "raffia/estimator.h"

namespace raffia::internal {

struct CachedAttention {
  // q [1, Tq, H, D], k and v [1, Tk, G, ..] with Tq <= Tk: the last queries.
  std::function<void(View4 q, View4 k, View4 v, MutView4 out, const AttendOptions& options)> attend;
  // One token, whose key and value are the last ones of the cache. Null: attend().
  std::function<void(View3 q, View4 k, View4 v, MutView3 out, const AttendOptions& options)> step = {};
  // attend() counts from the first key: it needs as many queries as keys. Queries of zeros are put in place of the past ones.
  bool counts_from_first_key = false;
  // Rows that the next token can see after `tokens` tokens. Null: all.
  std::function<int64_t(int64_t tokens)> visible = {};
};

KeyCache empty_cache(const MemorySizes& sizes);
std::optional<int64_t> cache_bytes(const MemorySizes& sizes, int64_t rows);

// Every entry of the batch continues with its entry of the cache.
void extend_cached(const CachedAttention& op, const AttendInputs& inputs, KeyCache& cache, MutView4 out,
                   const AttendOptions& options);
// One token for each session. Sessions are independent of each other, so they run side by side.
void step_cached(const CachedAttention& op, const AttendInputs& inputs, std::span<KeyCache* const> sessions, MutView4 out,
                 const AttendOptions& options);

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_SHARED_CACHED_H_
