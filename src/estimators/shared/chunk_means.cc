#include "estimators/shared/chunk_means.h"

#include <algorithm>

#include "kernels/samples.h"

namespace raffia::internal {
namespace {

constexpr int64_t kTokensPerStretch = 64;  // tokens per task, about: 128 KB at 8 heads of 64 dimensions

// Row t as floats in one piece: where it lies, or a copy in `staging`.
const float* floats_of(const Rows& rows, size_t t, size_t dim, float* staging) {
  if (rows.direct()) return rows.direct_row(t);
  if (rows.dtype == DType::bf16 && rows.col_stride == 1) {
    const BFloat16* row = static_cast<const BFloat16*>(rows.data) + static_cast<int64_t>(t) * rows.row_stride;
    for (size_t i = 0; i < dim; ++i) staging[i] = row[i].to_float();
  } else {
    for (size_t i = 0; i < dim; ++i) staging[i] = rows.at(t, i);
  }
  return staging;
}

// row t += factor * x
void add_row(const float* x, float factor, size_t dim, const MutRows& rows, size_t t) {
  if (rows.direct()) {
    float* row = rows.direct_row(t);
    for (size_t i = 0; i < dim; ++i) row[i] += factor * x[i];
  } else {
    for (size_t i = 0; i < dim; ++i) rows.set(t, i, rows.readable().at(t, i) + factor * x[i]);
  }
}

// A stretch of the chunks, tokens or rows of one sequence.
struct ChunkStretch {
  size_t sequence;
  size_t begin, end;
};

// Calls body(sequence, begin, end, staging [dim]) in parallel for the stretches of every sequence.
template <class Sequences, class Body>
void for_stretches(const Sequences& sequences, const std::vector<ChunkStretch>& stretches, size_t dim, const Workers& workers,
                   const Body& body) {
  const Scratch staging(workers.count(), dim);
  workers.run(stretches, staging, [&](const ChunkStretch& stretch, float* memory) {
    body(sequences[stretch.sequence], stretch.begin, stretch.end, memory);
  });
}

std::vector<ChunkStretch> token_stretches(const std::vector<TokenSpan>& spans) {
  std::vector<ChunkStretch> stretches;
  for (size_t n = 0; n < spans.size(); ++n) {
    for (int64_t t = 0; t < spans[n].count; t += kTokensPerStretch) {
      stretches.push_back({n, static_cast<size_t>(t), static_cast<size_t>(std::min(t + kTokensPerStretch, spans[n].count))});
    }
  }
  return stretches;
}

}  // namespace

std::vector<TokenChunk> equal_shares(const KeyMask& mask, int64_t tokens, int64_t chunks) {
  std::vector<int64_t> present;
  present.reserve(static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) {
    if (mask.takes_part(static_cast<size_t>(t))) present.push_back(t);
  }
  const int64_t n = static_cast<int64_t>(present.size());
  std::vector<TokenChunk> shares;
  for (int64_t c = 0; n > 0 && c < chunks; ++c) {
    const int64_t begin = c * n / chunks, end = std::max(begin + 1, (c + 1) * n / chunks);
    shares.push_back({present[static_cast<size_t>(begin)], present[static_cast<size_t>(end - 1)] + 1, end - begin});
  }
  return shares;
}

std::vector<TokenChunk> equal_stretches(const KeyMask& mask, int64_t tokens, int64_t length) {
  std::vector<TokenChunk> stretches;
  for (int64_t begin = 0; begin < tokens; begin += length) {
    TokenChunk& chunk = stretches.emplace_back(TokenChunk{begin, std::min(begin + length, tokens), 0});
    for (int64_t t = chunk.begin; t < chunk.end; ++t) chunk.count += mask.takes_part(static_cast<size_t>(t)) ? 1 : 0;
  }
  return stretches;
}

void chunk_means(View4 x, float scale, const std::vector<ChunkedSequence>& sequences, MutView4 means, const Workers& workers) {
  const size_t dim = static_cast<size_t>(x.extent(3));
  std::vector<ChunkStretch> stretches;
  for (size_t n = 0; n < sequences.size(); ++n) {
    const std::vector<TokenChunk>& chunks = sequences[n].chunks;
    for (size_t begin = 0, end = 0; begin < chunks.size(); begin = end) {
      for (int64_t tokens = 0; end < chunks.size() && tokens < kTokensPerStretch; ++end)
        tokens += chunks[end].end - chunks[end].begin;
      stretches.push_back({n, begin, end});
    }
  }
  for_stretches(sequences, stretches, dim, workers, [&](const ChunkedSequence& s, size_t begin, size_t end, float* staging) {
    for (size_t c = begin; c < end; ++c) {
      const TokenChunk& chunk = s.chunks[c];
      // All heads of a token together: they mostly lie side by side.
      for (int64_t h = 0; h < x.extent(2); ++h) {
        std::fill_n(rows_of<MutRows>(means, s.batch, s.first_mean, h).direct_row(c), dim, 0.0F);
      }
      for (int64_t t = chunk.begin; t < chunk.end; ++t) {
        if (!s.mask.takes_part(static_cast<size_t>(t))) continue;
        for (int64_t h = 0; h < x.extent(2); ++h) {
          const float* row = floats_of(rows_of<Rows>(x, s.batch, s.first_token, h), static_cast<size_t>(t), dim, staging);
          float* sum = rows_of<MutRows>(means, s.batch, s.first_mean, h).direct_row(c);
          for (size_t i = 0; i < dim; ++i) sum[i] += row[i];
        }
      }
      if (chunk.count == 0) continue;
      const float factor = scale / static_cast<float>(chunk.count);
      for (int64_t h = 0; h < x.extent(2); ++h) {
        float* mean = rows_of<MutRows>(means, s.batch, s.first_mean, h).direct_row(c);
        for (size_t i = 0; i < dim; ++i) mean[i] *= factor;
      }
    }
  });
}

void add_chunk_means_backward(View4 dmeans, float scale, const std::vector<ChunkedSequence>& sequences, MutView4 dx,
                              const Workers& workers) {
  const size_t dim = static_cast<size_t>(dx.extent(3));
  std::vector<TokenSpan> spans;
  for (const ChunkedSequence& s : sequences) {
    spans.push_back({s.batch, s.first_token, s.chunks.empty() ? 0 : s.chunks.back().end, s.mask});
  }
  const std::vector<ChunkStretch> stretches = token_stretches(spans);
  for_stretches(sequences, stretches, dim, workers, [&](const ChunkedSequence& s, size_t begin, size_t end, float*) {
    const auto holds = [](const TokenChunk& chunk, size_t t) { return chunk.end <= static_cast<int64_t>(t); };
    size_t first = static_cast<size_t>(std::lower_bound(s.chunks.begin(), s.chunks.end(), begin, holds) - s.chunks.begin());
    for (size_t t = begin; t < end; ++t) {
      while (s.chunks[first].end <= static_cast<int64_t>(t)) ++first;
      if (!s.mask.takes_part(t)) continue;
      for (size_t c = first; c < s.chunks.size() && s.chunks[c].begin <= static_cast<int64_t>(t); ++c) {
        const float factor = scale / static_cast<float>(s.chunks[c].count);
        for (int64_t h = 0; h < dx.extent(2); ++h) {
          add_row(rows_of<Rows>(dmeans, s.batch, s.first_mean, h).direct_row(c), factor, dim,
                  rows_of<MutRows>(dx, s.batch, s.first_token, h), t);
        }
      }
    }
  });
}

void half_norms(View4 x, float scale, const std::vector<TokenSpan>& spans, MutView3 log_norms, const Workers& workers) {
  const size_t dim = static_cast<size_t>(x.extent(3));
  for_stretches(spans, token_stretches(spans), 0, workers, [&](const TokenSpan& s, size_t begin, size_t end, float*) {
    for (int64_t h = 0; h < x.extent(2); ++h) {
      half_norms({.x = rows_of<Rows>(x, s.batch, s.first, h),
                  .mask = s.mask,
                  .first = begin,
                  .count = end - begin,
                  .dim = dim,
                  .scale = scale,
                  .norms = column_of<MutRows>(log_norms, s.batch, s.first, h)});
    }
  });
}

void add_half_norms_backward(View4 x, float scale, View3 dlog_norms, const std::vector<TokenSpan>& spans, MutView4 dx,
                             const Workers& workers) {
  const size_t dim = static_cast<size_t>(x.extent(3));
  for_stretches(spans, token_stretches(spans), dim, workers, [&](const TokenSpan& s, size_t begin, size_t end, float* staging) {
    for (size_t t = begin; t < end; ++t) {
      if (!s.mask.takes_part(t)) continue;
      for (int64_t h = 0; h < x.extent(2); ++h) {
        const float* row = floats_of(rows_of<Rows>(x, s.batch, s.first, h), t, dim, staging);
        add_row(row, -scale * column_of<Rows>(dlog_norms, s.batch, s.first, h).at(t, 0), dim,
                rows_of<MutRows>(dx, s.batch, s.first, h), t);
      }
    }
  });
}

}  // namespace raffia::internal
