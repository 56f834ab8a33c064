// Keys that are added to samples: see samples.h.

#if defined(RAFFIA_KERNELS_SAMPLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_SAMPLES_INL_H_
#undef RAFFIA_KERNELS_SAMPLES_INL_H_
#else
#define RAFFIA_KERNELS_SAMPLES_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/samples.h"
#include "kernels/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows [first, first + count), times `scale`, to [count, columns]; 0 where a mask says so.
inline HWY_NOINLINE void stage_rows(const Rows& rows, const KeyMask& mask, size_t first, size_t count, size_t dim, float scale,
                                    float* HWY_RESTRICT out) {
  const size_t columns = round_up(dim, kPanel);
  for (size_t i = 0; i < count; ++i) {
    if (mask.takes_part(first + i)) {
      copy_scaled(rows, first + i, dim, columns, scale, out + i * columns);
    } else {
      std::fill_n(out + i * columns, columns, 0.0f);
    }
  }
}

HWY_INLINE void stage_bias(const KeyMask& mask, size_t first, size_t count, float* HWY_RESTRICT bias) {
  for (size_t i = 0; i < count; ++i) {
    const bool biased = mask.bias.data != nullptr;
    bias[i] = mask.takes_part(first + i) ? (biased ? mask.bias.at(first + i, 0) : 0.0f) : kMinusInfinity;
  }
}

HWY_INLINE double squared_norm(const float* HWY_RESTRICT x, size_t dim) {
  double norm = 0;
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  constexpr size_t kDoubles = hn::MaxLanes(hn::CappedTag<double, 8>());
  auto sum0 = hn::Zero(d), sum1 = sum0;
  for (; i + 2 * kDoubles <= dim; i += 2 * kDoubles) {
    const auto x0 = hn::PromoteTo(d, hn::LoadU(df, x + i)), x1 = hn::PromoteTo(d, hn::LoadU(df, x + i + kDoubles));
    sum0 = hn::MulAdd(x0, x0, sum0);
    sum1 = hn::MulAdd(x1, x1, sum1);
  }
  norm = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
#endif
  for (; i < dim; ++i) norm += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return norm;
}

void norms_of_rows(const HalfNorms& task) {
  for (size_t t = task.first; t < task.first + task.count; ++t) {
    double norm = 0;
    if (task.mask.takes_part(t)) {
      if (task.x.direct()) {
        norm = squared_norm(task.x.direct_row(t), task.dim);
      } else {
        for (size_t i = 0; i < task.dim; ++i) norm += static_cast<double>(task.x.at(t, i)) * static_cast<double>(task.x.at(t, i));
      }
    }
    task.norms.set(t, 0, static_cast<float>(norm * static_cast<double>(-task.scale / 2)) + task.offset);
  }
}

// out [rows, kKeyBlock] = a [rows, columns] b, where b [width / 16][depth][16] are panels.
template <class Columns>
HWY_INLINE void panel_scores(const float* a, size_t rows, Columns columns, size_t depth, const float* b, size_t width,
                             float* out) {
  for_panels(round_up(width, kPanel) / kPanel, [&](size_t p, auto pair) HWY_ATTR {
    constexpr size_t kPanels = decltype(pair)::value;
    const float* panel = b + p * depth * kPanel;
    for_tiles<kPanels>(rows, [&]<size_t R, size_t P>(size_t m, TileShape<R, P>) HWY_ATTR {
      WideTile<R, P> tile;
      tile.zero();
      tile.multiply(depth, a + m * columns, columns, UnitStride(), panel, depth * kPanel, kPanel);
      tile.store(out + m * kKeyBlock + p * kPanel, kPanel, kKeyBlock);
    });
  });
}

// c [rows, columns] += A b, A(m, k) = a[m row_stride + k col_stride], b [depth, columns]; `columns` is a multiple of 16.
template <class RowStride, class ColStride>
HWY_INLINE void add_rows_product(size_t rows, size_t columns, size_t depth, const float* a, RowStride row_stride,
                                 ColStride col_stride, const float* b, float* c) {
  for_panels(columns / kPanel, [&](size_t p, auto pair) HWY_ATTR {
    constexpr size_t kPanels = decltype(pair)::value;
    for_tiles<kPanels>(rows, [&]<size_t R, size_t P>(size_t m, TileShape<R, P>) HWY_ATTR {
      WideTile<R, P> tile;
      tile.load(c + m * columns + p * kPanel, kPanel, columns);
      tile.multiply(depth, a + m * row_stride, row_stride, col_stride, b + p * kPanel, kPanel, columns);
      tile.store(c + m * columns + p * kPanel, kPanel, columns);
    });
  });
}

// scores [count, kKeyBlock] of one vector of samples, of which `samples` count -> exp(scores + bias - shift) times what makes of
// it a share of the merged weight. Log weights are merged, and `kept` is the share of what was there.
HWY_INLINE void merge_scores(float* HWY_RESTRICT scores, const float* HWY_RESTRICT bias, size_t count, Vec decay, Vec mixture,
                             size_t samples, float* HWY_RESTRICT log_weights, float* HWY_RESTRICT kept) {
  const Tag d;
  const Vec none = hn::Set(d, kMinusInfinity), zero = hn::Zero(d);
  Vec greatest = none;
  for (size_t m = 0; m < count; ++m) {
    const Vec s = hn::Add(hn::LoadU(d, scores + m * kKeyBlock), hn::Set(d, bias[m]));
    hn::StoreU(s, d, scores + m * kKeyBlock);
    greatest = at_least(d, s, greatest);  // passes a NaN of s over: it is found in the sum
  }
  greatest = at_most(d, hn::Set(d, kLargest), greatest);
  const Vec shift = hn::IfThenElse(hn::Eq(greatest, none), zero, greatest);
  Vec sum = zero;
  for (size_t m = 0; m < count; ++m) {
    const Vec e = exp_of_nonpositive(d, at_most(d, zero, hn::Sub(hn::LoadU(d, scores + m * kKeyBlock), shift)));
    hn::StoreU(e, d, scores + m * kKeyBlock);
    sum = hn::Add(sum, e);
  }
  const auto empty = hn::Eq(sum, zero);
  const Vec total = hn::IfThenElse(empty, none, hn::Add(shift, hn::Log(d, hn::IfThenElse(empty, hn::Set(d, 1.0f), sum))));
  const Vec added = hn::Sub(total, mixture), before = hn::Add(hn::LoadU(d, log_weights), decay);
  const Vec most = hn::Max(before, added), safe = hn::IfThenElse(hn::Eq(most, none), zero, most);
  const Vec finite = hn::Add(most, hn::Log1p(d, exp_of_nonpositive(d, hn::Sub(hn::Min(before, added), safe))));
  // Which one of two operands Max and Min return if one is NaN depends on the CPU. A NaN of the keys is in `sum`: Log may lose
  // it.
  const Vec all = hn::Add(hn::Add(before, added), sum);
  const Vec merged = hn::IfThenElse(hn::IsNaN(all), all, finite);
  const Vec reference = hn::IfThenElse(hn::Eq(merged, none), zero, merged);
  store_some(merged, log_weights, samples);  // not of samples to come, which may be NaN
  hn::StoreU(exp_of_nonpositive(d, at_most(d, zero, hn::Sub(before, reference))), d, kept);
  const Vec share =
      hn::Div(exp_of_nonpositive(d, at_most(d, zero, hn::Sub(added, reference))), hn::IfThenElse(empty, hn::Set(d, 1.0f), sum));
  for (size_t m = 0; m < count; ++m) {
    hn::StoreU(hn::Mul(share, hn::LoadU(d, scores + m * kKeyBlock)), d, scores + m * kKeyBlock);
  }
}

void add_keys(const SampleAdd& task, float* scratch) {
  const Tag d;
  const PackedSamples& samples = task.samples;
  const size_t columns = samples.columns(), value_columns = samples.value_columns();
  float* k = scratch;                                 // [count][columns]
  float* v = k + kSampleTokens * columns;             // [count][value columns]
  float* scores = v + kSampleTokens * value_columns;  // [count][kKeyBlock]
  float* bias = scores + kSampleTokens * kKeyBlock;   // [count]
  float* kept = bias + kSampleTokens;                 // [kKeyBlock]
  stage_rows(task.keys.k, task.keys.mask, task.first, task.count, samples.dim, task.scale, k);
  stage_rows(task.keys.v, task.keys.mask, task.first, task.count, samples.value_dim, 1.0f, v);
  stage_bias(task.keys.mask, task.first, task.count, bias);
  for (size_t begin = 0; begin < task.present; begin += kKeyBlock) {
    const size_t count = HWY_MIN(kKeyBlock, task.present - begin);
    panel_scores(k, task.count, columns, samples.dim, samples.w + begin * samples.dim, count, scores);
    for (size_t s = 0; s < count; s += kLanes) {
      Vec mixture = hn::Zero(d);
      if (task.mixture != nullptr) mixture = load_some(task.mixture + begin + s, count - s);
      merge_scores(scores + s, bias, task.count, hn::Set(d, task.log_decay), mixture, count - s, samples.log_weights + begin + s,
                   kept + s);
    }
    float* values = samples.values + begin * value_columns;  // panels of kKeyBlock rows of 16
    for_panels(value_columns / kPanel, [&](size_t p, auto pair) HWY_ATTR {
      constexpr size_t kPanels = decltype(pair)::value;
      float* panel = values + p * kKeyBlock * kPanel;
      for_tiles<kPanels>(count, [&]<size_t R, size_t P>(size_t s, TileShape<R, P>) HWY_ATTR {
        WideTile<R, P> tile;
        tile.load(panel + s * kPanel, kKeyBlock * kPanel, kPanel);
        tile.scale_rows(kept + s);
        tile.multiply(task.count, scores + s, UnitStride(), kKeyBlock, v + p * kPanel, kPanel, value_columns);
        tile.store(panel + s * kPanel, kKeyBlock * kPanel, kPanel);
      });
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
