// One step of decoding with exact softmax: reading the cache is most of the work, so it is read once and in the order of memory.
//
// A task takes a stretch of tokens for all heads, four tokens at a time: the sums across lanes of four products are one vector,
// and sums of values are loaded and stored once for four. Where heads are interleaved ([B, T, H, D]) it goes through the heads of
// four tokens, then on to the next four; where they are apart ([B, H, T, D]) through the tokens of one head after the other: four
// streams of whole lines either way. All query heads of a group use a key while it is in L1.

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

// Rows that are needed soon, in the order of memory: what four tokens read side by side is asked for as one stream, which the
// prefetchers of the CPU follow too.
constexpr size_t kStepAhead = 3072;  // floats ahead: less is too late for memory, more leaves no room in L1 (Zen 5)
class StepAhead {
 public:
  // `heads` rows of `columns` floats per token; no rows or columns: asks for nothing.
  StepAhead(const float* first, int64_t row_stride, int64_t head_stride, size_t heads, size_t columns)
      : next_(columns == 0 ? nullptr : first),
        head_stride_(head_stride),
        to_next_token_(row_stride - static_cast<int64_t>(heads - 1) * head_stride),
        heads_(heads),
        columns_(columns) {
    if (next_ != nullptr) next_ += static_cast<int64_t>((kStepAhead + heads * columns - 1) / (heads * columns)) * row_stride;
  }

  HWY_INLINE void ask(size_t rows) {
    if (next_ == nullptr) return;
    for (; rows > 0; --rows) {
      for (size_t c = 0; c < columns_; c += kPanel) hwy::Prefetch(next_ + c);
      const bool last = ++head_ == heads_;
      next_ += last ? to_next_token_ : head_stride_;
      head_ = last ? 0 : head_;
    }
  }

 private:
  const float* next_;
  int64_t head_stride_, to_next_token_;
  size_t heads_, columns_, head_ = 0;
};

// Rows of four tokens in one head, and how far it is to those of the next visit: of the next head (0 for rows of zeros), or of
// the next four tokens.
constexpr size_t kStepTokens = 4;
struct TokenRows {
  const float *a, *b, *c, *e;
  int64_t step_a = 0, step_b = 0, step_c = 0, step_e = 0;

  HWY_INLINE void go_on() {
    a += step_a;
    b += step_b;
    c += step_c;
    e += step_e;
  }
};

// The number of columns as a value: known when compiled for the usual sizes of heads.
template <class Body>
HWY_INLINE void with_columns(size_t columns, const Body& body) {
  if (columns == 64) return body(std::integral_constant<size_t, 64>());
  if (columns == 128) return body(std::integral_constant<size_t, 128>());
  body(columns);
}

// A walk over visits of one kind: to the heads of four tokens, or to the tokens of a head.
struct Visits {
  size_t count;
  bool by_token;  // the next visit is to the same head of q, and the scores of its tokens follow
  size_t group;   // heads of q
};

// scores[h][t] = q_h . row t for the heads of q of each visit; `columns` is a multiple of 16. `first` is a reference: as a value
// it would be stored word by word and then loaded as a vector, which stalls.
template <class Columns>
HWY_NOINLINE void score_tokens(const float* HWY_RESTRICT q, const TokenRows& first, const Visits& visits, Columns columns,
                               StepAhead& ahead, float* HWY_RESTRICT scores) {
  TokenRows rows = first;
  const size_t q_step = visits.by_token ? 0 : visits.group * columns;
  const size_t score_step = visits.by_token ? kStepTokens : visits.group * kStepKeys;
  for (size_t n = 0; n < visits.count; ++n, rows.go_on(), q += q_step, scores += score_step) {
    ahead.ask(kStepTokens);
    for (size_t h = 0; h < visits.group; ++h) {
      const float* x = q + h * columns;
      float* out = scores + h * kStepKeys;
#if HWY_TARGET == HWY_SCALAR
      const float* const row[kStepTokens] = {rows.a, rows.b, rows.c, rows.e};
      for (size_t t = 0; t < kStepTokens; ++t) {
        out[t] = 0.0f;
        for (size_t i = 0; i < columns; ++i) out[t] += x[i] * row[t][i];
      }
#else
      const Tag d;
      Vec sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
      for (size_t i = 0; i < columns; i += kLanes) {
        const Vec xi = hn::LoadU(d, x + i);
        sum0 = hn::MulAdd(xi, hn::LoadU(d, rows.a + i), sum0);
        sum1 = hn::MulAdd(xi, hn::LoadU(d, rows.b + i), sum1);
        sum2 = hn::MulAdd(xi, hn::LoadU(d, rows.c + i), sum2);
        sum3 = hn::MulAdd(xi, hn::LoadU(d, rows.e + i), sum3);
      }
      hn::StoreU(sums_of_four(d, sum0, sum1, sum2, sum3), hn::CappedTag<float, 4>(), out);
#endif
    }
  }
}

// sums[h] += weights[h][t] row t for the same heads; `columns` is a multiple of 16.
template <class Columns>
HWY_NOINLINE void add_tokens(const float* HWY_RESTRICT weights, const TokenRows& first, const Visits& visits, Columns columns,
                             StepAhead& ahead, float* HWY_RESTRICT sums) {
  TokenRows rows = first;
  const size_t sum_step = visits.by_token ? 0 : visits.group * columns;
  const size_t weight_step = visits.by_token ? kStepTokens : visits.group * kStepKeys;
  for (size_t n = 0; n < visits.count; ++n, rows.go_on(), weights += weight_step, sums += sum_step) {
    ahead.ask(kStepTokens);
    for (size_t h = 0; h < visits.group; ++h) {
      const float* p = weights + h * kStepKeys;
      float* out = sums + h * columns;
      for_columns(columns, [&](size_t i, auto width, auto d) HWY_ATTR {
        using Values = PanelRow<decltype(width)::value, decltype(d)>;
        Values sum, values;
        sum.load(out + i);
        values.load(rows.a + i);
        sum.add_product(hn::Set(d, p[0]), values);
        values.load(rows.b + i);
        sum.add_product(hn::Set(d, p[1]), values);
        values.load(rows.c + i);
        sum.add_product(hn::Set(d, p[2]), values);
        values.load(rows.e + i);
        sum.add_product(hn::Set(d, p[3]), values);
        sum.store(out + i);
      });
    }
  }
}

HWY_INLINE float squared_length(const float* HWY_RESTRICT x, size_t columns) {
  const Tag d;
  Vec sum = hn::Zero(d);
  for (size_t c = 0; c < columns; c += kLanes) sum = hn::MulAdd(hn::LoadU(d, x + c), hn::LoadU(d, x + c), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// A row of keys or values that cannot be read in place. Not inline: visits of rows that can be would not be, either, then.
HWY_NOINLINE const float* staged_row(const Rows& rows, size_t head, int64_t head_stride, size_t t, size_t dim, float* staging) {
  copy_scaled(head_of(rows, head, head_stride), t, dim, round_up(dim, kPanel), 1.0f, staging);
  return staging;
}

// The bias of key head g for `count` tokens.
HWY_INLINE void load_bias(const StepTask& task, size_t g, size_t count, float* HWY_RESTRICT out) {
  const Rows rows = head_of(task.mask.bias, g, task.bias_head);
  if (rows.dtype != DType::f32) {
    for (size_t j = 0; j < count; ++j) out[j] = rows.at(task.begin + j, 0);
  } else if (rows.row_stride == 1) {
    std::copy_n(rows.direct_row(task.begin), count, out);
  } else {
    const float* in = rows.direct_row(task.begin);
    for (size_t j = 0; j < count; ++j, in += rows.row_stride) out[j] = *in;
  }
}

// What is added to the scores of a stretch: one row [kStepKeys] if it is the same for all key heads, otherwise one for each.
HWY_INLINE bool shares_bias(const StepTask& task) { return task.mask.bias.data == nullptr || task.bias_head == 0; }
HWY_INLINE void fill_bias(const StepTask& task, size_t count, size_t padded, float* HWY_RESTRICT bias) {
  for (size_t g = 0; g < (shares_bias(task) ? 1 : task.groups); ++g, bias += kStepKeys) {
    if (task.mask.bias.data == nullptr) {
      std::fill_n(bias, count, 0.0f);
    } else {
      load_bias(task, g, count, bias);
    }
    for (size_t j = 0; j < count && task.mask.valid != nullptr; ++j) {
      if (!task.mask.takes_part(task.begin + j)) bias[j] = kMinusInfinity;
    }
    std::fill(bias + count, bias + padded, 0.0f);
  }
}

void step_stretch(const StepTask& task, float* scratch) {
  const size_t columns = round_up(task.dim, kPanel), value_columns = round_up(task.value_dim, kPanel);
  const size_t widest = HWY_MAX(columns, value_columns), group = task.heads / task.groups;
  const size_t count = task.end - task.begin, padded = round_up(count, kPanel);
  float* q = scratch;                             // [heads][columns]
  float* scores = q + task.heads * columns;       // [heads][kStepKeys]
  float* bias = scores + task.heads * kStepKeys;  // [groups][kStepKeys]
  float* zeros = bias + task.groups * kStepKeys;  // [widest]
  float* staging = zeros + widest;                // [kStepTokens][widest]
  std::fill(zeros, staging, 0.0f);
  for (size_t h = 0; h < task.heads; ++h) copy_scaled(task.q, h, task.dim, columns, task.scale, q + h * columns);

  // Calls body(token of the stretch, key head, rows of it and the three after it, visits, prefetches) in the order of memory;
  // rows may be read up to a multiple of 16 columns. Tokens that take no part, and those after the last one, are zeros.
  const auto walk = [&](const Rows& rows, int64_t head_stride, size_t dim, const auto& body) HWY_ATTR {
    const bool direct = rows.direct() && dim % kPanel == 0;
    const auto is_read = [&](size_t j) HWY_ATTR { return j < count && task.mask.takes_part(task.begin + j); };
    const auto row_of = [&](size_t j, size_t g) HWY_ATTR {
      if (!is_read(j)) return static_cast<const float*>(zeros);
      if (direct) return rows.direct_row(task.begin + j) + static_cast<int64_t>(g) * head_stride;
      return staged_row(rows, g, head_stride, task.begin + j, dim, staging + j % kStepTokens * widest);
    };
    const auto rows_from = [&](size_t j, size_t g) HWY_ATTR {
      return TokenRows{.a = row_of(j, g), .b = row_of(j + 1, g), .c = row_of(j + 2, g), .e = row_of(j + 3, g)};
    };
    const float* first = direct && count > 0 ? rows.direct_row(task.begin) : nullptr;
    if (direct && std::abs(head_stride) < std::abs(rows.row_stride)) {
      StepAhead ahead(first, rows.row_stride, head_stride, task.groups, dim);
      const auto step_of = [&](size_t j) HWY_ATTR { return is_read(j) ? head_stride : 0; };
      for (size_t j = 0; j < count; j += kStepTokens) {
        TokenRows four = rows_from(j, 0);
        four.step_a = step_of(j), four.step_b = step_of(j + 1), four.step_c = step_of(j + 2), four.step_e = step_of(j + 3);
        body(j, 0, four, Visits{task.groups, false, group}, ahead);
      }
      return;
    }
    for (size_t g = 0; g < task.groups; ++g) {
      StepAhead ahead(first == nullptr ? nullptr : first + static_cast<int64_t>(g) * head_stride, rows.row_stride, 0, 1, dim);
      for (size_t j = 0; j < count;) {
        size_t end = j;  // of the tokens that are read in place without a gap
        while (direct && is_read(end)) ++end;
        const size_t fours = HWY_MAX((end - j) / kStepTokens, 1);
        TokenRows four = rows_from(j, g);
        four.step_a = four.step_b = four.step_c = four.step_e = static_cast<int64_t>(kStepTokens) * rows.row_stride;
        body(j, g, four, Visits{fours, true, group}, ahead);
        j += fours * kStepTokens;
      }
    }
  };

  walk(task.k, task.k_head, task.dim,
       [&](size_t j, size_t g, const TokenRows& rows, const Visits& visits, StepAhead& ahead) HWY_ATTR {
         const size_t h = g * group;
         with_columns(columns, [&](auto width) HWY_ATTR {
           score_tokens(q + h * columns, rows, visits, width, ahead, scores + h * kStepKeys + j);
         });
       });
  const StepPartial partial(task.partial, task.heads, task.value_dim);
  std::fill_n(partial.values, task.heads * value_columns, 0.0f);
  const bool masked = task.mask.valid != nullptr || task.mask.bias.data != nullptr;
  if (masked) fill_bias(task, count, padded, bias);
  for (size_t h = 0; h < task.heads; ++h) {
    const float* head_bias = shares_bias(task) ? bias : bias + h / group * kStepKeys;
    float* row = scores + h * kStepKeys;
    std::fill(row + count, row + padded, kMinusInfinity);
    const float greatest = std::min(bias_and_max(row, masked ? head_bias : nullptr, padded), kLargest);
    partial.greatest[h] = greatest;
    if (task.sampled) partial.greatest[h] += task.offset - 0.5f * squared_length(q + h * columns, columns);
    partial.weight[h] = exp_and_sum(row, greatest == kMinusInfinity ? 0.0f : greatest, padded);
  }
  walk(task.v, task.v_head, task.value_dim,
       [&](size_t j, size_t g, const TokenRows& rows, const Visits& visits, StepAhead& ahead) HWY_ATTR {
         const size_t h = g * group;
         with_columns(value_columns, [&](auto width) HWY_ATTR {
           add_tokens(scores + h * kStepKeys + j, rows, visits, width, ahead, partial.values + h * value_columns);
         });
       });
}

// What the sums of every stretch count for in the result, in place of the greatest logits: exp(greatest - greatest of all) / sum.
HWY_INLINE void share_stretches(const CombineTask& task, float* HWY_RESTRICT greatest_of_all, float* HWY_RESTRICT sums) {
  const Tag d;
  const auto partial = [&](size_t s) HWY_ATTR {
    return StepPartial(task.partials + s * StepPartial::size(task.heads, task.value_dim), task.heads, task.value_dim);
  };
  for (size_t h = 0; h < task.heads; h += kLanes) {
    const size_t left = task.heads - h;
    Vec greatest = hn::Set(d, kMinusInfinity);
    for (size_t s = 0; s < task.stretches; ++s) greatest = at_least(d, load_some(partial(s).greatest + h, left), greatest);
    const Vec zero = hn::Zero(d), shift = hn::IfThenElse(hn::Eq(greatest, hn::Set(d, kMinusInfinity)), zero, greatest);
    Vec sum = zero;
    for (size_t s = 0; s < task.stretches; ++s) {
      float* own = partial(s).greatest + h;
      const Vec share = exp_of_nonpositive(d, at_most(d, zero, hn::Sub(load_some(own, left), shift)));
      store_some(share, own, left);
      sum = hn::MulAdd(share, load_some(partial(s).weight + h, left), sum);
    }
    const Vec inverse = hn::IfThenZeroElse(hn::Eq(sum, zero), hn::Div(hn::Set(d, 1.0f), sum));
    for (size_t s = 0; s < task.stretches; ++s) {
      float* own = partial(s).greatest + h;
      store_some(hn::Mul(load_some(own, left), inverse), own, left);
    }
    hn::StoreU(greatest, d, greatest_of_all + h);
    hn::StoreU(sum, d, sums + h);
  }
}

void step_combine(const CombineTask& task, float* scratch) {
  const size_t value_columns = round_up(task.value_dim, kPanel);
  float* row = scratch;  // [value columns]
  float* greatest = row + value_columns;
  float* sums = greatest + round_up(task.heads, kPanel);
  share_stretches(task, greatest, sums);
  const bool in_place = task.out.direct() && task.value_dim == value_columns;
  for (size_t h = 0; h < task.heads; ++h) {
    float* out = in_place ? task.out.direct_row(h) : row;
    // No key has a weight: 0, whatever the values are.
    if (sums[h] == 0.0f) std::fill_n(out, value_columns, 0.0f);
    for_columns(sums[h] == 0.0f ? 0 : value_columns, [&](size_t c, auto width, auto d) HWY_ATTR {
      using Columns = PanelRow<decltype(width)::value, decltype(d)>;
      Columns sum;
      sum.zero();
      for (size_t s = 0; s < task.stretches; ++s) {
        const StepPartial partial(task.partials + s * StepPartial::size(task.heads, task.value_dim), task.heads, task.value_dim);
        Columns values;
        values.load(partial.values + h * value_columns + c);
        sum.add_product(hn::Set(d, partial.greatest[h]), values);
      }
      sum.store(out + c);
    });
    if (!in_place) write_scaled(out, 1.0f, task.value_dim, task.out, h);
    if (task.logsumexp.data != nullptr) {
      task.logsumexp.set(h, 0, sums[h] == 0.0f ? kMinusInfinity : greatest[h] + std::log(sums[h]));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
