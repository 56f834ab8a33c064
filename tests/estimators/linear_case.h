// Problems for the tests of the linear attention ops: data, options, the op itself and its twin.
#ifndef RAFFIA_TESTS_ESTIMATORS_LINEAR_CASE_H_
#define RAFFIA_TESTS_ESTIMATORS_LINEAR_CASE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "raffia/attention.h"
#include "raffia/reference.h"
#include "support/arrays.h"

namespace raffia::internal::linear_tests {

enum class Op { rfa, causal, gated };
constexpr Op kOps[] = {Op::rfa, Op::causal, Op::gated};
inline const char* name_of_op(Op op) { return op == Op::rfa ? "rfa" : op == Op::causal ? "causal" : "gated"; }

constexpr MapKind kKinds[] = {MapKind::identity,  MapKind::trig, MapKind::arccos, MapKind::positive,
                              MapKind::positive2, MapKind::elu,  MapKind::relu};

struct Shape {
  Op op = Op::gated;
  MapKind kind = MapKind::trig;
  int64_t length = 40;
  int64_t queries = -1;  // of rfa_attention, where they are not as many as keys
  int64_t batch = 1, heads = 1, groups = 1;
  int64_t dim = 5, count = 7, value_dim = 6;
  uint64_t seed = 1;
  float gate_mean = 1.5F, gate_scale = 1.5F;

  int64_t query_length() const { return queries < 0 ? length : queries; }
  std::string text() const {
    return fmt::format("op {} map {} length {} queries {} batch {} heads {}/{} dims {}, {} count {} seed {} isa {}",
                       name_of_op(op), name_of(kind), length, query_length(), batch, heads, groups, dim, value_dim, count, seed,
                       name_of(active_isa()));
  }
};

// A map whose parameters are not the initial ones. Features of relu are shifted upwards, so that few rows have none at all.
inline FeatureMap map_of(MapKind kind, int64_t dim, int64_t count, int64_t heads, uint64_t seed) {
  if (kind == MapKind::identity) return FeatureMap::identity(dim, heads);
  if (kind == MapKind::elu) return FeatureMap::elu(dim, heads);
  if (kind == MapKind::relu) {
    const std::vector<float> weight = normals(static_cast<size_t>(heads * count * dim), seed + 1, 0, 0.5F);
    const std::vector<float> bias = normals(static_cast<size_t>(heads * count), seed + 2, 1, 0.5F);
    return FeatureMap::relu(View3(weight.data(), {heads, count, dim}), View2(bias.data(), {heads, count}));
  }
  FeatureMap map = FeatureMap::random(kind, {.dim = dim, .count = count, .heads = heads, .seed = seed});
  std::vector<float> sigma(static_cast<size_t>(heads * dim));
  for (size_t i = 0; i < sigma.size(); ++i) sigma[i] = 0.4F + 0.05F * static_cast<float>(i % 11);
  map.set_sigma(sigma);
  return map;
}

// What an op leaves.
struct Outcome {
  std::vector<float> out;
  State state;
  Report report;
  std::vector<float> record;
};

struct Case {
  explicit Case(const Shape& s) : shape(s), map(map_of(s.kind, s.dim, s.count, s.groups, s.seed)), initial(empty_state(s.batch)) {
    const auto filled = [&](const Extents<4>& of, uint64_t stream) {
      std::vector<float> values = normals(size_of_shape(of), 16 * s.seed + stream);
      // Features that are given: positive ones, which keep denominators away from 0.
      if (s.kind == MapKind::identity && stream < 2) {
        for (float& value : values) value = 0.1F + std::abs(value);
      }
      return values;
    };
    q = filled(q_shape(), 0);
    k = filled(k_shape(), 1);
    v = filled(v_shape(), 2);
    dout = filled(out_shape(), 3);
    gate = normals(size_of_shape(gate_shape()), 16 * s.seed + 4, s.gate_mean, s.gate_scale);
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  Extents<4> q_shape() const { return {shape.batch, shape.query_length(), shape.heads, shape.dim}; }
  Extents<4> k_shape() const { return {shape.batch, shape.length, shape.groups, shape.dim}; }
  Extents<4> v_shape() const { return {shape.batch, shape.length, shape.groups, shape.value_dim}; }
  Extents<4> out_shape() const { return {shape.batch, shape.query_length(), shape.heads, shape.value_dim}; }
  Extents<3> gate_shape() const { return {shape.batch, shape.length, shape.groups}; }
  View4 q_view() const { return View4(q.data(), q_shape()); }
  View4 k_view() const { return View4(k.data(), k_shape()); }
  View4 v_view() const { return View4(v.data(), v_shape()); }
  View4 dout_view() const { return View4(dout.data(), out_shape()); }
  View3 gate_view() const { return shape.op == Op::gated ? View3(gate.data(), gate_shape()) : View3(); }

  State empty_state(int64_t entries) const { return State(StateShape{entries, shape.groups, map.features(), shape.value_dim}); }

  // A state that has folded some keys of its own.
  void add_initial_state() {
    const int64_t entries = initial.shape().batch;
    const Case past({.op = Op::gated,
                     .kind = shape.kind,
                     .length = 5,
                     .batch = entries,
                     .heads = shape.groups,
                     .groups = shape.groups,
                     .dim = shape.dim,
                     .count = shape.count,
                     .value_dim = shape.value_dim,
                     .seed = shape.seed + 1000});
    reference::Memory memory(initial.shape());
    const reference::Map twin(map);
    if (shape.op == Op::gated) {
      reference::fold_keys(past.k_view(), past.v_view(), past.gate_view(), twin, memory);
    } else {
      reference::fold_keys(past.k_view(), past.v_view(), twin, memory);
    }
    initial = memory.to_state();
  }

  // One letter per token, repeated as needed: '.' takes no part and holds NaN.
  void add_mask(const std::string& pattern) {
    valid.resize(static_cast<size_t>(shape.batch * shape.length));
    for (size_t i = 0; i < valid.size(); ++i) {
      valid[i] = pattern[i % static_cast<size_t>(shape.length) % pattern.size()] != '.';
      if (valid[i] == 0) poison_key(static_cast<int64_t>(i) / shape.length, static_cast<int64_t>(i) % shape.length);
    }
    options.layout.valid = View2(valid.data(), {shape.batch, shape.length});
  }

  // The rest of each entry is padding and holds NaN.
  void set_lengths(std::vector<int64_t> of_entries) {
    lengths = std::move(of_entries);
    options.layout.lengths = lengths;
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t t = lengths[static_cast<size_t>(b)]; t < shape.length; ++t) poison_key(b, t);
    }
  }

  void set_cu_seqlens(std::vector<int64_t> offsets, std::vector<int64_t> of_keys = {}) {
    cu_seqlens = std::move(offsets), cu_seqlens_k = std::move(of_keys);
    options.layout.cu_seqlens = cu_seqlens;
    options.layout.cu_seqlens_k = cu_seqlens_k;
    initial = empty_state(static_cast<int64_t>(cu_seqlens.size()) - 1);
  }

  // In causal ops nothing of an absent token is read, its query and gradient included.
  void poison_key(int64_t b, int64_t t) {
    const auto poison = [&](std::vector<float>& values, int64_t width) {
      std::fill_n(values.begin() + (b * shape.length + t) * width, width, kNan);
    };
    poison(k, shape.groups * shape.dim);
    poison(v, shape.groups * shape.value_dim);
    poison(gate, shape.groups);
    if (shape.op == Op::rfa) return;
    poison(q, shape.heads * shape.dim);
    poison(dout, shape.heads * shape.value_dim);
  }

  Shape shape;
  FeatureMap map;
  State initial;
  std::vector<float> q, k, v, gate, dout;
  std::vector<uint8_t> valid;
  std::vector<int64_t> lengths, cu_seqlens, cu_seqlens_k;
  AttentionOptions options;
};

inline Report call(const Case& c, View4 q, View4 k, View4 v, View3 gate, State& state, MutView4 out,
                   const AttentionOptions& options, std::span<float> record = {}) {
  switch (c.shape.op) {
    case Op::rfa:
      return rfa_attention(q, k, v, c.map, out, options, record);
    case Op::causal:
      return causal_attention(q, k, v, c.map, state, out, options, record);
    case Op::gated:
      return gated_attention(q, k, v, gate, c.map, state, out, options, record);
  }
  return {};
}

struct How {
  int threads = 0;
  Executor* executor = nullptr;
  int64_t segment = 0;
  bool record = false;
};

inline AttentionOptions options_of(const Case& c, const How& how) {
  AttentionOptions options = c.options;
  options.run.threads = how.threads;
  options.run.executor = how.executor;
  options.segment = how.segment;
  return options;
}

// The op, its outputs NaN before.
inline Outcome run(const Case& c, const How& how = {}) {
  Outcome outcome{std::vector<float>(size_of_shape(c.out_shape()), kNan), c.initial, {}, {}};
  const AttentionOptions options = options_of(c, how);
  if (how.record) {
    outcome.record.assign(static_cast<size_t>(record_size(c.q_view(), c.k_view(), c.v_view(), c.map, options)), kNan);
  }
  outcome.report = call(c, c.q_view(), c.k_view(), c.v_view(), c.gate_view(), outcome.state,
                        MutView4(outcome.out.data(), c.out_shape()), options, outcome.record);
  return outcome;
}

inline void expect_same_bits(const Outcome& a, const Outcome& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.out, b.out)) << what << " out";
  EXPECT_TRUE(same_bits(a.state.data(), b.state.data())) << what << " state";
  EXPECT_EQ(a.report.rows, b.report.rows) << what;
  EXPECT_EQ(a.report.clamped, b.report.clamped) << what;
}

}  // namespace raffia::internal::linear_tests

#endif  // RAFFIA_TESTS_ESTIMATORS_LINEAR_CASE_H_
