// Draws keys from the rows of a softmax: the scores of the forward pass again, and the sums of their probabilities.

#if defined(RAFFIA_KERNELS_SOFTMAX_DRAW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_SOFTMAX_DRAW_INL_H_
#undef RAFFIA_KERNELS_SOFTMAX_DRAW_INL_H_
#else
#define RAFFIA_KERNELS_SOFTMAX_DRAW_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {

// The first of the keys [begin, end) of a block at which the sum exceeds `uniform`; the last one that has a probability where
// rounding of the sum of the whole block leaves none.
inline HWY_NOINLINE size_t find_key(const float* HWY_RESTRICT probabilities, const Seen& seen, double sum, double uniform) {
  size_t last = seen.begin;
  for (size_t j = seen.begin; j < seen.end; ++j) {
    if (probabilities[j] > 0.0f) last = j;
    sum += static_cast<double>(probabilities[j]);
    if (sum > uniform) return j;
  }
  return last;
}

void draw_block(const DrawTask& task, float* scratch) {
  const size_t dim = task.dim, queries = task.count, draws = task.draws;
  float* q = scratch;                           // [queries][dim]
  float* scores = q + kQueryBlock * dim;        // [queries][kKeyBlock]
  float* k = scores + kQueryBlock * kKeyBlock;  // a block of keys
  float* biases = k + kKeyBlock * dim;
  float* bias = task.masked ? biases : nullptr;
  float shift[kQueryBlock];
  double sum[kQueryBlock];
  Seen seen[kQueryBlock];
  for (size_t i = 0; i < queries; ++i) {
    copy_scaled(task.q, task.first + i, dim, dim, task.scale, q + i * dim);
    shift[i] = task.logsumexp.at(task.first + i, 0);
    sum[i] = 0;
  }
  std::fill_n(task.drawn, queries * draws, -1);

  const size_t end = task.visible.end(task.first + queries - 1);
  for (size_t begin = task.visible.begin(task.first) / kPanel * kPanel; begin < end; begin += kKeyBlock) {
    pack_rows(task.source, dim, 0, begin, std::min({begin + kKeyBlock, task.visible.keys, end}), k, nullptr, bias,
              biases + kKeyBlock);
    fill_seen(task.visible, task.first, queries, begin, kKeyBlock, seen);
    for_query_tiles(task.visible, queries, [&]<size_t kTileRows>(size_t m, TileShape<kTileRows>) HWY_ATTR {
      const size_t left = seen[m].begin / kPanel * kPanel, width = round_up(seen[m + kTileRows - 1].end, kPanel);
      if (width <= left) return;
      score_tile<kTileRows>(q + m * dim, dim, k, left, width, scores + m * kKeyBlock);
      for (size_t i = m; i < m + kTileRows; ++i) {
        if (shift[i] == kMinusInfinity) continue;
        float* row = scores + i * kKeyBlock;
        if (bias != nullptr) bias_and_max(row + left, bias + left, width - left);
        hide_unseen(row, left, seen[i], width);
        const double after = sum[i] + static_cast<double>(exp_and_sum(row + left, shift[i], width - left));
        for (size_t t = 0; t < draws; ++t) {
          int32_t& drawn = task.drawn[i * draws + t];
          const double uniform = task.uniforms[i * draws + t];
          if (drawn < 0 && uniform < after) drawn = static_cast<int32_t>(begin + find_key(row, seen[i], sum[i], uniform));
        }
        sum[i] = after;
      }
    });
  }

  for (size_t i = 0; i < queries; ++i) {
    for (size_t t = 0; t < draws; ++t) {
      int32_t& drawn = task.drawn[i * draws + t];
      if (drawn >= 0 || shift[i] == kMinusInfinity) continue;
      // A query of NaN may get here without any key that takes part.
      const size_t begin = task.visible.begin(task.first + i);
      size_t last = task.visible.end(task.first + i);
      while (last > begin && !task.source.mask.takes_part(last - 1)) --last;
      drawn = last > begin ? static_cast<int32_t>(last - 1) : -1;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
