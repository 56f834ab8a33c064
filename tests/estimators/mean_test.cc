// The mean of the visible values, against its twin: it reads nothing but values, masks and lengths.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "estimators/registry.h"
#include "raffia/estimator.h"
#include "raffia/reference.h"
#include "support/arrays.h"

namespace raffia::internal {
namespace {

const Estimator kMean = parse_estimator("mean");

struct Shape {
  int64_t batch = 1, queries = 40, keys = 40, heads = 1, groups = 1, dim = 5, value_dim = 6;
  bool causal = false;
};

struct Case {
  explicit Case(const Shape& of)
      : shape(of),
        q(normals(size_of_shape(q_shape()), 1)),
        k(normals(size_of_shape(k_shape()), 2)),
        v(normals(size_of_shape(v_shape()), 3)),
        dout(normals(size_of_shape(out_shape()), 4)) {
    options.causal = shape.causal;
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  Extents<4> q_shape() const { return {shape.batch, shape.queries, shape.heads, shape.dim}; }
  Extents<4> k_shape() const { return {shape.batch, shape.keys, shape.groups, shape.dim}; }
  Extents<4> v_shape() const { return {shape.batch, shape.keys, shape.groups, shape.value_dim}; }
  Extents<4> out_shape() const { return {shape.batch, shape.queries, shape.heads, shape.value_dim}; }
  AttendInputs inputs() const { return {.q = {q.data(), q_shape()}, .k = {k.data(), k_shape()}, .v = {v.data(), v_shape()}}; }
  MemorySizes sizes(int64_t sequences) const {
    return {
        .batch = sequences, .query_heads = shape.heads, .heads = shape.groups, .dim = shape.dim, .value_dim = shape.value_dim};
  }
  std::string text() const {
    return fmt::format("causal {} batch {} queries {} keys {} heads {}/{} dims {}, {} isa {}", shape.causal, shape.batch,
                       shape.queries, shape.keys, shape.heads, shape.groups, shape.dim, shape.value_dim, name_of(active_isa()));
  }

  // Every third token takes no part, and the first three do not. Their values are NaN.
  void add_mask() {
    valid.resize(static_cast<size_t>(shape.batch * shape.keys));
    for (size_t i = 0; i < valid.size(); ++i) {
      valid[i] = i % 3 == 1 && i > 2 ? 1 : 0;
      if (valid[i] == 0) poison(static_cast<int64_t>(i) / shape.keys, static_cast<int64_t>(i) % shape.keys);
    }
    options.layout.valid = {valid.data(), {shape.batch, shape.keys}};
  }
  void set_lengths(std::vector<int64_t> of_entries) {
    lengths = std::move(of_entries);
    options.layout.lengths = lengths;
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t t = lengths[static_cast<size_t>(b)]; t < shape.keys; ++t) poison(b, t);
    }
  }
  void set_cu_seqlens(std::vector<int64_t> offsets, std::vector<int64_t> of_keys = {}) {
    cu_seqlens = std::move(offsets), cu_seqlens_k = std::move(of_keys);
    options.layout.cu_seqlens = cu_seqlens;
    options.layout.cu_seqlens_k = cu_seqlens_k;
  }
  void poison(int64_t b, int64_t t) {
    const int64_t row = shape.groups * shape.value_dim;
    std::fill_n(v.begin() + (b * shape.keys + t) * row, row, kNan);
  }

  Shape shape;
  std::vector<float> q, k, v, dout;
  std::vector<uint8_t> valid;
  std::vector<int64_t> lengths, cu_seqlens, cu_seqlens_k;
  AttendOptions options;
};

std::vector<float> found_by(const Case& c, const AttendOptions& options) {
  std::vector<float> out(size_of_shape(c.out_shape()), kNan);
  const Report report = attend(kMean, c.inputs(), {out.data(), c.out_shape()}, options);
  EXPECT_EQ(report.clamped, 0) << c.text();
  return out;
}
std::vector<float> found_by(const Case& c) { return found_by(c, c.options); }

std::vector<double> expected_of(const Case& c, View4 v) {
  std::vector<double> out(size_of_shape(c.out_shape()));
  reference::mean_attention(c.inputs().q, c.inputs().k, v, {out.data(), c.out_shape()}, c.shape.causal, c.options.layout);
  return out;
}

// In any order, n - 1 additions err by at most (n - 1) u times the sum of magnitudes; the quotient of sum and count errs by 2 u.
std::vector<double> bounds_of(const Case& c) {
  std::vector<float> magnitudes = c.v;
  for (float& value : magnitudes) value = std::abs(value);
  std::vector<double> bounds = expected_of(c, {magnitudes.data(), c.v_shape()});
  for (double& bound : bounds) bound *= kUnit * static_cast<double>(c.shape.keys + 2);
  return bounds;
}

void expect_close(const Case& c, const std::vector<float>& found, const std::string& what) {
  const std::vector<double> expected = expected_of(c, c.inputs().v), bounds = bounds_of(c);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_LE(std::abs(found[i] - expected[i]), bounds[i]) << what << ": " << c.text() << " at " << i;  // NaN fails too
  }
}
void expect_is_the_mean(const Case& c) { expect_close(c, found_by(c), "attend"); }

TEST(Mean, EqualsReferenceAtEveryLength) {
  for_each_isa([] {
    for (const int64_t length : {0, 1, 2, 15, 16, 17, 31, 33, 64, 127, 129, 300}) {
      for (const bool causal : {false, true}) expect_is_the_mean(Case({.queries = length, .keys = length, .causal = causal}));
    }
  });
}

TEST(Mean, EqualsReferenceAtEveryDimension) {
  for_each_isa([] {
    for (const int64_t dim : {1, 3, 7, 8, 16, 20, 64, 100}) {
      for (const bool causal : {false, true}) {
        expect_is_the_mean(Case({.heads = 6, .groups = 2, .dim = 101 - dim, .value_dim = dim, .causal = causal}));
      }
    }
  });
}

TEST(Mean, EqualsReferenceAcrossLengths) {
  for_each_isa([] {
    for (const auto& [queries, keys] : {std::pair{1, 200}, {200, 1}, {7, 150}, {150, 7}, {9, 0}, {0, 9}}) {
      expect_is_the_mean(Case({.batch = 2, .queries = queries, .keys = keys, .heads = 4, .groups = 2}));
    }
  });
}

TEST(Mean, MaskedPaddedAndPackedTokensTakeNoPart) {
  for_each_isa([] {
    for (const bool causal : {false, true}) {
      const Shape shape{.batch = 2, .heads = 4, .groups = 2, .causal = causal};
      Case masked(shape);
      masked.add_mask();
      expect_is_the_mean(masked);
      Case padded(shape);
      padded.set_lengths({0, 23});
      expect_is_the_mean(padded);
      padded.add_mask();
      expect_is_the_mean(padded);
      Case packed({.heads = 4, .groups = 2, .causal = causal});
      packed.set_cu_seqlens({0, 17, 17, 40});
      expect_is_the_mean(packed);
      packed.add_mask();
      expect_is_the_mean(packed);
    }
    Case cross({.queries = 12, .heads = 4, .groups = 2});
    cross.set_cu_seqlens({0, 5, 6, 12}, {0, 20, 20, 40});
    expect_is_the_mean(cross);
    Case padded({.batch = 2, .queries = 12});
    padded.set_lengths({0, 23});
    expect_is_the_mean(padded);
  });
}

// Sums of small integers and counts are exact: what is left are the roundings of 1 / n and of its product with the sum. A floor
// of denominators would be seen at once.
TEST(Mean, IsAsExactAsAQuotient) {
  constexpr int64_t kLength = 4095;  // 0 + 2 + .. + 2 t = t (t + 1) is below 2^24
  const auto expect_quotient = [](float found, double expected, size_t t) {
    ASSERT_LE(std::abs(found - expected), 2 * kUnit * (1 + kUnit) * expected) << t;
  };
  for_each_isa([&] {
    Case c({.queries = kLength, .keys = kLength, .value_dim = 2, .causal = true});
    for (size_t t = 0; t < kLength; ++t) {
      c.v[2 * t] = 3;
      c.v[2 * t + 1] = static_cast<float>(2 * t);
    }
    const std::vector<float> out = found_by(c);
    for (size_t t = 0; t < kLength; ++t) {
      expect_quotient(out[2 * t], 3, t);
      expect_quotient(out[2 * t + 1], static_cast<double>(t), t);
    }
    c.options.causal = false;
    const std::vector<float> whole = found_by(c);
    for (size_t t = 0; t < kLength; ++t) {
      expect_quotient(whole[2 * t], 3, t);
      expect_quotient(whole[2 * t + 1], kLength - 1, t);
    }
  });
}

TEST(Mean, ReadsNeitherQueriesNorKeys) {
  for (const bool causal : {false, true}) {
    Case c({.heads = 4, .groups = 2, .causal = causal});
    const std::vector<float> out = found_by(c);
    std::ranges::fill(c.q, kNan);
    std::ranges::fill(c.k, kNan);
    EXPECT_TRUE(same_bits(found_by(c), out)) << c.text();
  }
}

TEST(Mean, TakesBfloat16) {
  for_each_isa([] {
    for (const bool causal : {false, true}) {
      Case c({.heads = 4, .groups = 2, .causal = causal});
      const std::vector<BFloat16> v = round_to_bf16(c.v);
      AttendInputs inputs = c.inputs();
      inputs.v = {v.data(), c.v_shape()};
      std::vector<BFloat16> out(size_of_shape(c.out_shape()));
      attend(kMean, inputs, {out.data(), c.out_shape()}, c.options);
      const std::vector<double> expected = expected_of(c, c.inputs().v), bounds = bounds_of(c);
      for (size_t i = 0; i < out.size(); ++i) {
        const double rounding = 0x1p-8 * std::abs(expected[i]);  // of the output
        ASSERT_NEAR(out[i].to_float(), expected[i], rounding + 2 * bounds[i]) << c.text() << " at " << i;
      }
    }
  });
}

TEST(Mean, SplitsAndStepsEqualTheWhole) {
  for_each_isa([] {
    Case c({.batch = 2, .queries = 75, .keys = 75, .heads = 4, .groups = 2, .causal = true});
    const auto parts = [&](const std::vector<int64_t>& counts) {
      std::vector<float> out(size_of_shape(c.out_shape()), kNan);
      Memory memory = empty_memory(kMean, c.sizes(2));
      int64_t begin = 0;
      for (const int64_t count : counts) {
        AttendInputs part = c.inputs();
        for (View4* x : {&part.q, &part.k, &part.v}) *x = x->slice(1, begin, count);
        attend(kMean, part, memory, MutView4(out.data(), c.out_shape()).slice(1, begin, count), c.options);
        begin += count;
      }
      EXPECT_EQ(begin, 75);
      EXPECT_EQ(memory_bytes(kMean, c.sizes(2), begin), static_cast<int64_t>(memory.size_bytes()));
      return out;
    };
    expect_close(c, parts({1, 7, 0, 30, 3, 34}), "parts");

    std::vector<float> out(size_of_shape(c.out_shape()), kNan);
    std::vector<Memory> memories(2, empty_memory(kMean, c.sizes(1)));
    std::vector<Memory*> sessions = {&memories[0], &memories[1]};
    for (int64_t t = 0; t < 75; ++t) {
      AttendInputs token = c.inputs();
      for (View4* x : {&token.q, &token.k, &token.v}) *x = x->slice(1, t, 1);
      attend_step(kMean, token, sessions, MutView4(out.data(), c.out_shape()).slice(1, t, 1), c.options);
    }
    expect_close(c, out, "steps");
  });
}

TEST(Mean, ThreadsChangeNoBit) {
  for (const bool causal : {false, true}) {
    for (const int64_t segment : {0, 128}) {
      Case c({.batch = 2, .queries = 400, .keys = 400, .heads = 2, .value_dim = 3, .causal = causal});
      c.options.segment = segment;
      AttendOptions one = c.options, three = c.options;
      one.run.threads = 1, three.run.threads = 3;
      const std::vector<float> out = found_by(c, one);
      EXPECT_TRUE(same_bits(found_by(c, three), out)) << c.text();
      expect_close(c, out, "segments");
    }
  }
}

// The output is linear in the values: moving one of them by 1 changes sum(dout o out) by its gradient.
void expect_gradients(Case& c) {
  const auto weighted = [&](const std::vector<double>& out, const auto& weight_of) {
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += weight_of(c.dout[i]) * out[i];
    return sum;
  };
  const AttendInputs inputs = c.inputs();
  std::vector<float> out(size_of_shape(c.out_shape())), record(static_cast<size_t>(attend_record_size(kMean, inputs, c.options)));
  attend(kMean, inputs, {out.data(), c.out_shape()}, c.options, record);
  std::vector<float> dq(c.q.size(), kNan), dk(c.k.size(), kNan), dv(c.v.size(), kNan);
  attend_backward(kMean, inputs, {out.data(), c.out_shape()}, record, {c.dout.data(), c.out_shape()},
                  {.q = {dq.data(), c.q_shape()}, .k = {dk.data(), c.k_shape()}, .v = {dv.data(), c.v_shape()}}, c.options);
  EXPECT_TRUE(std::ranges::all_of(dq, [](float x) { return x == 0; })) << c.text();
  EXPECT_TRUE(std::ranges::all_of(dk, [](float x) { return x == 0; })) << c.text();

  // Only one value is not 0; what does not take part is not read.
  std::vector<float> v(c.v.size());
  for (size_t i = 0; i < v.size(); ++i) {
    v[i] = 1;
    const std::vector<double> share = expected_of(c, {v.data(), c.v_shape()});  // 1 / n where it is seen, else 0
    v[i] = 0;
    const double expected = weighted(share, [](float x) { return x; });
    // A sum over the queries of the heads that share a value, of quotients that err by 2 u each.
    const double terms = static_cast<double>(c.shape.queries * c.shape.heads / c.shape.groups);
    const double bound = kUnit * (terms + 2) * weighted(share, [](float x) { return std::abs(x); });
    ASSERT_LE(std::abs(dv[i] - expected), bound) << c.text() << " at " << i;
  }

  std::vector<float> alone(c.v.size(), kNan);
  attend_backward(kMean, inputs, {out.data(), c.out_shape()}, record, {c.dout.data(), c.out_shape()},
                  {.v = {alone.data(), c.v_shape()}}, c.options);
  EXPECT_TRUE(same_bits(alone, dv)) << c.text();
}

TEST(Mean, GradientsAreThoseOfFiniteDifferences) {
  for_each_isa([] {
    for (const bool causal : {false, true}) {
      const Shape shape{.batch = 2, .queries = 21, .keys = 21, .heads = 2, .dim = 3, .value_dim = 3, .causal = causal};
      Case plain(shape);
      expect_gradients(plain);
      Case masked(shape);
      masked.add_mask();
      expect_gradients(masked);
      Case padded(shape);
      padded.set_lengths({0, 13});
      expect_gradients(padded);
      Case packed({.queries = 21, .keys = 21, .value_dim = 3, .causal = causal});
      packed.set_cu_seqlens({0, 17, 17, 21});
      expect_gradients(packed);
    }
    Case cross({.batch = 2, .queries = 5, .keys = 19, .heads = 4, .groups = 2, .value_dim = 3});
    expect_gradients(cross);
  });
}

TEST(Mean, RefusesWhatDoesNotFit) {
  Case c({.heads = 4, .groups = 2});
  std::vector<float> out(size_of_shape(c.out_shape()));
  const MutView4 view(out.data(), c.out_shape());
  AttendInputs inputs = c.inputs();
  inputs.q = inputs.q.slice(3, 0, 2);
  EXPECT_EQ(refusal_of([&] { attend(kMean, inputs, view); }), "mean: q has dim 2, expected 5 (dim of k)");
  inputs = c.inputs();
  inputs.v = inputs.v.slice(1, 0, 7);
  EXPECT_NE(refusal_of([&] { attend(kMean, inputs, view); }).find("v has shape [1, 7, 2, 6]"), std::string::npos);
  EXPECT_NE(refusal_of([&] {
              attend_backward(kMean, c.inputs(), View4(out.data(), c.out_shape()), {}, View4(out.data(), c.out_shape()),
                              {.q = view}, c.options);
            }).find("mean: gradients.q has shape [1, 40, 4, 6], expected [1, 40, 4, 5]"),
            std::string::npos);
  EXPECT_EQ(refusal_of([] { (void)parse_estimator("mean:seed=1"); }), "parse_estimator: mean has no key \"seed\", expected none");
}

TEST(Mean, SaysWhatItIs) {
  const EstimatorTraits traits = traits_of(kMean);
  EXPECT_TRUE(traits.causal && traits.bidirectional && traits.cross && traits.has_memory && traits.constant_memory);
  EXPECT_FALSE(traits.is_exact || traits.is_random || traits.has_map || traits.is_gated || traits.wants_positions ||
               traits.fades);
}

}  // namespace
}  // namespace raffia::internal
