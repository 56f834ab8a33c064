// One step of decoding with exact softmax: reading the cache is all the work, so it is read once and in the order of memory.
//
// A task takes a stretch of tokens for all heads and walks it token by token where heads are interleaved ([B, T, H, D]), head by
// head where they are apart ([B, H, T, D]): a stream of whole lines either way. All query heads of a group use a key while it is
// in L1.

#if defined(RAFFIA_KERNELS_SOFTMAX_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_SOFTMAX_STEP_INL_H_
#undef RAFFIA_KERNELS_SOFTMAX_STEP_INL_H_
#else
#define RAFFIA_KERNELS_SOFTMAX_STEP_INL_H_
#endif

#include <cstdlib>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE Rows head_of(const Rows& rows, size_t head, int64_t head_stride) {
  Rows moved = rows;
  moved.data = static_cast<const std::byte*>(rows.data) +
               static_cast<int64_t>(head) * head_stride * static_cast<int64_t>(size_of(rows.dtype));
  return moved;
}

// How many tokens ahead a row is prefetched. At the end of a stretch that is in the next one; a useless prefetch costs nothing.
constexpr int64_t kStepAhead = 16;  // 8 to 64 are about the same on Zen 3, fewer are too late

// q . row; `columns` is a multiple of 16. Two sums halve the latency of additions.
HWY_INLINE float dot(const float* HWY_RESTRICT q, const float* HWY_RESTRICT row, size_t columns) {
  const Tag d;
  Vec sum0 = hn::Zero(d), sum1 = sum0;
  size_t c = 0;
  for (; c + 2 * kLanes <= columns; c += 2 * kLanes) {
    sum0 = hn::MulAdd(hn::LoadU(d, q + c), hn::LoadU(d, row + c), sum0);
    sum1 = hn::MulAdd(hn::LoadU(d, q + c + kLanes), hn::LoadU(d, row + c + kLanes), sum1);
  }
  if (c < columns) sum0 = hn::MulAdd(hn::LoadU(d, q + c), hn::LoadU(d, row + c), sum0);  // 16 lanes, an odd number of vectors
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
}

// A row of keys or values that cannot be read in place. Not inline: visits of rows that can be would not be, either, then.
HWY_NOINLINE const float* staged_row(const Rows& rows, size_t head, int64_t head_stride, size_t t, size_t dim, float* staging) {
  copy_scaled(head_of(rows, head, head_stride), t, dim, round_up(dim, kPanel), 1.0f, staging);
  return staging;
}

void step_stretch(const StepTask& task, float* scratch) {
  const size_t columns = round_up(task.dim, kPanel), value_columns = round_up(task.value_dim, kPanel);
  const size_t group = task.heads / task.groups;
  const size_t count = task.end - task.begin, padded = round_up(count, kPanel);
  float* q = scratch;                             // [heads][columns]
  float* scores = q + task.heads * columns;       // [heads][kStepKeys]
  float* bias = scores + task.heads * kStepKeys;  // [kStepKeys]
  float* zeros = bias + kStepKeys;                // [widest]
  float* staging = zeros + round_up(std::max(task.dim, task.value_dim), kPanel);
  std::fill(zeros, staging, 0.0f);
  for (size_t h = 0; h < task.heads; ++h) copy_scaled(task.q, h, task.dim, columns, task.scale, q + h * columns);

  // Calls body(token of the stretch, row, key head) in the order of memory; rows may be read up to a multiple of 16 columns.
  const auto walk = [&](const Rows& rows, int64_t head_stride, size_t dim, const auto& body) HWY_ATTR {
    const bool direct = rows.direct() && dim % kPanel == 0;
    const auto visit = [&](size_t j, size_t g) HWY_ATTR {
      if (!task.mask.takes_part(task.begin + j)) {
        body(j, static_cast<const float*>(zeros), g);
      } else if (direct) {
        const float* row = rows.direct_row(task.begin + j) + static_cast<int64_t>(g) * head_stride;
        for (size_t c = 0; c < dim; c += kPanel) hwy::Prefetch(row + kStepAhead * rows.row_stride + c);
        body(j, row, g);
      } else {
        body(j, staged_row(rows, g, head_stride, task.begin + j, dim, staging), g);
      }
    };
    if (std::abs(head_stride) < std::abs(rows.row_stride)) {
      for (size_t j = 0; j < count; ++j) {
        for (size_t g = 0; g < task.groups; ++g) visit(j, g);
      }
    } else {
      for (size_t g = 0; g < task.groups; ++g) {
        for (size_t j = 0; j < count; ++j) visit(j, g);
      }
    }
  };

  walk(task.k, task.k_head, task.dim, [&](size_t j, const float* row, size_t g) HWY_ATTR {
    for (size_t h = g * group; h < (g + 1) * group; ++h) scores[h * kStepKeys + j] = dot(q + h * columns, row, columns);
  });
  const StepPartial partial(task.partial, task.heads, task.value_dim);
  std::fill_n(partial.values, task.heads * value_columns, 0.0f);
  const bool masked = task.mask.valid != nullptr || task.mask.bias.data != nullptr;
  for (size_t h = 0; h < task.heads; ++h) {
    if (masked && h % group == 0) {
      const Rows head_bias = task.mask.bias.data == nullptr ? Rows{} : head_of(task.mask.bias, h / group, task.bias_head);
      for (size_t j = 0; j < count; ++j) {
        const bool takes_part = task.mask.takes_part(task.begin + j);
        const bool biased = takes_part && head_bias.data != nullptr;
        bias[j] = biased ? head_bias.at(task.begin + j, 0) : (takes_part ? 0.0f : kMinusInfinity);
      }
      std::fill(bias + count, bias + padded, 0.0f);
    }
    float* row = scores + h * kStepKeys;
    std::fill(row + count, row + padded, kMinusInfinity);
    const float greatest = std::min(bias_and_max(row, masked ? bias : nullptr, padded), kLargest);
    partial.greatest[h] = greatest;
    partial.weight[h] = exp_and_sum(row, greatest == kMinusInfinity ? 0.0f : greatest, padded);
  }
  walk(task.v, task.v_head, task.value_dim, [&](size_t j, const float* row, size_t g) HWY_ATTR {
    for (size_t h = g * group; h < (g + 1) * group; ++h) {
      const Vec weight = hn::Set(Tag(), scores[h * kStepKeys + j]);
      float* sums = partial.values + h * value_columns;
      for (size_t c = 0; c < value_columns; c += kPanel) {
        Row sum, values;
        sum.load(sums + c);
        values.load(row + c);
        sum.add_product(weight, values);
        sum.store(sums + c);
      }
    }
  });
}

void step_combine(const CombineTask& task, float* scratch) {
  const size_t value_columns = round_up(task.value_dim, kPanel);
  float* out = scratch;  // [value columns]
  const auto partial = [&](size_t s) HWY_ATTR {
    return StepPartial(task.partials + s * StepPartial::size(task.heads, task.value_dim), task.heads, task.value_dim);
  };
  for (size_t h = 0; h < task.heads; ++h) {
    float greatest = kMinusInfinity;
    for (size_t s = 0; s < task.stretches; ++s) greatest = std::max(greatest, partial(s).greatest[h]);
    float sum = 0.0f;
    std::fill_n(out, value_columns, 0.0f);
    for (size_t s = 0; s < task.stretches && greatest > kMinusInfinity; ++s) {
      const float shrink = scalar_exp_of_nonpositive(partial(s).greatest[h] - greatest);
      const float* values = partial(s).values + h * value_columns;
      sum += shrink * partial(s).weight[h];
      for (size_t c = 0; c < value_columns; ++c) out[c] += shrink * values[c];
    }
    write_scaled(out, sum == 0.0f ? 0.0f : 1.0f / sum, task.value_dim, task.out, h);
    if (task.logsumexp.data != nullptr) task.logsumexp.set(h, 0, sum == 0.0f ? kMinusInfinity : greatest + std::log(sum));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
