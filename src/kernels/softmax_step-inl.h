// One step of decoding with exact softmax: reading the cache is all the work, so it is read once and in the order of memory.
//
// A task takes a stretch of tokens for all heads, 16 tokens at a time, and asks for the next 16 while it works: whether heads are
// interleaved ([B, T, H, D]) or apart ([B, H, T, D]), lines that lie together are used together. All query heads of a group
// use a key while it is in L1.

#if defined(RAFFIA_KERNELS_SOFTMAX_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_SOFTMAX_STEP_INL_H_
#undef RAFFIA_KERNELS_SOFTMAX_STEP_INL_H_
#else
#define RAFFIA_KERNELS_SOFTMAX_STEP_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace raffia {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE Rows head_of(const Rows& rows, size_t head, int64_t head_stride) {
  Rows moved = rows;
  moved.data = static_cast<const std::byte*>(rows.data) +
               static_cast<int64_t>(head) * head_stride * static_cast<int64_t>(size_of(rows.dtype));
  return moved;
}

// 16 rows that may be read up to a multiple of 16 columns; those that take no part are zeros.
HWY_INLINE Chunk padded_rows(const Rows& rows, size_t first, const bool* takes_part, size_t dim, const float* zeros,
                             float* staging) {
  const size_t columns = round_up(dim, kPanel);
  Chunk chunk;
  for (size_t t = 0; t < kPanel; ++t) {
    if (!takes_part[t]) {
      chunk.row[t] = zeros;
    } else if (rows.direct() && columns == dim) {
      chunk.row[t] = rows.direct_row(first + t);
    } else {
      copy_scaled(rows, first + t, dim, columns, 1.0f, staging + t * columns);
      chunk.row[t] = staging + t * columns;
    }
  }
  return chunk;
}

// out[t] = q . row t, for 16 rows.
HWY_INLINE void dots(const Chunk& chunk, const float* HWY_RESTRICT q, size_t columns, float* HWY_RESTRICT out) {
  const Tag d;
  for (size_t t = 0; t < kPanel; t += 4) {
    Vec sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (size_t c = 0; c < columns; c += kLanes) {
      const Vec x = hn::LoadU(d, q + c);
      sum0 = hn::MulAdd(x, hn::LoadU(d, chunk.row[t] + c), sum0);
      sum1 = hn::MulAdd(x, hn::LoadU(d, chunk.row[t + 1] + c), sum1);
      sum2 = hn::MulAdd(x, hn::LoadU(d, chunk.row[t + 2] + c), sum2);
      sum3 = hn::MulAdd(x, hn::LoadU(d, chunk.row[t + 3] + c), sum3);
    }
    out[t] = hn::GetLane(hn::SumOfLanes(d, sum0));
    out[t + 1] = hn::GetLane(hn::SumOfLanes(d, sum1));
    out[t + 2] = hn::GetLane(hn::SumOfLanes(d, sum2));
    out[t + 3] = hn::GetLane(hn::SumOfLanes(d, sum3));
  }
}

// out += sum_t weights[t] row t.
HWY_INLINE void add_weighted(const Chunk& chunk, const float* HWY_RESTRICT weights, size_t columns, float* HWY_RESTRICT out) {
  for (size_t c = 0; c < columns; c += kPanel) {
    Row sum;
    sum.load(out + c);
    for (size_t t = 0; t < kPanel; ++t) {
      Row row;
      row.load(chunk.row[t] + c);
      sum.add_product(hn::Set(Tag(), weights[t]), row);
    }
    sum.store(out + c);
  }
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

  // Calls body(first token, which take part, key head) for 16 tokens at a time, a few lines ahead of the reads.
  const auto walk = [&](const Rows& rows, int64_t head_stride, size_t dim, const auto& body) HWY_ATTR {
    for (size_t j = 0; j < count; j += kPanel) {
      bool takes_part[kPanel];
      for (size_t t = 0; t < kPanel; ++t) takes_part[t] = j + t < count && task.mask.takes_part(task.begin + j + t);
      for (size_t g = 0; g < task.groups; ++g) {
        const Rows head = head_of(rows, g, head_stride);
        prefetch(head, std::min(task.begin + j + kPanel, task.end), std::min(task.begin + j + 2 * kPanel, task.end), dim);
        body(j, padded_rows(head, task.begin + j, takes_part, dim, zeros, staging), g);
      }
    }
  };

  walk(task.k, task.k_head, task.dim, [&](size_t j, const Chunk& chunk, size_t g) HWY_ATTR {
    for (size_t h = g * group; h < (g + 1) * group; ++h) dots(chunk, q + h * columns, columns, scores + h * kStepKeys + j);
  });
  for (size_t h = 0; h < task.heads; ++h) {
    const Rows head_bias = task.mask.bias.data == nullptr ? Rows{} : head_of(task.mask.bias, h / group, task.bias_head);
    for (size_t j = 0; j < padded; ++j) {
      const bool takes_part = j < count && task.mask.takes_part(task.begin + j);
      const bool biased = takes_part && head_bias.data != nullptr;
      bias[j] = biased ? head_bias.at(task.begin + j, 0) : (takes_part ? 0.0f : kMinusInfinity);
    }
    float* partial = task.partial + h * (value_columns + 2);
    const float greatest = std::min(bias_and_max(scores + h * kStepKeys, bias, padded), kLargest);
    std::fill_n(partial, value_columns, 0.0f);
    partial[value_columns] = greatest;
    partial[value_columns + 1] = exp_and_sum(scores + h * kStepKeys, greatest == kMinusInfinity ? 0.0f : greatest, padded);
  }
  walk(task.v, task.v_head, task.value_dim, [&](size_t j, const Chunk& chunk, size_t g) HWY_ATTR {
    for (size_t h = g * group; h < (g + 1) * group; ++h) {
      add_weighted(chunk, scores + h * kStepKeys + j, value_columns, task.partial + h * (value_columns + 2));
    }
  });
}

void step_combine(const CombineTask& task, float* scratch) {
  const size_t value_columns = round_up(task.value_dim, kPanel), size = value_columns + 2;
  float* out = scratch;  // [value columns]
  for (size_t h = 0; h < task.heads; ++h) {
    const auto partial = [&](size_t s) HWY_ATTR { return task.partials + (s * task.heads + h) * size; };
    float greatest = kMinusInfinity;
    for (size_t s = 0; s < task.stretches; ++s) greatest = std::max(greatest, partial(s)[value_columns]);
    float sum = 0.0f;
    std::fill_n(out, value_columns, 0.0f);
    for (size_t s = 0; s < task.stretches && greatest > kMinusInfinity; ++s) {
      const float shrink = scalar_exp_of_nonpositive(partial(s)[value_columns] - greatest);
      sum += shrink * partial(s)[value_columns + 1];
      for (size_t c = 0; c < value_columns; ++c) out[c] += shrink * partial(s)[c];
    }
    write_scaled(out, sum > 0.0f ? 1.0f / sum : 0.0f, task.value_dim, task.out, h);
    if (task.logsumexp.data != nullptr) task.logsumexp.set(h, 0, sum > 0.0f ? greatest + std::log(sum) : kMinusInfinity);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia
HWY_AFTER_NAMESPACE();

#endif
