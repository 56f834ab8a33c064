// Problems for the tests of exact softmax attention: data, options and bounds of the rounding error.
#ifndef RAFFIA_TESTS_ESTIMATORS_SOFTMAX_CASE_H_
#define RAFFIA_TESTS_ESTIMATORS_SOFTMAX_CASE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "raffia/attention.h"
#include "raffia/isa.h"
#include "raffia/reference.h"

namespace raffia::internal::softmax_tests {

constexpr double kUnit = 0x1p-24;  // unit roundoff of fp32
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline std::vector<float> normals(int64_t count, uint64_t seed, float scale = 1) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = scale * normal(generator);
  return values;
}

inline double greatest(const std::vector<float>& values) {
  double max = 0;
  for (float value : values) {
    if (std::isfinite(value)) max = std::max(max, std::abs(static_cast<double>(value)));
  }
  return max;
}

struct Shape {
  int64_t batch = 1, queries = 1, keys = 1, heads = 1, groups = 1, dim = 8, value_dim = 8;
  bool causal = false;

  std::string text() const {
    return fmt::format("isa {} batch {} queries {} keys {} heads {}/{} dims {}, {} causal {}", name_of(active_isa()), batch,
                       queries, keys, heads, groups, dim, value_dim, causal);
  }
};

// Restores the best ISA when a test is over.
class EachIsa {
 public:
  ~EachIsa() { set_max_isa(Isa::avx512); }
  template <class Body>
  void run(const Body& body) const {
    for (Isa isa : available_isas()) {
      set_max_isa(isa);
      body();
    }
  }
};

struct Case {
  explicit Case(const Shape& s, uint64_t seed = 1, float scale = 1)
      : shape(s),
        q(normals(s.batch * s.queries * s.heads * s.dim, 4 * seed, scale)),
        k(normals(s.batch * s.keys * s.groups * s.dim, 4 * seed + 1, scale)),
        v(normals(s.batch * s.keys * s.groups * s.value_dim, 4 * seed + 2)),
        dout(normals(s.batch * s.queries * s.heads * s.value_dim, 4 * seed + 3)) {
    options.causal = s.causal;
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  void add_bias() {
    bias = normals(shape.batch * shape.keys * shape.groups, 77);
    options.key_bias = View3(bias.data(), {shape.batch, shape.keys, shape.groups});
  }

  // About every third key takes no part; it holds NaN.
  void add_mask() {
    valid.resize(static_cast<size_t>(shape.batch * shape.keys));
    for (size_t i = 0; i < valid.size(); ++i) valid[i] = (i * 2654435761U) % 97 >= 32;
    options.layout.valid = View2(valid.data(), {shape.batch, shape.keys});
    poison_absent_keys();
  }

  void poison_absent_keys() {
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t j = 0; j < shape.keys; ++j) {
        if (valid[static_cast<size_t>(b * shape.keys + j)] == 0) poison_key(b, j);
      }
    }
  }

  void poison_key(int64_t b, int64_t j) {
    const auto poison = [&](std::vector<float>& values, int64_t width) {
      if (!values.empty()) std::fill_n(values.begin() + (b * shape.keys + j) * width, width, kNan);
    };
    poison(k, shape.groups * shape.dim);
    poison(v, shape.groups * shape.value_dim);
    poison(bias, shape.groups);
  }

  View4 q_view() const { return View4(q.data(), {shape.batch, shape.queries, shape.heads, shape.dim}); }
  View4 k_view() const { return View4(k.data(), {shape.batch, shape.keys, shape.groups, shape.dim}); }
  View4 v_view() const { return View4(v.data(), {shape.batch, shape.keys, shape.groups, shape.value_dim}); }
  Extents<4> out_shape() const { return {shape.batch, shape.queries, shape.heads, shape.value_dim}; }
  Extents<3> row_shape() const { return {shape.batch, shape.queries, shape.heads}; }
  View4 dout_view() const { return View4(dout.data(), out_shape()); }

  // The most that |scale q.k| + |bias| can be.
  double greatest_logit() const {
    const double scale = options.scale ? std::abs(*options.scale) : 1 / std::sqrt(static_cast<double>(shape.dim));
    return scale * static_cast<double>(shape.dim) * greatest(q) * greatest(k) + greatest(bias);
  }

  // Relative error of a probability, to first order in u = 2^-24. A logit is a sum of d products of rounded factors, so it errs
  // by (d + 3) u A where A bounds the sum of magnitudes, and by u A more when the maximum is subtracted; the same holds for the
  // terms of the denominator. exp errs by 2 ulp = 4 u on either side, and the sum over n keys by n u, rescaled once a block.
  double probability_error() const {
    return kUnit * (2 * (static_cast<double>(shape.dim) + 4) * greatest_logit() + 2 * static_cast<double>(shape.keys) + 16);
  }

  // An output is a mean of values under those probabilities, summed with an error of n u.
  double out_error() const { return greatest(v) * (probability_error() + kUnit * static_cast<double>(shape.keys + 2)); }

  Shape shape;
  std::vector<float> q, k, v, dout, bias;
  std::vector<uint8_t> valid;
  SoftmaxOptions options;
};

struct Outputs {
  explicit Outputs(const Case& c)
      : out(static_cast<size_t>(MutView4(static_cast<float*>(nullptr), c.out_shape()).size()), kNan),
        logsumexp(static_cast<size_t>(MutView3(static_cast<float*>(nullptr), c.row_shape()).size()), kNan) {}

  std::vector<float> out, logsumexp;
};

inline Outputs forward(const Case& c, int threads = 0, Executor* executor = nullptr) {
  Outputs outputs(c);
  SoftmaxOptions options = c.options;
  options.run.threads = threads;
  options.run.executor = executor;
  softmax_attention(c.q_view(), c.k_view(), c.v_view(), MutView4(outputs.out.data(), c.out_shape()), options,
                    MutView3(outputs.logsumexp.data(), c.row_shape()));
  return outputs;
}

}  // namespace raffia::internal::softmax_tests

#endif  // RAFFIA_TESTS_ESTIMATORS_SOFTMAX_CASE_H_
