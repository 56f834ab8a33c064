// What causal LARA and causal EVA have in common to be tested: problems, and properties of any causal windowed op.
//
// An op is described by a struct: Options, small_options(), state_shape(), attention(), record_size(), backward(), step() and
// step_sessions() of the library, and twin() of the reference.
#ifndef RAFFIA_TESTS_ESTIMATORS_WINDOWED_CASE_H_
#define RAFFIA_TESTS_ESTIMATORS_WINDOWED_CASE_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "raffia/reference_sampled.h"
#include "raffia/threads.h"
#include "raffia/window_state.h"
#include "support/arrays.h"

namespace raffia::internal::windowed_tests {

struct Shape {
  int64_t length = 40, batch = 1, heads = 1, groups = 1, dim = 5, value_dim = 6;
  uint64_t seed = 1;
  float spread = 1;  // of q and k

  std::string text() const {
    return fmt::format("length {} batch {} heads {}/{} dims {}, {} seed {} spread {} isa {}", length, batch, heads, groups, dim,
                       value_dim, seed, spread, name_of(active_isa()));
  }
};

inline double greatest_of(const std::vector<float>& values) {
  double max = 0;
  for (float x : values) {
    if (std::isfinite(x)) max = std::max(max, std::abs(static_cast<double>(x)));
  }
  return max;
}

// Of rows of `dim` numbers.
inline double greatest_norm(const std::vector<float>& values, int64_t dim) {
  double max = 0;
  for (auto row = values.begin(); row != values.end(); row += dim) {
    double sum = 0;
    for (auto x = row; x != row + dim; ++x) sum += static_cast<double>(*x) * static_cast<double>(*x);
    if (std::isfinite(sum)) max = std::max(max, sum);
  }
  return std::sqrt(max);
}

template <class Op>
struct Case {
  using Options = typename Op::Options;

  explicit Case(const Shape& s, const Options& o = Op::small_options()) : shape(s), options(o) {
    q = normals(size_of_shape(q_shape()), 16 * s.seed, 0, s.spread);
    k = normals(size_of_shape(k_shape()), 16 * s.seed + 1, 0, s.spread);
    v = normals(size_of_shape(v_shape()), 16 * s.seed + 2);
    dout = normals(size_of_shape(out_shape()), 16 * s.seed + 3);
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  Extents<4> q_shape() const { return {shape.batch, shape.length, shape.heads, shape.dim}; }
  Extents<4> k_shape() const { return {shape.batch, shape.length, shape.groups, shape.dim}; }
  Extents<4> v_shape() const { return {shape.batch, shape.length, shape.groups, shape.value_dim}; }
  Extents<4> out_shape() const { return {shape.batch, shape.length, shape.heads, shape.value_dim}; }
  View4 q_view() const { return View4(q.data(), q_shape()); }
  View4 k_view() const { return View4(k.data(), k_shape()); }
  View4 v_view() const { return View4(v.data(), v_shape()); }
  View4 dout_view() const { return View4(dout.data(), out_shape()); }

  WindowState empty_state(int64_t entries) const {
    return WindowState(Op::state_shape(entries, shape.heads, shape.groups, shape.dim, shape.value_dim, options));
  }

  // One letter per token, repeated as needed: '.' takes no part and holds NaN.
  void add_mask(const std::string& pattern) {
    valid.resize(static_cast<size_t>(shape.batch * shape.length));
    for (size_t i = 0; i < valid.size(); ++i) {
      valid[i] = pattern[i % pattern.size()] != '.';
      if (valid[i] == 0) poison(static_cast<int64_t>(i));
    }
    options.layout.valid = View2(valid.data(), {shape.batch, shape.length});
  }

  // The rest of each entry is padding and holds NaN.
  void set_lengths(std::vector<int64_t> of_entries) {
    lengths = std::move(of_entries);
    options.layout.lengths = lengths;
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t t = lengths[static_cast<size_t>(b)]; t < shape.length; ++t) poison(b * shape.length + t);
    }
  }

  void set_cu_seqlens(std::vector<int64_t> offsets) {
    cu_seqlens = std::move(offsets);
    options.layout.cu_seqlens = cu_seqlens;
  }

  int64_t entries() const { return cu_seqlens.empty() ? shape.batch : static_cast<int64_t>(cu_seqlens.size()) - 1; }

  // Nothing of an absent token is read, its query and gradient included.
  void poison(int64_t token) {
    const auto put = [&](std::vector<float>& values, int64_t width) { std::fill_n(values.begin() + token * width, width, kNan); };
    put(q, shape.heads * shape.dim);
    put(k, shape.groups * shape.dim);
    put(v, shape.groups * shape.value_dim);
    put(dout, shape.heads * shape.value_dim);
  }

  // How far an output may be off. Rounding errors count as independent and add in squares. A logit is a sum of d products and
  // a norm, at most A in magnitude at every step: it errs by (sqrt(d) + 1) A u in standard deviation, which is the relative error
  // of a probability; exp and quotients add 16, a sum of T terms sqrt(T). Three softmaxes lie on top of each other (values, their
  // merge, the output). Results may be 6 deviations away. A: |w| <= |q'| + |k'| + |e| and a logit is w . x' - |x'|^2 / 2, where
  // |e| is chi(d).
  double out_error() const {
    const double tau = options.scale ? static_cast<double>(*options.scale) : 1 / std::sqrt(static_cast<double>(shape.dim));
    const double root = std::sqrt(static_cast<double>(shape.dim));
    const double x = std::sqrt(tau) * std::max(greatest_norm(q, shape.dim), greatest_norm(k, shape.dim)), w = 2 * x + root + 3;
    const double logit = w * x + x * x / 2, terms = static_cast<double>(shape.length);
    return 6 * std::sqrt(3.0) * kUnit * greatest_of(v) * ((root + 1) * logit + std::sqrt(terms) + 16);
  }

  Shape shape;
  Options options;
  std::vector<float> q, k, v, dout;
  std::vector<uint8_t> valid;
  std::vector<int64_t> lengths, cu_seqlens;
};

struct Outcome {
  std::vector<float> out, record;
};

template <class Op>
Outcome run(const Case<Op>& c, WindowState* state = nullptr, int threads = 0, Executor* executor = nullptr) {
  Outcome outcome;
  outcome.out.assign(size_of_shape(c.out_shape()), kNan);
  typename Op::Options options = c.options;
  options.run.threads = threads;
  options.run.executor = executor;
  outcome.record.assign(static_cast<size_t>(Op::record_size(c.q_view(), c.k_view(), c.v_view(), state, options)), kNan);
  Op::attention(c.q_view(), c.k_view(), c.v_view(), state, MutView4(outcome.out.data(), c.out_shape()), options, outcome.record);
  return outcome;
}

template <class Op>
std::vector<double> twin_of(const Case<Op>& c) {
  std::vector<double> expected(size_of_shape(c.out_shape()));
  Op::twin(c.q_view(), c.k_view(), c.v_view(), MutView4(expected.data(), c.out_shape()), c.options);
  return expected;
}

inline void expect_near(const std::vector<float>& found, const std::vector<double>& expected, double error,
                        const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(found[i]), expected[i], error) << what << " at " << i;
  }
}

inline void expect_near(const std::vector<float>& found, const std::vector<float>& expected, double error,
                        const std::string& what) {
  expect_near(found, std::vector<double>(expected.begin(), expected.end()), error, what);
}

// Everything a state holds, number by number; infinities must agree.
inline void expect_near(const WindowState& found, const WindowState& expected, double error, const std::string& what) {
  ASSERT_EQ(found.shape(), expected.shape()) << what;
  for (int64_t b = 0; b < found.shape().batch; ++b) {
    ASSERT_EQ(found.tokens(b), expected.tokens(b)) << what;
    for (int i = 0; i < kWindowParts; ++i) {
      const auto x = found.part(static_cast<WindowPart>(i), b), y = expected.part(static_cast<WindowPart>(i), b);
      for (size_t j = 0; j < x.size(); ++j) {
        if (x[j] == y[j]) continue;
        ASSERT_NEAR(x[j], y[j], error) << what << " entry " << b << " part " << i << " at " << j;
      }
    }
  }
}

template <class Op>
void expect_equals_twin(const Case<Op>& c) {
  const std::vector<double> expected = twin_of(c);
  for_each_isa([&] { expect_near(run(c).out, expected, c.out_error(), c.shape.text()); });
}

// Tokens [begin, end) of a case of one entry, as a call of their own.
template <class Op>
void run_tokens(const Case<Op>& c, int64_t begin, int64_t end, WindowState& state, std::vector<float>& out) {
  typename Op::Options options = c.options;
  if (!options.layout.valid.absent()) options.layout.valid = options.layout.valid.slice(1, begin, end - begin);
  const auto part = [&](auto view) { return view.slice(1, begin, end - begin); };
  Op::attention(part(c.q_view()), part(c.k_view()), part(c.v_view()), &state, part(MutView4(out.data(), c.out_shape())), options);
}

// One token after the other, for all entries at once.
template <class Op>
void step_tokens(const Case<Op>& c, int64_t begin, int64_t end, WindowState& state, std::vector<float>& out) {
  const auto token = [](auto view, int64_t t) {
    using Result = std::conditional_t<std::is_same_v<decltype(view), MutView4>, MutView3, View3>;
    const auto one = view.slice(1, t, 1);
    return Result(one.data(), one.dtype(), {one.extent(0), one.extent(2), one.extent(3)},
                  {one.stride(0), one.stride(2), one.stride(3)});
  };
  const MutView4 out_view(out.data(), c.out_shape());
  for (int64_t t = begin; t < end; ++t) {
    Op::step(token(c.q_view(), t), token(c.k_view(), t), token(c.v_view(), t), state, token(out_view, t), c.options);
  }
}

template <class Op>
void lengths_around_windows_equal_the_twin() {
  // A single head is computed by windows, several go through them in turn.
  for (int64_t heads : {1, 2}) {
    for (int64_t length : {1, 2, 5, 6, 7, 11, 12, 13, 18, 19, 35, 36, 37, 60}) {
      expect_equals_twin(Case<Op>({.length = length, .heads = heads}));
    }
  }
  for (auto [dim, value_dim] : {std::pair{1, 1}, {3, 17}, {16, 16}, {17, 5}, {64, 64}}) {
    expect_equals_twin(Case<Op>({.length = 43, .dim = dim, .value_dim = value_dim}));
  }
  expect_equals_twin(Case<Op>({.length = 38, .batch = 2, .heads = 4, .groups = 2}));
  expect_equals_twin(Case<Op>({.length = 38, .heads = 3, .groups = 1}));
}

template <class Op>
void masks_padding_and_packing_equal_the_twin() {
  for (const char* pattern : {"x.", "..xx.x", "xxxxxxx..............", "x......", "."}) {
    Case<Op> c({.length = 41, .batch = 2, .heads = 2, .groups = 1});
    c.add_mask(pattern);
    expect_equals_twin(c);
  }
  Case<Op> padded({.length = 41, .batch = 4, .heads = 2, .groups = 2});
  padded.set_lengths({41, 0, 13, 36});
  expect_equals_twin(padded);
  Case<Op> packed({.length = 70, .heads = 2, .groups = 1});
  packed.set_cu_seqlens({0, 13, 13, 14, 50, 70});
  packed.add_mask("xx.xxxx");
  expect_equals_twin(packed);
}

template <class Op>
void bf16_and_strides_equal_the_twin() {
  Case<Op> c({.length = 45, .batch = 2, .heads = 2, .groups = 1, .dim = 8});
  const std::vector<BFloat16> q = round_to_bf16(c.q), k = round_to_bf16(c.k), v = round_to_bf16(c.v);
  std::vector<BFloat16> out(size_of_shape(c.out_shape()));
  const std::vector<double> expected = twin_of(c);
  Op::attention(View4(q.data(), c.q_shape()), View4(k.data(), c.k_shape()), View4(v.data(), c.v_shape()), nullptr,
                MutView4(out.data(), c.out_shape()), c.options);
  for (size_t i = 0; i < out.size(); ++i) {
    // Half a unit of 8 bits.
    ASSERT_NEAR(static_cast<double>(out[i].to_float()), expected[i], c.out_error() + std::abs(expected[i]) * 0x1p-8) << i;
  }

  // [B, H, T, D], columns two apart: bits do not depend on strides.
  const auto spread = [](const std::vector<float>& values, const Extents<4>& shape) {
    const auto [B, T, H, D] = shape;
    std::vector<float> spread_values(2 * values.size(), kNan);
    const MutView4 view(spread_values.data(), shape, {2 * T * H * D, 2 * D, 2 * T * D, 2});
    const View4 from(values.data(), shape);
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t t = 0; t < T; ++t) {
        for (int64_t h = 0; h < H; ++h) {
          for (int64_t i = 0; i < D; ++i) view.set(from(b, t, h, i), b, t, h, i);
        }
      }
    }
    return spread_values;
  };
  const auto view_of = [](auto* data, const Extents<4>& shape) {
    const auto [B, T, H, D] = shape;
    using Result = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(data)>>, View4, MutView4>;
    return Result(data, shape, {2 * T * H * D, 2 * D, 2 * T * D, 2});
  };
  const std::vector<float> q2 = spread(c.q, c.q_shape()), k2 = spread(c.k, c.k_shape()), v2 = spread(c.v, c.v_shape());
  std::vector<float> out2(2 * size_of_shape(c.out_shape()), kNan);
  const MutView4 out2_view = view_of(out2.data(), c.out_shape());
  Op::attention(view_of(q2.data(), c.q_shape()), view_of(k2.data(), c.k_shape()), view_of(v2.data(), c.v_shape()), nullptr,
                out2_view, c.options);
  EXPECT_TRUE(same_bits(elements_of(out2_view), run(c).out));
}

template <class Op>
void later_tokens_change_no_earlier_bit() {
  for_each_isa([] {
    Case<Op> c({.length = 40, .heads = 2, .groups = 1});
    const std::vector<float> before = run(c).out;
    for (int64_t t : {39, 30, 29, 24, 23, 18, 13, 12, 7, 1}) {
      // From the last token on, all of them: what is before token t stays.
      for (float changed : {37.0F, kNan}) {
        Case<Op> other(c.shape);
        std::fill(other.q.begin() + t * 2 * c.shape.dim, other.q.end(), changed);
        std::fill(other.k.begin() + t * c.shape.dim, other.k.end(), changed);
        std::fill(other.v.begin() + t * c.shape.value_dim, other.v.end(), changed);
        const std::vector<float> after = run(other).out;
        const size_t same = static_cast<size_t>(t * 2 * c.shape.value_dim);
        EXPECT_TRUE(same_bits(std::span(before).first(same), std::span(after).first(same)))
            << c.shape.text() << " token " << t << " changed to " << changed;
      }
    }
  });
}

template <class Op>
void split_and_resume_equals_whole() {
  for_each_isa([] {
    for (const char* pattern : {"x", "xx.xx.xxxx......."}) {
      Case<Op> c({.length = 61, .heads = 2, .groups = 1});
      if (pattern[1] != 0) c.add_mask(pattern);
      WindowState whole_state = c.empty_state(1);
      const std::vector<float> whole = run(c, &whole_state).out;
      expect_near(whole, twin_of(c), c.out_error(), c.shape.text());
      for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{0, 61},
                                               {30, 61},
                                               {1, 2, 5, 6, 7, 61},
                                               {3, 9, 15, 21, 27, 33, 39, 45, 61},
                                               {12, 24, 30, 54, 61},
                                               {59, 60, 61},
                                               {6, 6, 13, 47, 61}}) {
        std::vector<float> out(whole.size(), kNan);
        WindowState state = c.empty_state(1);
        int64_t begin = 0;
        for (int64_t end : cuts) {
          run_tokens(c, begin, end, state, out);
          begin = end;
        }
        expect_near(out, whole, c.out_error(), c.shape.text() + fmt::format(" cut at {}", cuts[0]));
        expect_near(state, whole_state, state_error(c), c.shape.text() + fmt::format(" cut at {}", cuts[0]));
      }
    }
  });
}

// Log weights of a state are logits, of which out_error is 6 deviations of the error, times the largest value; so are samples.
template <class Op>
double state_error(const Case<Op>& c) {
  return c.out_error();
}

template <class Op>
void steps_equal_the_whole() {
  for_each_isa([] {
    for (auto [heads, groups, dim] : {std::tuple{2, 1, 5}, {2, 2, 16}, {1, 1, 3}}) {
      Case<Op> c({.length = 61, .batch = 2, .heads = heads, .groups = groups, .dim = dim});
      WindowState whole_state = c.empty_state(2), state = c.empty_state(2);
      const std::vector<float> whole = run(c, &whole_state).out;
      std::vector<float> out(whole.size(), kNan);
      step_tokens(c, 0, 61, state, out);
      expect_near(out, twin_of(c), c.out_error(), c.shape.text());
      expect_near(state, whole_state, state_error(c), c.shape.text());
    }
    // Steps go on where a chunk with absent tokens ended, and chunks where steps did.
    Case<Op> c({.length = 61, .heads = 2, .groups = 1});
    std::vector<uint8_t> valid(61, 1);
    for (int64_t t : {1, 26, 27}) {
      c.poison(t);
      valid[static_cast<size_t>(t)] = 0;
    }
    c.valid = valid;
    c.options.layout.valid = View2(c.valid.data(), {1, 61});
    const std::vector<double> expected = twin_of(c);
    std::vector<float> out(expected.size(), kNan);
    WindowState state = c.empty_state(1);
    run_tokens(c, 0, 28, state, out);
    c.options.layout.valid = {};
    step_tokens(c, 28, 45, state, out);
    run_tokens(c, 45, 61, state, out);
    expect_near(out, expected, c.out_error(), c.shape.text());
  });
}

template <class Op>
void forks_and_files_continue_alike() {
  const Case<Op> c({.length = 61, .batch = 2, .heads = 2, .groups = 1});
  for (int64_t at : {0, 5, 6, 33, 42}) {
    WindowState state = c.empty_state(2);
    std::vector<float> out(size_of_shape(c.out_shape()), kNan);
    run_tokens(c, 0, at, state, out);
    const int64_t indices[] = {1, 0, 1};
    WindowState fork = state.select(indices);
    const std::filesystem::path path =
        std::filesystem::temp_directory_path() / fmt::format("raffia-windowed-{}-{}", Op::kName, at);
    state.save(path);
    WindowState loaded = WindowState::load(path);
    std::filesystem::remove(path);
    EXPECT_EQ(loaded, state);

    // All three sessions of the fork are fed the tokens of the entry that they come from.
    Case<Op> three({.length = 61, .batch = 3, .heads = 2, .groups = 1});
    const auto gather = [&](const std::vector<float>& from, std::vector<float>& to) {
      const size_t entry = from.size() / 2;
      for (size_t i = 0; i < 3; ++i) {
        std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(indices[i]) * entry), entry,
                    to.begin() + static_cast<std::ptrdiff_t>(i * entry));
      }
    };
    gather(c.q, three.q), gather(c.k, three.k), gather(c.v, three.v);
    std::vector<float> forked(size_of_shape(three.out_shape()), kNan), again = out;
    run_tokens(three, at, 50, fork, forked);
    step_tokens(three, 50, 61, fork, forked);
    run_tokens(c, at, 50, state, out);
    step_tokens(c, 50, 61, state, out);
    run_tokens(c, at, 50, loaded, again);
    step_tokens(c, 50, 61, loaded, again);
    EXPECT_TRUE(same_bits(again, out)) << at;
    EXPECT_EQ(loaded, state) << at;
    std::vector<float> expected(forked.size());
    gather(out, expected);
    const size_t entry = out.size() / 2, skip = static_cast<size_t>(at) * 2 * static_cast<size_t>(c.shape.value_dim);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(same_bits(std::span(forked).subspan(i * entry + skip, entry - skip),
                            std::span(expected).subspan(i * entry + skip, entry - skip)))
          << at << " session " << i;
    }
    EXPECT_EQ(fork, state.select(indices)) << at;
  }
}

template <class Op>
void sessions_at_different_positions_step_together() {
  const Case<Op> c({.length = 61, .batch = 4, .heads = 2, .groups = 1});
  const int64_t positions[] = {0, 17, 41, 29};
  std::vector<WindowState> apart, together;
  const auto entry_of = [](auto view, int64_t b) { return view.slice(0, b, 1); };
  std::vector<float> out(size_of_shape(c.out_shape()), kNan);
  const MutView4 out_view(out.data(), c.out_shape());
  for (int64_t b = 0; b < 4; ++b) {
    apart.push_back(c.empty_state(1));
    const auto past = [&](auto view) { return entry_of(view, b).slice(1, 0, positions[b]); };
    Op::attention(past(c.q_view()), past(c.k_view()), past(c.v_view()), &apart.back(), past(out_view), c.options);
    together.push_back(apart.back());
  }
  std::vector<WindowState*> sessions;
  for (WindowState& state : together) sessions.push_back(&state);
  const Extents<3> shapes[] = {{4, 2, c.shape.dim}, {4, 1, c.shape.dim}, {4, 2, c.shape.value_dim}};
  for (uint64_t step = 0; step < 20; ++step) {
    const std::vector<float> q = normals(size_of_shape(shapes[0]), 900 + step), k = normals(size_of_shape(shapes[1]), 950 + step),
                             v = normals(static_cast<size_t>(4 * c.shape.value_dim), 990 + step);
    std::vector<float> all(size_of_shape(shapes[2]), kNan), one(size_of_shape(shapes[2]), kNan);
    const View3 q3(q.data(), shapes[0]), k3(k.data(), shapes[1]), v3(v.data(), {4, 1, c.shape.value_dim});
    Op::step_sessions(q3, k3, v3, sessions, MutView3(all.data(), shapes[2]), c.options);
    for (int64_t b = 0; b < 4; ++b) {
      Op::step(q3.slice(0, b, 1), k3.slice(0, b, 1), v3.slice(0, b, 1), apart[static_cast<size_t>(b)],
               MutView3(one.data(), shapes[2]).slice(0, b, 1), c.options);
    }
    EXPECT_TRUE(same_bits(all, one)) << step;
  }
  for (size_t b = 0; b < 4; ++b) EXPECT_EQ(apart[b], together[b]);
}

}  // namespace raffia::internal::windowed_tests

#endif  // RAFFIA_TESTS_ESTIMATORS_WINDOWED_CASE_H_
