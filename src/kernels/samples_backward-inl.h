// Gradients of samples over a growing past: see samples.h.

#if defined(RAFFIA_KERNELS_SAMPLES_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_SAMPLES_BACKWARD_INL_H_
#undef RAFFIA_KERNELS_SAMPLES_BACKWARD_INL_H_
#else
#define RAFFIA_KERNELS_SAMPLES_BACKWARD_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/samples-inl.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The scratch of one call: tokens with their gradients, scores of a block of samples and theirs.
struct SampleScratch {
  SampleScratch(const PackedSamples& samples, float* memory)
      : x(memory),
        dx(x + kSampleTokens * samples.columns()),
        y(dx + kSampleTokens * samples.columns()),
        dy(y + kSampleTokens * samples.value_columns()),
        probabilities(dy + kSampleTokens * samples.value_columns()),
        dscores(probabilities + kSampleTokens * kKeyBlock),
        panels(dscores + kSampleTokens * kKeyBlock),
        shift(panels + kKeyBlock * samples.value_columns()),
        sums(shift + kSampleTokens) {}

  float* x;              // [tokens][columns]: queries or keys
  float* dx;             // [tokens][columns]
  float* y;              // [tokens][value columns]: gradients of outputs, or values
  float* dy;             // [tokens][value columns]
  float* probabilities;  // [tokens][kKeyBlock]
  float* dscores;        // [tokens][kKeyBlock]
  float* panels;         // [kKeyBlock / 16][value columns][16]: values of samples or G, transposed
  float* shift;          // [tokens]
  float* sums;           // [tokens]: of dscores over samples
};

// Rows of 16 samples, `row(s)` from column `c` on, 16 columns wide -> panels.
template <class RowOf>
HWY_INLINE void sample_panels(const RowOf& row, size_t samples, size_t value_columns, float* panels) {
  for (size_t s = 0; s < samples; s += kPanel) {
    for (size_t c = 0; c < value_columns; c += kPanel) {
      Chunk chunk;
      for (size_t t = 0; t < kPanel; ++t) chunk.row[t] = row(s + t, c);
      transpose(chunk, kPanel, panels + s * value_columns + c * kPanel);
    }
  }
}

// The first `left` lanes; the others are 0.
HWY_INLINE Vec some_of(Vec x, size_t left) { return left >= kLanes ? x : hn::IfThenElseZero(hn::FirstN(Tag(), left), x); }

HWY_INLINE void stage_queries(const SampleGradients& gradients, const SampleQueries& queries, const SampleScratch& at) {
  const PackedSamples& samples = gradients.samples;
  stage_rows(queries.q, {}, 0, queries.count, samples.dim, queries.scale, at.x);
  stage_rows(queries.dout, {}, 0, queries.count, samples.value_dim, 1.0f, at.y);
  for (size_t i = 0; i < queries.count; ++i) {
    const float logsumexp = queries.logsumexp.at(i, 0);  // -inf: sees nothing, and has no probabilities
    at.shift[i] = logsumexp == kMinusInfinity ? kMinusInfinity : queries.bias.at(i, 0) - logsumexp;
  }
}

HWY_INLINE void fill_delta(const SampleQueries& queries, size_t value_dim, const SampleScratch& at) {
  const Tag d;
  for (size_t i = 0; i < queries.count; ++i) {
    const float* dout = at.y + i * round_up(value_dim, kPanel);
    float delta = 0.0f;
    size_t c = 0;
    if (queries.out.direct()) {
      const float* out = queries.out.direct_row(i);
      Vec sum = hn::Zero(d);
      for (; c + kLanes <= value_dim; c += kLanes) sum = hn::MulAdd(hn::LoadU(d, dout + c), hn::LoadU(d, out + c), sum);
      delta = hn::GetLane(hn::SumOfLanes(d, sum));
    }
    for (; c < value_dim; ++c) delta += dout[c] * queries.out.at(i, c);
    queries.delta[i] = delta;
  }
}

// Scores of a row of queries -> probabilities.
HWY_INLINE void query_probabilities(const float* HWY_RESTRICT log_weights, float shift, size_t count, float* HWY_RESTRICT row) {
  const Tag d;
  for (size_t j = 0; j < count; j += kLanes) {
    const Vec s = hn::Add(hn::Add(hn::LoadU(d, row + j), hn::LoadU(d, log_weights + j)), hn::Set(d, shift));
    hn::StoreU(exp_of_nonpositive(d, at_most(d, hn::Zero(d), s)), d, row + j);
  }
}

// Probabilities times (dscores - offsets), and their sum; offset(j) is a vector.
template <class Offset>
HWY_INLINE float scale_dscores(const float* HWY_RESTRICT probabilities, const Offset& offset, size_t count,
                               float* HWY_RESTRICT dscores) {
  const Tag d;
  Vec sum = hn::Zero(d);
  for (size_t j = 0; j < count; j += kLanes) {
    const Vec ds = hn::Mul(hn::LoadU(d, probabilities + j), hn::Sub(hn::LoadU(d, dscores + j), offset(j)));
    hn::StoreU(ds, d, dscores + j);
    sum = hn::Add(sum, some_of(ds, count - j));
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// out[j] += factor * sum over tokens of weights[i] * scores[i][j]; weights null: 1.
HWY_INLINE void add_column_sums(const float* HWY_RESTRICT scores, size_t tokens, const float* HWY_RESTRICT weights, float factor,
                                size_t count, float* HWY_RESTRICT out) {
  const Tag d;
  for (size_t j = 0; j < count; j += kLanes) {
    Vec sum = hn::Zero(d);
    for (size_t i = 0; i < tokens; ++i) {
      const Vec weight = hn::Set(d, weights == nullptr ? 1.0f : weights[i]);
      sum = hn::MulAdd(weight, hn::LoadU(d, scores + i * kKeyBlock + j), sum);
    }
    store_some(hn::MulAdd(hn::Set(d, factor), sum, load_some(out + j, count - j)), out + j, count - j);
  }
}

// Adds dx, and the gradient of - |x|^2 / 2, to rows.
HWY_INLINE void put_with_norms(const SampleScratch& at, size_t count, size_t dim, float scale, const MutRows& rows) {
  const Tag d;
  const size_t columns = round_up(dim, kPanel);
  for (size_t i = 0; i < count; ++i) {
    float* dx = at.dx + i * columns;
    const float* x = at.x + i * columns;
    const Vec sum = hn::Set(d, at.sums[i]);
    for (size_t c = 0; c < columns; c += kLanes) {
      hn::StoreU(hn::NegMulAdd(sum, hn::LoadU(d, x + c), hn::LoadU(d, dx + c)), d, dx + c);
    }
    add_scaled(dx, scale, dim, rows, i);
  }
}

void read_backward(const SampleGradients& gradients, const SampleQueries& queries, float* scratch) {
  const Tag d;
  const PackedSamples& samples = gradients.samples;
  const SampleScratch at(samples, scratch);
  const size_t columns = samples.columns(), value_columns = samples.value_columns(), tokens = queries.count;
  stage_queries(gradients, queries, at);
  fill_delta(queries, samples.value_dim, at);
  std::fill_n(at.dx, tokens * columns, 0.0f);
  std::fill_n(at.sums, tokens, 0.0f);
  for (size_t begin = 0; begin < queries.present; begin += kKeyBlock) {
    const size_t count = HWY_MIN(kKeyBlock, queries.present - begin);
    const float* values = samples.values + begin * value_columns;  // panels of kKeyBlock rows
    sample_panels([&](size_t s, size_t c) HWY_ATTR { return values + c * kKeyBlock + s * kPanel; }, count, value_columns,
                  at.panels);
    panel_scores(at.x, tokens, columns, samples.dim, samples.w + begin * samples.dim, count, at.probabilities);
    panel_scores(at.y, tokens, value_columns, value_columns, at.panels, count, at.dscores);
    for (size_t i = 0; i < tokens; ++i) {
      float* row = at.probabilities + i * kKeyBlock;
      query_probabilities(queries.log_weights + begin, at.shift[i], count, row);
      const Vec delta = hn::Set(d, queries.delta[i]);
      at.sums[i] += scale_dscores(
          row, [&](size_t) HWY_ATTR { return delta; }, count, at.dscores + i * kKeyBlock);
    }
    add_rows_product(tokens, columns, count, at.dscores, kKeyBlock, UnitStride(), gradients.w_rows + begin * columns, at.dx);
    if (gradients.dw != nullptr) {
      add_rows_product(count, columns, tokens, at.dscores, UnitStride(), kKeyBlock, at.x, gradients.dw + begin * columns);
    }
    if (queries.dlog_weights != nullptr) {
      add_column_sums(at.dscores, tokens, nullptr, 1.0f, count, queries.dlog_weights + begin);
    }
  }
  put_with_norms(at, tokens, samples.dim, queries.scale, queries.dq);
}

void add_queries(const SampleGradients& gradients, const SampleQueries& queries, float* scratch) {
  const PackedSamples& samples = gradients.samples;
  const SampleScratch at(samples, scratch);
  const size_t columns = samples.columns(), value_columns = samples.value_columns(), tokens = queries.count;
  stage_queries(gradients, queries, at);
  for (size_t begin = 0; begin < queries.present; begin += kKeyBlock) {
    const size_t count = HWY_MIN(kKeyBlock, queries.present - begin);
    panel_scores(at.x, tokens, columns, samples.dim, samples.w + begin * samples.dim, count, at.probabilities);
    for (size_t i = 0; i < tokens; ++i) {
      query_probabilities(queries.log_weights + begin, at.shift[i], count, at.probabilities + i * kKeyBlock);
    }
    add_column_sums(at.probabilities, tokens, queries.delta, 1.0f, count, gradients.from_weights + begin);
    add_rows_product(count, value_columns, tokens, at.probabilities, UnitStride(), kKeyBlock, at.y,
                     gradients.from_values + begin * value_columns);
  }
}

// Scores of a row of keys -> what they are of the weight of each sample.
HWY_INLINE void key_shares(const float* HWY_RESTRICT shift, float bias, size_t count, float* HWY_RESTRICT row) {
  const Tag d;
  for (size_t j = 0; j < count; j += kLanes) {
    const Vec s = hn::Sub(hn::Add(hn::LoadU(d, row + j), hn::Set(d, bias)), hn::LoadU(d, shift + j));
    hn::StoreU(exp_of_nonpositive(d, at_most(d, hn::Zero(d), s)), d, row + j);
  }
}

void add_keys_backward(const SampleGradients& gradients, const SampleKeys& keys, float* scratch) {
  const Tag d;
  const PackedSamples& samples = gradients.samples;
  const SampleAdd& add = keys.add;
  const SampleScratch at(samples, scratch);
  const size_t columns = samples.columns(), value_columns = samples.value_columns(), tokens = add.count;
  stage_rows(add.keys.k, add.keys.mask, add.first, tokens, samples.dim, add.scale, at.x);
  stage_rows(add.keys.v, add.keys.mask, add.first, tokens, samples.value_dim, 1.0f, at.y);
  stage_bias(add.keys.mask, add.first, tokens, at.shift);
  std::fill_n(at.dx, tokens * columns, 0.0f);
  std::fill_n(at.dy, tokens * value_columns, 0.0f);
  std::fill_n(at.sums, tokens, 0.0f);
  float shift[kKeyBlock];  // b_s + l'_s; +inf where a sample has no weight
  for (size_t begin = 0; begin < add.present; begin += kKeyBlock) {
    const size_t count = HWY_MIN(kKeyBlock, add.present - begin);
    for (size_t j = 0; j < kKeyBlock; ++j) {
      const bool counts = j < count && keys.log_weights[begin + j] != kMinusInfinity;
      const float mixture = counts && add.mixture != nullptr ? add.mixture[begin + j] : 0.0f;
      shift[j] = counts ? keys.log_weights[begin + j] + mixture : -kMinusInfinity;
    }
    const float* gathered = gradients.from_values + begin * value_columns;
    sample_panels([&](size_t s, size_t c) HWY_ATTR { return gathered + s * value_columns + c; }, count, value_columns, at.panels);
    panel_scores(at.x, tokens, columns, samples.dim, samples.w + begin * samples.dim, count, at.probabilities);
    panel_scores(at.y, tokens, value_columns, value_columns, at.panels, count, at.dscores);
    const float* from_weights = gradients.from_weights + begin;
    for (size_t m = 0; m < tokens; ++m) {
      float* row = at.probabilities + m * kKeyBlock;
      key_shares(shift, at.shift[m], count, row);
      at.sums[m] += scale_dscores(
          row, [&](size_t j) HWY_ATTR { return hn::LoadU(d, from_weights + j); }, count, at.dscores + m * kKeyBlock);
    }
    add_rows_product(tokens, columns, count, at.dscores, kKeyBlock, UnitStride(), gradients.w_rows + begin * columns, at.dx);
    add_rows_product(tokens, value_columns, count, at.probabilities, kKeyBlock, UnitStride(), gathered, at.dy);
    if (gradients.dw != nullptr) {
      add_rows_product(count, columns, tokens, at.dscores, UnitStride(), kKeyBlock, at.x, gradients.dw + begin * columns);
    }
    if (keys.dmixture != nullptr) add_column_sums(at.dscores, tokens, nullptr, -1.0f, count, keys.dmixture + begin);
  }
  put_with_norms(at, tokens, samples.dim, add.scale, keys.dk);
  if (keys.dv.data == nullptr) return;
  for (size_t m = 0; m < tokens; ++m) add_scaled(at.dy + m * value_columns, 1.0f, samples.value_dim, keys.dv, m);
}

void rescale(const SampleGradients& gradients, size_t present, const float* before, float log_decay, const float* after) {
  const size_t value_columns = gradients.samples.value_columns();
  const Tag d;
  for (size_t first = 0; first < present; first += kPanel) {
    float factors[kPanel];
    for (size_t j = 0; j < kPanel; j += kLanes) {
      const Vec reached = hn::LoadU(d, after + first + j);
      const Vec x = hn::Sub(hn::Add(hn::LoadU(d, before + first + j), hn::Set(d, log_decay)), reached);
      const Vec factor = exp_of_nonpositive(d, at_most(d, hn::Zero(d), x));
      hn::StoreU(hn::IfThenZeroElse(hn::Eq(reached, hn::Set(d, kMinusInfinity)), factor), d, factors + j);
    }
    for (size_t t = 0; t < HWY_MIN(kPanel, present - first); ++t) {
      gradients.from_weights[first + t] *= factors[t];
      float* row = gradients.from_values + (first + t) * value_columns;
      for (size_t c = 0; c < value_columns; c += kLanes) {
        hn::StoreU(hn::Mul(hn::Set(d, factors[t]), hn::LoadU(d, row + c)), d, row + c);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
