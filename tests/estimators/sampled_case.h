// Problems for the tests of RA, LARA and EVA: data, layouts, and gradients by finite differences of the double twins.
#ifndef RAFFIA_TESTS_ESTIMATORS_SAMPLED_CASE_H_
#define RAFFIA_TESTS_ESTIMATORS_SAMPLED_CASE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "raffia/attention.h"
#include "raffia/lara.h"
#include "support/arrays.h"

namespace raffia::internal::sampled_tests {

constexpr int64_t kLengths[] = {0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200};

struct Shape {
  int64_t batch = 1, queries = 1, keys = 1, heads = 1, groups = 1, dim = 8, value_dim = 8;
  float scale = 1;   // of q and k
  float memory = 0;  // what a token keeps of the one before it: correlated ones are what estimators are made for
  uint64_t seed = 1;

  std::string text() const {
    return fmt::format("isa {} batch {} queries {} keys {} heads {}/{} dims {}, {} scale {} seed {}", name_of(active_isa()),
                       batch, queries, keys, heads, groups, dim, value_dim, scale, seed);
  }
};

// [batch, length, width] of variance scale^2.
inline std::vector<float> walk(int64_t batch, int64_t length, int64_t width, const Shape& s, uint64_t stream) {
  std::vector<float> x = normals(static_cast<size_t>(batch * length * width), 16 * s.seed + stream, 0, s.scale);
  const float fresh = std::sqrt(1 - s.memory * s.memory);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t row = static_cast<size_t>(width), in_entry = i % static_cast<size_t>(std::max<int64_t>(length, 1) * width);
    if (in_entry >= row) x[i] = s.memory * x[i - row] + fresh * x[i];
  }
  return x;
}

struct Case {
  explicit Case(const Shape& s)
      : shape(s),
        q(walk(s.batch, s.queries, s.heads * s.dim, s, 0)),
        k(walk(s.batch, s.keys, s.groups * s.dim, s, 1)),
        v(normals(size_of_shape(v_shape()), 16 * s.seed + 2)),
        dout(normals(size_of_shape(out_shape()), 16 * s.seed + 3)) {}
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  Extents<4> q_shape() const { return {shape.batch, shape.queries, shape.heads, shape.dim}; }
  Extents<4> k_shape() const { return {shape.batch, shape.keys, shape.groups, shape.dim}; }
  Extents<4> v_shape() const { return {shape.batch, shape.keys, shape.groups, shape.value_dim}; }
  Extents<4> out_shape() const { return {shape.batch, shape.queries, shape.heads, shape.value_dim}; }
  View4 q_view() const { return View4(q.data(), q_shape()); }
  View4 k_view() const { return View4(k.data(), k_shape()); }
  View4 v_view() const { return View4(v.data(), v_shape()); }
  View4 dout_view() const { return View4(dout.data(), out_shape()); }

  // One letter per key, repeated as needed: '.' takes no part and holds NaN.
  void add_mask(const std::string& pattern) {
    valid.resize(static_cast<size_t>(shape.batch * shape.keys));
    for (size_t i = 0; i < valid.size(); ++i) {
      valid[i] = pattern[i % static_cast<size_t>(shape.keys) % pattern.size()] != '.';
      if (valid[i] != 0) continue;
      poison_key(static_cast<int64_t>(i) / shape.keys, static_cast<int64_t>(i) % shape.keys);
      // In self attention a masked token has an output, but no gradient.
      const int64_t width = shape.heads * shape.value_dim;
      if (shape.queries == shape.keys) std::fill_n(dout.begin() + static_cast<int64_t>(i) * width, width, 0.0F);
    }
    layout.valid = View2(valid.data(), {shape.batch, shape.keys});
  }

  // The rest of each entry is padding and holds NaN.
  void set_lengths(std::vector<int64_t> of_entries) {
    lengths = std::move(of_entries);
    layout.lengths = lengths;
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t t = lengths[static_cast<size_t>(b)]; t < shape.keys; ++t) poison_key(b, t);
    }
  }

  void set_cu_seqlens(std::vector<int64_t> offsets, std::vector<int64_t> of_keys = {}) {
    cu_seqlens = std::move(offsets), cu_seqlens_k = std::move(of_keys);
    layout.cu_seqlens = cu_seqlens;
    layout.cu_seqlens_k = cu_seqlens_k;
  }

  void poison_key(int64_t b, int64_t t) {
    const auto poison = [&](std::vector<float>& values, int64_t width) {
      std::fill_n(values.begin() + (b * shape.keys + t) * width, width, kNan);
    };
    poison(k, shape.groups * shape.dim);
    poison(v, shape.groups * shape.value_dim);
  }

  // Queries of tokens that take no part hold NaN too.
  void poison_masked_queries() {
    for (size_t i = 0; i < valid.size(); ++i) {
      const int64_t width = shape.heads * shape.dim;
      if (valid[i] == 0) std::fill_n(q.begin() + static_cast<int64_t>(i) * width, width, kNan);
    }
  }

  Shape shape;
  std::vector<float> q, k, v, dout;
  std::vector<uint8_t> valid;
  std::vector<int64_t> lengths, cu_seqlens, cu_seqlens_k;
  Layout layout;
};

inline double greatest(const std::vector<float>& values) {
  double max = 0;
  for (float value : values) {
    if (std::isfinite(value)) max = std::max(max, std::abs(static_cast<double>(value)));
  }
  return max;
}

inline void expect_close(const std::vector<float>& found, const std::vector<double>& expected, double tolerance,
                         const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_LE(std::abs(static_cast<double>(found[i]) - expected[i]), tolerance)  // NaN fails too
        << what << " at " << i << ": " << found[i] << " is not " << expected[i];
  }
}

inline double greatest_difference(const std::vector<float>& found, const std::vector<double>& expected) {
  double max = found.size() == expected.size() ? 0 : HUGE_VAL;
  for (size_t i = 0; i < found.size(); ++i) {
    const double difference = std::abs(static_cast<double>(found[i]) - expected[i]);
    if (std::isnan(difference)) return difference;
    max = std::max(max, difference);
  }
  return max;
}

// Tokens [first, first + count) of a view [B, T, H, D], as an array of its own.
inline std::vector<float> tokens_of(View4 view, int64_t b, int64_t first, int64_t count) {
  return elements_of(view.slice(0, b, 1).slice(1, first, count));
}

struct Gradients {
  std::vector<double> q, k, v;
};

// Of sum(out o dout), by central differences. twin(q, k, v, out) computes in double; NaN stands where nothing is read.
// The error of a difference is h^2 / 6 times a third derivative and 1e-16 / h of rounding: both below 1e-8 here.
template <class Twin>
Gradients differences(const Case& c, const Twin& twin) {
  constexpr double kStep = 1e-5;
  std::vector<double> q(c.q.begin(), c.q.end()), k(c.k.begin(), c.k.end()), v(c.v.begin(), c.v.end()), out(c.dout.size());
  const auto loss = [&] {
    twin(View4(q.data(), c.q_shape()), View4(k.data(), c.k_shape()), View4(v.data(), c.v_shape()),
         MutView4(out.data(), c.out_shape()));
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * static_cast<double>(c.dout[i]);
    return sum;
  };
  const auto differentiate = [&](std::vector<double>& x) {
    std::vector<double> gradient;
    for (double& value : x) {
      const double before = value;
      value = before + kStep;
      const double above = loss();
      value = before - kStep;
      gradient.push_back(std::isnan(before) ? 0 : (above - loss()) / (2 * kStep));
      value = before;
    }
    return gradient;
  };
  Gradients gradients;
  gradients.q = differentiate(q);
  gradients.k = differentiate(k);
  gradients.v = differentiate(v);
  return gradients;
}

}  // namespace raffia::internal::sampled_tests

#endif  // RAFFIA_TESTS_ESTIMATORS_SAMPLED_CASE_H_
