// Chunks of a sequence, the means of their rows, and squared norms: what LARA and EVA know of queries and keys beside softmax.
//
// All of it reads every row once, in stretches that depend on shapes alone, so that sums do not depend on the threads.
#ifndef RAFFIA_ESTIMATORS_CHUNK_MEANS_H_
#define RAFFIA_ESTIMATORS_CHUNK_MEANS_H_

#include <cstdint>
#include <vector>

#include "estimators/sequences.h"
#include "kernels/softmax.h"
#include "raffia/views.h"

namespace raffia {

// Tokens [begin, end) of a sequence, of which `count` take part. Neither end moves back from one chunk to the next.
struct TokenChunk {
  int64_t begin = 0, end = 0;
  int64_t count = 0;
};

// `chunks` equal shares of the n tokens that take part: chunk c holds numbers floor(c n / chunks) to floor((c + 1) n / chunks) of
// these, and at least one: with fewer tokens than chunks some stand in several. No chunks where no token takes part.
std::vector<TokenChunk> equal_shares(const KeyMask& mask, int64_t tokens, int64_t chunks);

// Stretches of `length` positions, the last one shorter; some may hold no token that takes part.
std::vector<TokenChunk> equal_stretches(const KeyMask& mask, int64_t tokens, int64_t length);

struct ChunkedSequence {
  int64_t batch;        // entry of rows and means
  int64_t first_token;  // of the rows
  int64_t first_mean;   // row of the mean of the first chunk
  KeyMask mask;         // of the tokens of the sequence; its bias does not count
  std::vector<TokenChunk> chunks;
};

// means [B, C, H, D] fp32 (the last axis in one piece) = scale * mean of rows x [B, T, H, D] over each chunk; 0 where none takes
// part.
void chunk_means(View4 x, float scale, const std::vector<ChunkedSequence>& sequences, MutView4 means, const Workers& workers);

// dx += what the gradient of the means gives it. Rows that take no part are left alone.
void add_chunk_means_backward(View4 dmeans, float scale, const std::vector<ChunkedSequence>& sequences, MutView4 dx,
                              const Workers& workers);

// Tokens of one sequence, for what concerns rows one by one.
struct TokenSpan {
  int64_t batch, first, count;
  KeyMask mask;
};

// log_norms [B, T, H] fp32 = -scale |x|^2 / 2: the part of log xi(x, w) that does not depend on w. 0 where a row takes no part.
void half_norms(View4 x, float scale, const std::vector<TokenSpan>& spans, MutView3 log_norms, const Workers& workers);

// dx += what the gradient of half_norms() gives it.
void add_half_norms_backward(View4 x, float scale, View3 dlog_norms, const std::vector<TokenSpan>& spans, MutView4 dx,
                             const Workers& workers);

}  // namespace raffia

#endif  // RAFFIA_ESTIMATORS_CHUNK_MEANS_H_
