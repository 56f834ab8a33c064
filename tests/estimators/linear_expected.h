// What a linear op should leave, with a bound of the rounding error of every number.
//
// Bounds follow the recurrence in double and carry a standard deviation along with every value, in units of u = 2^-24: rounding
// errors of different operations count as independent, so they add in squares and a sum of n roundings grows as sqrt(n) (Higham
// and Mary, "A new approach to probabilistic rounding error analysis", 2019). Results may be kDeviations of these away.
//   feature      a projection of d products, and a norm of d squares: sqrt(d) + 2 each; then the error of the map's function
//   gate         8: exp 4, sum, quotient, product (see math_test); g multiplies what is there, u what comes
//   state        S <- g S + u phi v: g's 8, products of gates and one addition: 12 |S|; without a gate the addition alone
//   reading      phi . S, F products: sqrt(F) + 4, as for the scores phi_q . phi_k inside a chunk
//   quotient     y / n errs by dy / n + |o| dn / n
#ifndef RAFFIA_TESTS_ESTIMATORS_LINEAR_EXPECTED_H_
#define RAFFIA_TESTS_ESTIMATORS_LINEAR_EXPECTED_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "estimators/linear_case.h"
#include "reference/recurrence.h"
#include "reference/rows.h"

namespace raffia::internal::linear_tests {

inline constexpr double kDeviations = 6;
inline constexpr double kFlushed = 0x1p-126 / kUnit;              // smaller numbers may be 0, in units of u
inline constexpr double kReset = 8.7565107626965204e-27 / kUnit;  // e^-60: gates below it may be 0

inline double square(double x) { return x * x; }

// phi(x) and the standard deviation of each feature, in units of u.
struct Features {
  std::vector<double> values, deviations;
};

inline Features features_of(const reference::Map& map, int64_t head, std::span<const double> x) {
  Features features{reference::phi(map, head, x), {}};
  features.deviations.assign(features.values.size(), kFlushed);
  if (map.kind == MapKind::identity) return features;
  if (map.kind == MapKind::elu) {
    for (size_t f = 0; f < x.size(); ++f) features.deviations[f] += 5 * features.values[f];
    return features;
  }
  const bool unit = map.kind == MapKind::trig || map.kind == MapKind::arccos;
  const bool exponential = map.kind == MapKind::positive || map.kind == MapKind::positive2;
  const double squares = twins::dot(x, x);
  const double scale = unit ? 1 / std::max(std::sqrt(squares), 1e-6) : exponential ? std::pow(map.dim, -0.25) : 1;
  const double root = std::sqrt(static_cast<double>(map.dim)) + 2, norm = 1 / std::sqrt(static_cast<double>(map.rows));
  for (int64_t i = 0; i < map.rows; ++i) {
    double projection = 0, terms = 0;
    for (int64_t j = 0; j < map.dim; ++j) {
      const size_t at = static_cast<size_t>((head * map.rows + i) * map.dim + j);
      const double sigma = map.sigma.empty() ? 1 : map.sigma[static_cast<size_t>(head * map.dim + j)];
      const double term = sigma * map.draws[at] * x[static_cast<size_t>(j)] * scale;
      projection += term;
      terms += square(term);
    }
    // x^ errs as a whole by the error of the norm: sqrt(d) / 2 and the roundings of root, quotient and product.
    const double deviation = std::hypot(root * std::sqrt(terms), (unit ? root : 1) * std::abs(projection));
    const size_t first = static_cast<size_t>(i), second = static_cast<size_t>(map.rows + i);
    switch (map.kind) {
      case MapKind::trig:
        features.deviations[first] += norm * deviation + 6 * std::abs(features.values[first]);
        features.deviations[second] += norm * deviation + 6 * std::abs(features.values[second]);
        break;
      case MapKind::arccos:
        features.deviations[first] += norm * deviation + 2 * features.values[first];
        break;
      case MapKind::relu:
        features.deviations[first] +=
            deviation + std::abs(projection) + std::abs(map.bias[static_cast<size_t>(head * map.features + i)]);
        break;
      default: {  // e^(p - |y|^2/2 - s) errs as the exponent does
        const double half_square = squares * square(scale) / 2;
        const double exponent = deviation + root * half_square + std::abs(std::log(norm)) + std::abs(projection) + 5;
        features.deviations[first] += exponent * features.values[first];
        if (map.kind == MapKind::positive2) features.deviations[second] += exponent * features.values[second];
      }
    }
  }
  return features;
}

// One head's memory with squared deviations. Column V of a row is the normaliser.
class BoundedMemory {
 public:
  BoundedMemory(const State& state, int64_t entry, int64_t head, bool gated)
      : columns_(static_cast<size_t>(state.shape().value_dim) + 1),
        values_(static_cast<size_t>(state.shape().features) * columns_),
        variances_(values_.size()),
        step_(gated ? 12 : 1),
        write_(gated ? 8 : 0) {
    for (size_t f = 0; f * columns_ < values_.size(); ++f) {
      for (size_t e = 0; e + 1 < columns_; ++e) values_[f * columns_ + e] = state.sums(entry, head)[f * (columns_ - 1) + e];
      values_[f * columns_ + columns_ - 1] = state.normaliser(entry, head)[f];
    }
    mass = state.mass(entry, head);
    log_decay = state.log_decay(entry, head);
  }

  void fold(const twins::Gate& gate, const Features& phi, std::span<const double> v) {
    const double chunk = std::sqrt(static_cast<double>(phi.values.size())) + 4 + write_;
    for (size_t f = 0; f < phi.values.size(); ++f) {
      const double deviation = phi.deviations[f] + chunk * std::abs(phi.values[f]);
      for (size_t e = 0; e < columns_; ++e) {
        const double extended = e < v.size() ? v[e] : 1;
        double& value = values_[f * columns_ + e];
        double& variance = variances_[f * columns_ + e];
        variance =
            square(gate.g) * (variance + square(step_ * value)) + square(kReset * value) + square(gate.u * deviation * extended);
        value = gate.g * value + gate.u * phi.values[f] * extended;
      }
    }
    mass_variance_ = square(gate.g) * (mass_variance_ + square(step_ * mass)) + square(write_ * gate.u) + square(kReset * mass);
    mass = gate.g * mass + gate.u;
    log_variance_ += square(16 * gate.log_g);  // see math_test
    log_decay += gate.log_g;
  }

  // y, n and their squared deviations.
  struct Read {
    std::vector<double> values, variances;
  };
  Read read(const Features& phi) const {
    Read read{std::vector<double>(columns_), std::vector<double>(columns_)};
    const double products = std::sqrt(static_cast<double>(phi.values.size())) + 4;
    for (size_t f = 0; f < phi.values.size(); ++f) {
      for (size_t e = 0; e < columns_; ++e) {
        const double value = values_[f * columns_ + e], p = phi.values[f];
        read.values[e] += p * value;
        read.variances[e] +=
            square(p) * variances_[f * columns_ + e] + square(phi.deviations[f] * value) + square(products * p * value);
      }
    }
    return read;
  }

  double bound_at(size_t f, size_t e) const {  // of sums, or of the normaliser at e = V
    return kUnit * (kDeviations * std::sqrt(variances_[f * columns_ + e]) + std::abs(values_[f * columns_ + e]) + kFlushed);
  }
  double mass_bound() const { return kUnit * (kDeviations * std::sqrt(mass_variance_) + mass); }
  double log_decay_bound() const { return kUnit * (kDeviations * std::sqrt(log_variance_) + std::abs(log_decay)); }

  double mass, log_decay;

 private:
  size_t columns_;
  std::vector<double> values_, variances_;
  double step_, write_;
  double mass_variance_ = 0, log_variance_ = 0;
};

struct Expected {
  std::vector<double> out, out_bounds;
  reference::Memory memory;
  std::vector<double> sums_bounds, normaliser_bounds, mass_bounds, log_decay_bounds;  // laid out as in `memory`
  Report report;
  int64_t uncertain = 0;    // rows whose denominator may fall on either side of the floor
  int64_t unbounded = 0;    // rows whose denominator may be anything: too small beside its error
  double conditioning = 0;  // greatest relative error of a denominator that is bounded
};

inline Expected expected_of(const Case& c) {
  const reference::Map map(c.map);
  Expected expected{std::vector<double>(size_of_shape(c.out_shape())),
                    std::vector<double>(size_of_shape(c.out_shape())),
                    reference::Memory(c.initial),
                    {},
                    {},
                    {},
                    {},
                    {}};
  const MutView4 out(expected.out.data(), c.out_shape()), bounds(expected.out_bounds.data(), c.out_shape());
  const View4 q = c.q_view(), k = c.k_view(), v = c.v_view();
  switch (c.shape.op) {
    case Op::rfa:
      expected.report = reference::rfa_attention(q, k, v, map, out, c.options);
      break;
    case Op::causal:
      expected.report = reference::causal_attention(q, k, v, map, expected.memory, out, c.options);
      break;
    case Op::gated:
      expected.report = reference::gated_attention(q, k, v, c.gate_view(), map, expected.memory, out, c.options);
      break;
  }

  const double eps = twins::eps_of(map, c.options);
  const bool causal = c.shape.op != Op::rfa;
  const auto bound_row = [&](const BoundedMemory& memory, int64_t b, int64_t t, int64_t h) {
    const int64_t g = h / (c.shape.heads / c.shape.groups);
    const BoundedMemory::Read read = memory.read(features_of(map, g, twins::row(q, b, t, h)));
    const double n = read.values.back(), floor = eps * memory.mass;
    const double n_error = kUnit * kDeviations * std::sqrt(read.variances.back());
    const bool clamped = n < floor || n <= 0;
    expected.uncertain += std::abs(n - floor) < n_error + memory.mass_bound() * eps ? 1 : 0;
    const double divisor = std::max(n, floor),
                 divisor_error = clamped && n + n_error < floor ? memory.mass_bound() * eps : n_error;
    const bool bounded = divisor_error < divisor / 2;
    if (bounded) {
      expected.conditioning = std::max(expected.conditioning, divisor_error / divisor);
    } else if (divisor > 0 || n_error > 0) {
      ++expected.unbounded;
    }
    for (int64_t e = 0; e < c.shape.value_dim; ++e) {
      const double o = std::abs(out(b, t, h, e));
      const double y_error = kUnit * kDeviations * std::sqrt(read.variances[static_cast<size_t>(e)]);
      bounds.set(bounded ? (y_error + o * divisor_error) / (divisor - divisor_error) + 4 * kUnit * o
                         : std::numeric_limits<double>::infinity(),
                 b, t, h, e);
    }
  };

  const std::vector<twins::Sequence> sequences =
      twins::sequences_of(c.options.layout, c.shape.batch, c.shape.query_length(), c.shape.length);
  for (size_t n = 0; n < sequences.size(); ++n) {
    const twins::Sequence& s = sequences[n];
    for (int64_t g = 0; g < c.shape.groups; ++g) {
      const int64_t group = c.shape.heads / c.shape.groups, entry = causal ? static_cast<int64_t>(n) : 0;
      BoundedMemory memory(causal ? c.initial : c.empty_state(1), entry, g, c.shape.op == Op::gated);
      for (int64_t t = s.first_key; t < s.first_key + s.keys; ++t) {
        if (!twins::takes_part(c.options.layout, s.batch, t)) continue;
        memory.fold(twins::gate_of(c.gate_view(), s.batch, t, g), features_of(map, g, twins::row(k, s.batch, t, g)),
                    twins::row(v, s.batch, t, g));
        for (int64_t h = g * group; causal && h < (g + 1) * group; ++h) bound_row(memory, s.batch, t, h);
      }
      for (int64_t t = s.first_query; !causal && t < s.first_query + s.queries; ++t) {
        for (int64_t h = g * group; h < (g + 1) * group; ++h) bound_row(memory, s.batch, t, h);
      }
      if (!causal) continue;
      for (size_t f = 0; f < static_cast<size_t>(map.features); ++f) {
        for (size_t e = 0; e < static_cast<size_t>(c.shape.value_dim); ++e) expected.sums_bounds.push_back(memory.bound_at(f, e));
        expected.normaliser_bounds.push_back(memory.bound_at(f, static_cast<size_t>(c.shape.value_dim)));
      }
      expected.mass_bounds.push_back(memory.mass_bound());
      expected.log_decay_bounds.push_back(memory.log_decay_bound());
    }
  }
  return expected;
}

// A floor that about half of the denominators are below, and none of them near.
inline float eps_in_the_middle(Case& c) {
  for (float eps = 0.3F; eps < 1.5F; eps += 0.01F) {
    c.options.eps = eps;
    const Expected expected = expected_of(c);
    if (2 * expected.report.clamped >= expected.report.rows && expected.uncertain == 0) return eps;
  }
  ADD_FAILURE() << c.shape.text() << ": this floor has no expected value";
  return 0;
}

// The greatest error relative to its bound is at most 1. One assertion for the whole array keeps large sweeps fast.
inline void expect_within(std::span<const double> found, std::span<const double> expected, std::span<const double> bounds,
                          const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  ASSERT_EQ(found.size(), bounds.size()) << what;
  for (size_t i = 0; i < found.size(); ++i) {
    // A NaN anywhere fails; a bound of infinity (a denominator that is all noise) asks for a finite number only.
    if (std::isfinite(found[i]) && std::isfinite(expected[i]) && std::abs(found[i] - expected[i]) <= bounds[i]) continue;
    ADD_FAILURE() << what << "[" << i << "] is " << found[i] << ", expected " << expected[i] << " within " << bounds[i];
    return;
  }
}

inline std::vector<double> doubles(std::span<const float> values) { return {values.begin(), values.end()}; }

inline void expect_matches(const Case& c, const Outcome& found, const Expected& expected, const std::string& note = "") {
  const std::string what = c.shape.text() + (note.empty() ? "" : " " + note);
  expect_within(doubles(found.out), expected.out, expected.out_bounds, what + " out");
  EXPECT_EQ(found.report.rows, expected.report.rows) << what;
  EXPECT_LE(std::abs(found.report.clamped - expected.report.clamped), expected.uncertain) << what << " clamp count";
  if (c.shape.op == Op::rfa) return;
  const reference::Memory memory(found.state);
  expect_within(memory.sums, expected.memory.sums, expected.sums_bounds, what + " sums");
  expect_within(memory.normaliser, expected.memory.normaliser, expected.normaliser_bounds, what + " normaliser");
  expect_within(memory.mass, expected.memory.mass, expected.mass_bounds, what + " mass");
  expect_within(memory.log_decay, expected.memory.log_decay, expected.log_decay_bounds, what + " log_decay");
}

// The op against its twin on every ISA.
inline void expect_matches_twin(const Case& c, const How& how = {}) {
  const Expected expected = expected_of(c);
  for_each_isa([&] { expect_matches(c, run(c, how), expected); });
}

}  // namespace raffia::internal::linear_tests

#endif  // RAFFIA_TESTS_ESTIMATORS_LINEAR_EXPECTED_H_
