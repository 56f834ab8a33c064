// Chunks of a sequence, the means of their rows, and squared norms: what LARA and EVA need of queries and keys besides softmax.
//
// Each function reads every row once, in stretches that depend only on shapes, so that sums do not depend on the threads.
#ifndef RAFFIA_ESTIMATORS_SHARED_CHUNK_MEANS_H_
#define RAFFIA_ESTIMATORS_SHARED_CHUNK_MEANS_H_

#include <cstdint>
#include <vector>

#include "estimators/shared/sequences.h"
#include "kernels/softmax.h"
#include "raffia/views.h"

namespace raffia::internal {

// Tokens [begin, end) of a sequence, of which `count` take part. Both ends are non-decreasing from one chunk to the next.
struct TokenChunk {
  int64_t begin = 0, end = 0;
  int64_t count = 0;
};

// `chunks` equal shares of the n tokens that take part: chunk c holds numbers floor(c n / chunks) to floor((c + 1) n / chunks) of
// these, and at least one: with fewer tokens than chunks, some tokens are in several. No chunks if no token takes part.
std::vector<TokenChunk> equal_shares(const KeyMask& mask, int64_t tokens, int64_t chunks);

// Stretches of `length` positions, the last one shorter; some may hold no token that takes part.
std::vector<TokenChunk> equal_stretches(const KeyMask& mask, int64_t tokens, int64_t length);

struct ChunkedSequence {
  int64_t batch;        // entry of rows and means
  int64_t first_token;  // of the rows
  int64_t first_mean;   // row of the mean of the first chunk
  KeyMask mask;         // of the tokens of the sequence; its bias is not used
  std::vector<TokenChunk> chunks;
};

// means [B, C, H, D] fp32 (the last axis contiguous) = scale * mean of rows x [B, T, H, D] over each chunk; 0 for chunks without
// tokens.
void chunk_means(View4 x, float scale, const std::vector<ChunkedSequence>& sequences, MutView4 means, const Workers& workers);

// Adds the gradient through the means to dx. Rows that take no part are not changed.
void add_chunk_means_backward(View4 dmeans, float scale, const std::vector<ChunkedSequence>& sequences, MutView4 dx,
                              const Workers& workers);

// Tokens of one sequence, for functions that treat rows one by one.
struct TokenSpan {
  int64_t batch, first, count;
  KeyMask mask;
};

// log_norms [B, T, H] fp32 = -scale |x|^2 / 2: the part of log xi(x, w) that does not depend on w. 0 where a row takes no part.
void half_norms(View4 x, float scale, const std::vector<TokenSpan>& spans, MutView3 log_norms, const Workers& workers);

// Adds the gradient through half_norms() to dx.
void add_half_norms_backward(View4 x, float scale, View3 dlog_norms, const std::vector<TokenSpan>& spans, MutView4 dx,
                             const Workers& workers);

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_SHARED_CHUNK_MEANS_H_
