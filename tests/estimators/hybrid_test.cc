// Hybrid attention against its double twin; chunked, stepped and resumed alike; gradients against finite differences.
#include "raffia/hybrid.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "raffia/reference_sampled.h"
#include "support/arrays.h"

namespace raffia::internal {
namespace {

struct Shape {
  int64_t batch = 1, length = 1, heads = 2, groups = 2, dim = 12, value_dim = 10, window = 8;
  MapKind map = MapKind::trig;
  int64_t count = 12;  // random vectors
  bool apart = false;  // q_far, k_far of size 9
  bool has_mask = false;

  std::string text() const {
    return fmt::format("isa {} batch {} length {} heads {}/{} dims {}, {} window {} map {} apart {} mask {}",
                       name_of(active_isa()), batch, length, heads, groups, dim, value_dim, window, name_of(map), apart,
                       has_mask);
  }
};

FeatureMap map_of(const Shape& s) {
  const int64_t dim = s.apart ? 9 : s.dim;
  if (s.map == MapKind::identity) return FeatureMap::identity(dim, s.groups);
  return FeatureMap::random(s.map, {.dim = dim, .count = s.count, .heads = s.groups, .seed = 5});
}

// Arrays of one problem, as floats and as views of any element type.
template <class T>
struct Arrays {
  explicit Arrays(const Shape& s, uint64_t seed = 1) : shape(s) {
    const auto draw = [&](int64_t heads, int64_t width, uint64_t stream, float mean, float scale) {
      const std::vector<float> floats =
          normals(static_cast<size_t>(s.batch * s.length * heads * width), 10 * seed + stream, mean, scale);
      return std::vector<T>(floats.begin(), floats.end());
    };
    // Features that are given must be positive, or denominators are anything.
    const bool given = s.map == MapKind::identity;
    q = draw(s.heads, s.dim, 1, 0, 1);
    k = draw(s.groups, s.dim, 2, 0, 1);
    v = draw(s.groups, s.value_dim, 3, 0, 1);
    gates = draw(s.groups, 1, 4, 2, 1);
    if (s.apart) {
      q_far = draw(s.heads, 9, 5, 0, 1);
      k_far = draw(s.groups, 9, 6, 0, 1);
    }
    if (given) {
      for (std::vector<T>* features : {s.apart ? &q_far : &q, s.apart ? &k_far : &k}) {
        for (T& x : *features) x = std::abs(x);
      }
    }
    const std::vector<float> scales = normals(static_cast<size_t>(s.heads), 10 * seed + 7, -1, 1);
    log_scale.assign(scales.begin(), scales.end());
    if (s.has_mask) {
      valid.resize(static_cast<size_t>(s.batch * s.length));
      for (size_t i = 0; i < valid.size(); ++i) valid[i] = (i * 2654435761U) % 97 >= 30;
    }
  }

  HybridInputs inputs() const {
    const auto view = [&](const std::vector<T>& values, int64_t heads, int64_t width) {
      return View4(values.data(), {shape.batch, shape.length, heads, width});
    };
    HybridInputs in;
    in.q = view(q, shape.heads, shape.dim);
    in.k = view(k, shape.groups, shape.dim);
    in.v = view(v, shape.groups, shape.value_dim);
    in.gate_logits = View3(gates.data(), {shape.batch, shape.length, shape.groups});
    in.log_scale = View1(log_scale.data(), {shape.heads});
    if (shape.apart) {
      in.q_far = view(q_far, shape.heads, 9);
      in.k_far = view(k_far, shape.groups, 9);
    }
    return in;
  }
  HybridOptions options() const {
    HybridOptions o;
    o.window = shape.window;
    if (shape.has_mask) o.layout.valid = View2(valid.data(), {shape.batch, shape.length});
    return o;
  }
  Extents<4> out_shape() const { return {shape.batch, shape.length, shape.heads, shape.value_dim}; }

  void poison_absent() {
    for (int64_t t = 0; t < shape.batch * shape.length; ++t) {
      if (valid.empty() || valid[static_cast<size_t>(t)] != 0) continue;
      const auto poison = [&](std::vector<T>& values, int64_t width) {
        if (!values.empty()) std::fill_n(values.begin() + t * width, width, static_cast<T>(kNan));
      };
      poison(q, shape.heads * shape.dim);
      poison(k, shape.groups * shape.dim);
      poison(v, shape.groups * shape.value_dim);
      poison(gates, shape.groups);
      poison(q_far, shape.heads * 9);
      poison(k_far, shape.groups * 9);
    }
  }

  Shape shape;
  std::vector<T> q, k, v, gates, q_far, k_far, log_scale;
  std::vector<uint8_t> valid;
};

std::vector<double> twin(const Shape& s, const Arrays<double>& arrays, const HybridOptions& options, const FeatureMap& map) {
  std::vector<double> out(size_of_shape(arrays.out_shape()));
  reference::hybrid_attention(arrays.inputs(), reference::Map(map), MutView4(out.data(), arrays.out_shape()), options);
  EXPECT_EQ(out.size(), size_of_shape(Extents<4>{s.batch, s.length, s.heads, s.value_dim}));
  return out;
}

// Inputs of unit size: logits of at most about 8 err by (d + 4) 8 u, features and sums of at most 200 terms by 1e-5; divided by a
// denominator that the exact part keeps from vanishing.
constexpr double kTolerance = 1e-4;

void expect_close(std::span<const float> found, std::span<const double> expected, const std::string& what,
                  double tolerance = kTolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_LE(std::abs(static_cast<double>(found[i]) - expected[i]), tolerance) << what << " at " << i;  // NaN fails too
  }
}

// Null: from empty memory.
Report attend(const HybridInputs& inputs, const FeatureMap& map, WindowState* state, MutView4 out, const HybridOptions& options,
              std::span<float> record = {}) {
  if (state != nullptr) return hybrid_attention(inputs, map, *state, out, options, record);
  return hybrid_attention(inputs, map, out, options, record);
}

std::vector<float> run(const Arrays<float>& arrays, const FeatureMap& map, HybridOptions options, WindowState* state = nullptr) {
  std::vector<float> out(size_of_shape(arrays.out_shape()), kNan);
  attend(arrays.inputs(), map, state, MutView4(out.data(), arrays.out_shape()), options);
  return out;
}

void expect_equals_twin(const Shape& s) {
  const FeatureMap map = map_of(s);
  Arrays<float> arrays(s);
  const Arrays<double> exact(s);
  arrays.poison_absent();
  expect_close(run(arrays, map, arrays.options()), twin(s, exact, exact.options(), map), s.text());
}

TEST(Hybrid, EqualsTwinAtEveryLengthAndWindow) {
  for_each_isa([] {
    for (int64_t window : {1, 2, 5, 16, 17, 32}) {
      for (int64_t length : {0, 1, 2, 3, 15, 16, 17, 31, 33, 64, 65, 100}) {
        expect_equals_twin({.length = length, .window = window});
      }
    }
    expect_equals_twin({.length = 200, .window = 130});
    expect_equals_twin({.length = 450, .heads = 1, .groups = 1, .window = 140});
  });
}

TEST(Hybrid, EqualsTwinForMapsGroupsMasksAndFarInputs) {
  for_each_isa([] {
    for (MapKind map : {MapKind::trig, MapKind::arccos, MapKind::positive, MapKind::identity}) {
      for (bool apart : {false, true}) {
        for (bool mask : {false, true}) {
          expect_equals_twin(
              {.batch = 2, .length = 75, .heads = 4, .groups = 2, .window = 8, .map = map, .apart = apart, .has_mask = mask});
        }
      }
    }
    expect_equals_twin({.length = 130, .dim = 64, .value_dim = 64, .window = 32, .count = 64});
    expect_equals_twin({.length = 70, .dim = 1, .value_dim = 1, .window = 6, .count = 3});
  });
}

// Tokens [begin, end) of every entry.
HybridInputs slice(const HybridInputs& in, int64_t begin, int64_t end) {
  const auto part = [&](const View4& view) { return view.absent() ? view : view.slice(1, begin, end - begin); };
  HybridInputs out = in;
  out.q = part(in.q);
  out.k = part(in.k);
  out.v = part(in.v);
  out.gate_logits = in.gate_logits.slice(1, begin, end - begin);
  out.q_far = part(in.q_far);
  out.k_far = part(in.k_far);
  return out;
}

WindowState empty_state(const Shape& s, const FeatureMap& map) {
  return WindowState(hybrid_state_shape(s.batch, s.groups, s.dim, s.value_dim, map, s.apart, {.window = s.window}));
}

void expect_states_alike(const WindowState& a, const WindowState& b, const std::string& what) {
  for (int64_t n = 0; n < a.shape().batch; ++n) {
    ASSERT_EQ(a.tokens(n), b.tokens(n)) << what;
    for (WindowPart part : {WindowPart::keys, WindowPart::values, WindowPart::gates, WindowPart::present, WindowPart::sums,
                            WindowPart::normaliser, WindowPart::mass, WindowPart::log_decay}) {
      const std::span<const float> x = a.part(part, n), y = b.part(part, n);
      for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 2e-5) << what << " part " << static_cast<int>(part);
    }
  }
}

TEST(Hybrid, SplitAndResumeEqualsWholeAndSteps) {
  for_each_isa([] {
    for (bool apart : {false, true}) {
      for (bool mask : {false, true}) {
        const Shape s{.batch = 2, .length = 61, .heads = 4, .groups = 2, .window = 7, .apart = apart, .has_mask = mask};
        const FeatureMap map = map_of(s);
        Arrays<float> arrays(s);
        arrays.poison_absent();
        const HybridOptions options = arrays.options();
        WindowState whole_state = empty_state(s, map);
        const std::vector<float> whole = run(arrays, map, options, &whole_state);
        const std::vector<double> expected(whole.begin(), whole.end());
        for (const std::vector<int64_t>& cuts :
             {std::vector<int64_t>{0, 20, 61}, {0, 1, 2, 9, 14, 28, 33, 61}, {0, 7, 14, 61}, {0, 60, 61}}) {
          WindowState state = empty_state(s, map);
          std::vector<float> out(whole.size(), kNan);
          const MutView4 view(out.data(), arrays.out_shape());
          for (size_t c = 0; c + 1 < cuts.size(); ++c) {
            HybridOptions cut = options;
            if (mask) cut.layout.valid = options.layout.valid.slice(1, cuts[c], cuts[c + 1] - cuts[c]);
            hybrid_attention(slice(arrays.inputs(), cuts[c], cuts[c + 1]), map, state,
                             view.slice(1, cuts[c], cuts[c + 1] - cuts[c]), cut);
          }
          expect_close(out, expected, s.text());
          expect_states_alike(state, whole_state, s.text());
        }
        if (mask) continue;
        WindowState state = empty_state(s, map);
        std::vector<float> out(whole.size(), kNan);
        for (int64_t t = 0; t < s.length; ++t) {
          hybrid_step(slice(arrays.inputs(), t, t + 1), map, state, MutView4(out.data(), arrays.out_shape()).slice(1, t, 1),
                      {.window = s.window});
        }
        expect_close(out, expected, s.text() + " steps");
        expect_states_alike(state, whole_state, s.text() + " steps");
      }
    }
  });
}

TEST(Hybrid, StepsGoOnAfterAbsentTokens) {
  for_each_isa([] {
    for (bool apart : {false, true}) {
      const Shape s{.batch = 2, .length = 61, .heads = 4, .groups = 2, .window = 7, .apart = apart, .has_mask = true};
      for (int64_t at : {0, 3, 13, 14, 25, 33}) {
        const FeatureMap map = map_of(s);
        Arrays<float> arrays(s);
        std::fill(arrays.valid.begin(), arrays.valid.end(), uint8_t{1});
        for (int64_t b = 0; b < s.batch; ++b) {
          for (int64_t t = b; t < at; t += 3) arrays.valid[static_cast<size_t>(b * s.length + t)] = 0;
        }
        arrays.poison_absent();
        const HybridOptions options = arrays.options();
        WindowState whole_state = empty_state(s, map), state = empty_state(s, map);
        const std::vector<float> whole = run(arrays, map, options, &whole_state);
        std::vector<float> out(whole.size(), kNan);
        const MutView4 view(out.data(), arrays.out_shape());
        HybridOptions cut = options;
        cut.layout.valid = options.layout.valid.slice(1, 0, at);
        hybrid_attention(slice(arrays.inputs(), 0, at), map, state, view.slice(1, 0, at), cut);
        for (int64_t t = at; t < s.length; ++t) {
          hybrid_step(slice(arrays.inputs(), t, t + 1), map, state, view.slice(1, t, 1), {.window = s.window});
        }
        expect_close(out, std::vector<double>(whole.begin(), whole.end()), s.text());
        expect_states_alike(state, whole_state, s.text());
      }
    }
  });
}

TEST(Hybrid, LongWindowsStepToo) {
  const Shape s{.length = 700, .heads = 1, .groups = 1, .dim = 4, .value_dim = 3, .window = 300};
  const FeatureMap map = map_of(s);
  const Arrays<float> arrays(s);
  WindowState state = empty_state(s, map);
  std::vector<float> out(size_of_shape(arrays.out_shape()), kNan);
  for (int64_t t = 0; t < s.length; ++t) {
    hybrid_step(slice(arrays.inputs(), t, t + 1), map, state, MutView4(out.data(), arrays.out_shape()).slice(1, t, 1),
                {.window = s.window});
  }
  const std::vector<float> whole = run(arrays, map, arrays.options());
  expect_close(out, std::vector<double>(whole.begin(), whole.end()), s.text());
}

TEST(Hybrid, SessionsAtDifferentPositionsStepTogether) {
  const Shape s{.batch = 1, .length = 40, .window = 6};
  const FeatureMap map = map_of(s);
  const Arrays<float> a(s, 1), b(s, 2);
  WindowState ahead = empty_state(s, map), behind = empty_state(s, map);
  std::vector<float> prefix(size_of_shape(a.out_shape()));
  hybrid_attention(slice(a.inputs(), 0, 17), map, ahead, MutView4(prefix.data(), a.out_shape()).slice(1, 0, 17), {.window = 6});
  const std::vector<float> whole_a = run(a, map, a.options()), whole_b = run(b, map, b.options());
  const size_t row = static_cast<size_t>(s.heads * s.value_dim);
  // Both tokens in one batch: entry 0 is token 17 + t of a, entry 1 is token t of b.
  for (int64_t t = 0; t < 20; ++t) {
    Shape pair = s;
    pair.batch = 2;
    pair.length = 1;
    Arrays<float> both(pair);
    const auto put = [&](std::vector<float>& to, const std::vector<float>& from_a, const std::vector<float>& from_b) {
      const size_t width = to.size() / 2;
      std::copy_n(from_a.begin() + (17 + t) * static_cast<int64_t>(width), width, to.begin());
      std::copy_n(from_b.begin() + t * static_cast<int64_t>(width), width, to.begin() + static_cast<int64_t>(width));
    };
    put(both.q, a.q, b.q);
    put(both.k, a.k, b.k);
    put(both.v, a.v, b.v);
    put(both.gates, a.gates, b.gates);
    both.log_scale = a.log_scale;
    ASSERT_NE(a.log_scale, b.log_scale);
    std::vector<float> out(2 * row);
    WindowState* const sessions[] = {&ahead, &behind};
    hybrid_step(both.inputs(), map, sessions, MutView4(out.data(), {2, 1, s.heads, s.value_dim}), {.window = 6});
    for (size_t i = 0; i < row; ++i) {
      ASSERT_NEAR(out[i], whole_a[static_cast<size_t>(17 + t) * row + i], kTolerance) << t;
    }
    if (t < 6) {  // nothing is folded yet: the scale of b does not matter
      for (size_t i = 0; i < row; ++i) ASSERT_NEAR(out[row + i], whole_b[static_cast<size_t>(t) * row + i], kTolerance) << t;
    }
  }
}

TEST(Hybrid, SavedAndForkedStatesGoOnToTheBit) {
  const Shape s{.batch = 2, .length = 50, .window = 6};
  const FeatureMap map = map_of(s);
  const Arrays<float> arrays(s);
  WindowState state = empty_state(s, map);
  std::vector<float> out(size_of_shape(arrays.out_shape()));
  const MutView4 view(out.data(), arrays.out_shape());
  hybrid_attention(slice(arrays.inputs(), 0, 27), map, state, view.slice(1, 0, 27), {.window = 6});
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "raffia_hybrid_test.state";
  state.save(path);
  WindowState loaded = WindowState::load(path);
  std::filesystem::remove(path);
  const std::vector<int64_t> same = {0, 1};
  WindowState forked = state.select(same);
  for (int64_t t = 27; t < 50; ++t) {
    std::vector<float> outs[3];
    WindowState* states[3] = {&state, &loaded, &forked};
    for (size_t i = 0; i < 3; ++i) {
      outs[i].resize(static_cast<size_t>(2 * s.heads * s.value_dim));
      hybrid_step(slice(arrays.inputs(), t, t + 1), map, *states[i], MutView4(outs[i].data(), {2, 1, s.heads, s.value_dim}),
                  {.window = 6});
    }
    ASSERT_TRUE(same_bits(outs[0], outs[1]) && same_bits(outs[0], outs[2])) << t;
  }
  EXPECT_EQ(state, loaded);
}

TEST(Hybrid, LaterTokensNeverChangeAnEarlierBit) {
  for_each_isa([] {
    const Shape s{.length = 77, .window = 9};
    const FeatureMap map = map_of(s);
    const Arrays<float> arrays(s);
    const std::vector<float> before = run(arrays, map, arrays.options());
    const size_t row = static_cast<size_t>(s.heads * s.value_dim);
    for (int64_t changed : {1, 8, 9, 18, 40, 63, 76}) {
      Arrays<float> other(s);
      for (int64_t t = changed; t < s.length; ++t) {
        for (auto [values, width] : {std::pair{&other.q, s.heads * s.dim},
                                     {&other.k, s.groups * s.dim},
                                     {&other.v, s.groups * s.value_dim},
                                     {&other.gates, s.groups}}) {
          for (int64_t i = t * width; i < (t + 1) * width; ++i) (*values)[static_cast<size_t>(i)] += 1.0F;
        }
      }
      const std::vector<float> after = run(other, map, other.options());
      ASSERT_TRUE(same_bits(std::span(before).first(static_cast<size_t>(changed) * row),
                            std::span(after).first(static_cast<size_t>(changed) * row)))
          << changed;
      ASSERT_FALSE(same_bits(before, after));
    }
  });
}

TEST(Hybrid, PackedSequencesAndLengthsEqualSeparateOnes) {
  for_each_isa([] {
    const Shape s{.length = 60, .heads = 4, .groups = 2, .window = 7};
    const FeatureMap map = map_of(s);
    const Arrays<float> arrays(s);
    const std::vector<int64_t> cuts = {0, 13, 13, 60};
    HybridOptions options = arrays.options();
    options.layout.cu_seqlens = cuts;
    Shape three = s;
    three.batch = 3;
    WindowState packed_state = empty_state(three, map);
    const std::vector<float> packed = run(arrays, map, options, &packed_state);
    std::vector<float> separate(packed.size(), kNan);
    for (size_t n = 0; n + 1 < cuts.size(); ++n) {
      WindowState state = empty_state(s, map);
      hybrid_attention(slice(arrays.inputs(), cuts[n], cuts[n + 1]), map, state,
                       MutView4(separate.data(), arrays.out_shape()).slice(1, cuts[n], cuts[n + 1] - cuts[n]),
                       {.window = s.window});
      ASSERT_EQ(state.tokens(0), packed_state.tokens(static_cast<int64_t>(n)));
      const std::vector<int64_t> entry = {static_cast<int64_t>(n)};
      EXPECT_EQ(packed_state.select(entry), state);
    }
    EXPECT_TRUE(same_bits(packed, separate));
    // Resumed, again packed.
    const std::vector<float> again = run(arrays, map, options, &packed_state);
    for (float x : again) ASSERT_TRUE(std::isfinite(x));

    Shape padded = s;
    padded.batch = 2;
    Arrays<float> batch(padded);
    const std::vector<int64_t> lengths = {33, 60};
    HybridOptions with_lengths = batch.options();
    with_lengths.layout.lengths = lengths;
    std::fill_n(batch.k.begin() + 33 * s.groups * s.dim, 27 * s.groups * s.dim, kNan);
    const std::vector<float> out = run(batch, map, with_lengths);
    std::vector<float> alone(static_cast<size_t>(33 * s.heads * s.value_dim));
    HybridInputs first = slice(batch.inputs(), 0, 33);
    for (View4* view : {&first.q, &first.k, &first.v}) *view = view->slice(0, 0, 1);
    first.gate_logits = first.gate_logits.slice(0, 0, 1);
    hybrid_attention(first, map, MutView4(alone.data(), {1, 33, s.heads, s.value_dim}), {.window = s.window});
    EXPECT_TRUE(same_bits(std::span(out).first(alone.size()), alone));
    const size_t entry = static_cast<size_t>(60 * s.heads * s.value_dim);
    for (size_t i = alone.size(); i < entry; ++i) ASSERT_EQ(out[i], 0.0F);
  });
}

TEST(Hybrid, SameBitsForAnyNumberOfThreadsAndAnyStrides) {
  for_each_isa([] {
    const Shape s{.batch = 2, .length = 90, .heads = 4, .groups = 2, .dim = 16, .value_dim = 16, .window = 16, .count = 16};
    const FeatureMap map = map_of(s);
    const Arrays<float> arrays(s);
    const std::unique_ptr<Executor> pool = make_thread_pool(3);
    HybridOptions options = arrays.options();
    options.run.executor = pool.get();
    options.run.threads = 1;
    const std::vector<float> one = run(arrays, map, options);
    for (int threads : {2, 3}) {
      options.run.threads = threads;
      EXPECT_TRUE(same_bits(run(arrays, map, options), one));
    }
    // [B, H, T, V] seen as [B, T, H, V].
    std::vector<float> out(one.size(), kNan);
    const MutView4 view = MutView4(out.data(), {s.batch, s.heads, s.length, s.value_dim}).permuted({0, 2, 1, 3});
    hybrid_attention(arrays.inputs(), map, view, arrays.options());
    EXPECT_EQ(elements_of(view), one);
  });
}

TEST(Hybrid, HalfPrecisionRoundsInputsAndOutputsOnly) {
  for_each_isa([] {
    const Shape s{.length = 50, .window = 8};
    const FeatureMap map = map_of(s);
    Arrays<float> arrays(s);
    const std::vector<BFloat16> q = round_to_bf16(arrays.q), k = round_to_bf16(arrays.k), v = round_to_bf16(arrays.v);
    const std::vector<float> expected = run(arrays, map, arrays.options());
    HybridInputs in = arrays.inputs();
    in.q = View4(q.data(), in.q.shape());
    in.k = View4(k.data(), in.k.shape());
    in.v = View4(v.data(), in.v.shape());
    std::vector<BFloat16> out(expected.size());
    hybrid_attention(in, map, MutView4(out.data(), arrays.out_shape()), arrays.options());
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(out[i].to_float(), expected[i], 1e-4 + 0x1p-8 * std::abs(static_cast<double>(expected[i])));
    }
  });
}

TEST(Hybrid, NeverOverflowsAtLargeScales) {
  for_each_isa([] {
    Shape s{.length = 200, .dim = 64, .value_dim = 16, .window = 16, .count = 64};
    const FeatureMap map = map_of(s);
    Arrays<float> arrays(s);
    for (float& x : arrays.q) x *= 16;
    for (float& x : arrays.k) x *= 16;
    for (float& x : arrays.gates) x *= 30;
    for (float c : {-200.0F, 0.0F, 200.0F}) {
      std::fill(arrays.log_scale.begin(), arrays.log_scale.end(), c);
      for (float x : run(arrays, map, arrays.options())) ASSERT_TRUE(std::isfinite(x)) << c;
    }
  });
}

// d loss / d x for loss = sum(out o dout), by central differences of the twin.
struct Gradients {
  std::vector<float> q, k, v, gates, q_far, k_far, log_scale, sigma;
};

Gradients backward(const Arrays<float>& arrays, const FeatureMap& map, const std::vector<float>& dout, const WindowState* initial,
                   const HybridOptions& options) {
  const Shape& s = arrays.shape;
  std::vector<float> record(static_cast<size_t>(hybrid_record_size(arrays.inputs(), map, options)), kNan);
  std::vector<float> out(size_of_shape(arrays.out_shape()), kNan);
  std::optional<WindowState> carried;
  if (initial != nullptr) carried = *initial;
  attend(arrays.inputs(), map, carried ? &*carried : nullptr, MutView4(out.data(), arrays.out_shape()), options, record);
  Gradients g{.q = std::vector<float>(arrays.q.size(), kNan),
              .k = std::vector<float>(arrays.k.size(), kNan),
              .v = std::vector<float>(arrays.v.size(), kNan),
              .gates = std::vector<float>(arrays.gates.size(), kNan),
              .q_far = std::vector<float>(arrays.q_far.size(), kNan),
              .k_far = std::vector<float>(arrays.k_far.size(), kNan),
              .log_scale = std::vector<float>(arrays.log_scale.size(), 0),
              .sigma = std::vector<float>(static_cast<size_t>(map.heads() * map.dim()), 0)};
  HybridGradients views;
  views.q = MutView4(g.q.data(), arrays.inputs().q.shape());
  views.k = MutView4(g.k.data(), arrays.inputs().k.shape());
  views.v = MutView4(g.v.data(), arrays.inputs().v.shape());
  views.gate_logits = MutView3(g.gates.data(), arrays.inputs().gate_logits.shape());
  views.log_scale = MutView1(g.log_scale.data(), {s.heads});
  if (s.apart) {
    views.q_far = MutView4(g.q_far.data(), arrays.inputs().q_far.shape());
    views.k_far = MutView4(g.k_far.data(), arrays.inputs().k_far.shape());
  }
  if (map.is_random()) views.map.sigma = MutView2(g.sigma.data(), {map.heads(), map.dim()});
  const auto differentiate = [&](const auto&... from) {
    hybrid_attention_backward(arrays.inputs(), map, from..., View4(out.data(), arrays.out_shape()), record,
                              View4(dout.data(), arrays.out_shape()), views, options);
  };
  if (initial != nullptr) {
    differentiate(*initial);
  } else {
    differentiate();
  }
  return g;
}

void expect_gradients_equal_differences(const Shape& s) {
  const FeatureMap map = map_of(s);
  Arrays<float> arrays(s);
  const std::vector<float> dout = normals(size_of_shape(arrays.out_shape()), 99);
  Arrays<double> moved(s);
  HybridOptions options = moved.options();
  arrays.poison_absent();
  const Gradients found = backward(arrays, map, dout, nullptr, arrays.options());
  reference::Map moved_map(map);
  const auto loss = [&] {
    std::vector<double> out(size_of_shape(moved.out_shape()));
    reference::hybrid_attention(moved.inputs(), moved_map, MutView4(out.data(), moved.out_shape()), options);
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * static_cast<double>(dout[i]);
    return sum;
  };
  const auto check = [&](std::vector<double>& values, const std::vector<float>& gradient, const char* what) {
    const size_t step = std::max<size_t>(1, values.size() / 40);
    for (size_t i = 0; i < values.size(); i += step) {
      const double before = values[i], h = 1e-5;
      values[i] = before + h;
      const double up = loss();
      values[i] = before - h;
      const double down = loss();
      values[i] = before;
      const double expected = (up - down) / (2 * h);
      // Differences err by h^2 and by 1e-15 / h; the fp32 gradient sums some hundreds of terms of order one.
      ASSERT_NEAR(static_cast<double>(gradient[i]), expected, 1e-3 + 1e-3 * std::abs(expected))
          << s.text() << " d" << what << " at " << i;
    }
  };
  check(moved.q, found.q, "q");
  check(moved.k, found.k, "k");
  check(moved.v, found.v, "v");
  check(moved.gates, found.gates, "gate");
  check(moved.log_scale, found.log_scale, "log_scale");
  if (s.apart) {
    check(moved.q_far, found.q_far, "q_far");
    check(moved.k_far, found.k_far, "k_far");
  }
  if (map.is_random()) check(moved_map.sigma, found.sigma, "sigma");
}

TEST(Hybrid, GradientsEqualFiniteDifferences) {
  expect_gradients_equal_differences({.length = 30, .dim = 6, .value_dim = 5, .window = 4, .count = 8});
  expect_gradients_equal_differences({.length = 41, .dim = 5, .value_dim = 7, .window = 20, .count = 8});
  expect_gradients_equal_differences({.length = 52, .heads = 4, .groups = 2, .dim = 5, .value_dim = 4, .window = 17, .count = 6});
  expect_gradients_equal_differences(
      {.batch = 2, .length = 25, .dim = 6, .value_dim = 5, .window = 3, .count = 8, .has_mask = true});
  expect_gradients_equal_differences(
      {.length = 30, .dim = 6, .value_dim = 5, .window = 4, .map = MapKind::positive, .count = 8, .apart = true});
  expect_gradients_equal_differences(
      {.length = 30, .dim = 6, .value_dim = 5, .window = 4, .map = MapKind::identity, .apart = true, .has_mask = true});
  expect_gradients_equal_differences({.length = 3, .dim = 6, .value_dim = 5, .window = 4});
}

TEST(Hybrid, GradientsAreAlikeOnEveryIsaAndThreadCount) {
  const Shape s{.batch = 2, .length = 70, .heads = 4, .groups = 2, .dim = 16, .value_dim = 20, .window = 8, .count = 16};
  const FeatureMap map = map_of(s);
  const Arrays<float> arrays(s);
  const std::vector<float> dout = normals(size_of_shape(arrays.out_shape()), 99);
  const std::unique_ptr<Executor> pool = make_thread_pool(3);
  HybridOptions options = arrays.options();
  options.run.executor = pool.get();
  const Gradients best = backward(arrays, map, dout, nullptr, options);
  for_each_isa([&] {
    std::optional<Gradients> one;
    for (int threads : {1, 2, 3}) {
      options.run.threads = threads;
      const Gradients g = backward(arrays, map, dout, nullptr, options);
      if (!one) one = g;
      EXPECT_TRUE(same_bits(g.q, one->q) && same_bits(g.k, one->k) && same_bits(g.v, one->v) && same_bits(g.gates, one->gates) &&
                  same_bits(g.log_scale, one->log_scale) && same_bits(g.sigma, one->sigma));
      expect_close(g.k, std::vector<double>(best.k.begin(), best.k.end()), "dk");
      expect_close(g.gates, std::vector<double>(best.gates.begin(), best.gates.end()), "dgate", 1e-3);
    }
  });
}

// The second half of a sequence, resumed: its gradients are those of the whole with the first half held constant.
TEST(Hybrid, GradientsWithACarriedStateEqualThoseOfTheWhole) {
  for (int64_t cut : {8, 11, 16, 21, 32}) {
    const Shape s{.length = 50, .heads = 4, .groups = 2, .dim = 6, .value_dim = 5, .window = 8, .count = 8};
    const FeatureMap map = map_of(s);
    const Arrays<float> arrays(s);
    std::vector<float> dout = normals(size_of_shape(arrays.out_shape()), 99);
    const size_t row = static_cast<size_t>(s.heads * s.value_dim), first = static_cast<size_t>(cut) * row;
    std::fill_n(dout.begin(), first, 0.0F);
    const Gradients whole = backward(arrays, map, dout, nullptr, arrays.options());

    WindowState state = empty_state(s, map);
    std::vector<float> out(size_of_shape(arrays.out_shape()));
    hybrid_attention(slice(arrays.inputs(), 0, cut), map, state, MutView4(out.data(), arrays.out_shape()).slice(1, 0, cut),
                     arrays.options());
    Shape rest = s;
    rest.length = s.length - cut;
    Arrays<float> later(rest);
    const auto take = [&](std::vector<float>& to, const std::vector<float>& from) {
      std::copy(from.end() - static_cast<int64_t>(to.size()), from.end(), to.begin());
    };
    take(later.q, arrays.q);
    take(later.k, arrays.k);
    take(later.v, arrays.v);
    take(later.gates, arrays.gates);
    later.log_scale = arrays.log_scale;
    const std::vector<float> later_dout(dout.begin() + static_cast<int64_t>(first), dout.end());
    const Gradients half = backward(later, map, later_dout, &state, later.options());
    const auto expect_tail = [&](const std::vector<float>& found, const std::vector<float>& all, const char* what) {
      const std::vector<double> expected(all.end() - static_cast<int64_t>(found.size()), all.end());
      expect_close(found, expected, fmt::format("cut {} {}", cut, what), 2e-4);
    };
    expect_tail(half.q, whole.q, "dq");
    expect_tail(half.k, whole.k, "dk");
    expect_tail(half.v, whole.v, "dv");
    expect_tail(half.log_scale, whole.log_scale, "dlog_scale");
    expect_tail(half.gates, whole.gates, "dgate");
  }
}

TEST(Hybrid, RefusesWhatDoesNotFit) {
  const Shape s{.length = 10};
  const FeatureMap map = map_of(s);
  const Arrays<float> arrays(s);
  std::vector<float> out(size_of_shape(arrays.out_shape()), 7.0F);
  const MutView4 view(out.data(), arrays.out_shape());
  const auto refused = [&](const HybridInputs& inputs, const HybridOptions& options, WindowState* state = nullptr,
                           std::span<float> record = {}) {
    const std::string text = refusal_of([&] { attend(inputs, map, state, view, options, record); });
    EXPECT_TRUE(std::ranges::all_of(out, [](float x) { return x == 7.0F; }));
    return text;
  };
  EXPECT_EQ(refused(arrays.inputs(), {.window = 0}), "hybrid_attention: window is 0, expected at least 1");
  EXPECT_EQ(refused(arrays.inputs(), {.window = 8, .scale = -1.0F}),
            "hybrid_attention: scale is -1, expected a finite number above 0");
  HybridInputs inputs = arrays.inputs();
  inputs.q_far = inputs.q;
  EXPECT_EQ(refused(inputs, arrays.options()), "hybrid_attention: q_far is given without k_far, expected both or neither");
  inputs = arrays.inputs();
  inputs.log_scale = View1(arrays.log_scale.data(), {1});
  EXPECT_NE(refused(inputs, arrays.options()).find("log_scale has shape [1], expected [2] (heads of q)"), std::string::npos);
  inputs = arrays.inputs();
  inputs.q = inputs.q.slice(3, 0, 5);
  EXPECT_NE(refused(inputs, arrays.options()).find("hybrid_attention: q has shape"), std::string::npos);
  Shape wide = s;
  wide.window = 9;
  WindowState other = empty_state(wide, map);
  EXPECT_NE(refused(arrays.inputs(), arrays.options(), &other).find("expected hybrid with 1, 2, 12, 0, 10, 8, 24"),
            std::string::npos);
  std::vector<float> small(3);
  EXPECT_EQ(refused(arrays.inputs(), arrays.options(), nullptr, small),
            "hybrid_attention: record has 3 floats, expected 40 (hybrid_record_size)");
}

}  // namespace
}  // namespace raffia::internal
