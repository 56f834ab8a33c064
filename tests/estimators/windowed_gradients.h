// Properties of the gradients of causal windowed ops, and of both passes together.
#ifndef RAFFIA_TESTS_ESTIMATORS_WINDOWED_GRADIENTS_H_
#define RAFFIA_TESTS_ESTIMATORS_WINDOWED_GRADIENTS_H_

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "estimators/windowed_case.h"

namespace raffia::internal::windowed_tests {

template <class Op>
struct Gradients {
  explicit Gradients(const Case<Op>& c) : q(c.q.size(), kNan), k(c.k.size(), kNan), v(c.v.size(), kNan) {}
  QkvGradients views(const Case<Op>& c) {
    return {.q = MutView4(q.data(), c.q_shape()), .k = MutView4(k.data(), c.k_shape()), .v = MutView4(v.data(), c.v_shape())};
  }
  std::vector<float> q, k, v;
};

template <class Op>
Gradients<Op> backward(const Case<Op>& c, const Outcome& outcome, const WindowState* initial = nullptr, int threads = 0,
                       Executor* executor = nullptr) {
  Gradients<Op> gradients(c);
  typename Op::Options options = c.options;
  options.run.threads = threads;
  options.run.executor = executor;
  Op::backward(c.q_view(), c.k_view(), c.v_view(), initial, View4(outcome.out.data(), c.out_shape()), outcome.record,
               c.dout_view(), gradients.views(c), options);
  return gradients;
}

template <class Op>
void bits_do_not_depend_on_threads() {
  const std::unique_ptr<Executor> pool = make_thread_pool(3);
  Case<Op> c({.length = 200, .batch = 2, .heads = 4, .groups = 2, .dim = 16, .value_dim = 16});
  c.set_lengths({200, 131});
  WindowState first = c.empty_state(2);
  const Outcome one = run(c, &first, 1, pool.get());
  const Gradients<Op> gradients = backward(c, one, nullptr, 1, pool.get());
  for (int threads : {2, 3}) {
    WindowState state = c.empty_state(2);
    const Outcome outcome = run(c, &state, threads, pool.get());
    EXPECT_TRUE(same_bits(outcome.out, one.out));
    EXPECT_TRUE(same_bits(outcome.record, one.record));
    EXPECT_EQ(state, first);
    const Gradients<Op> others = backward(c, outcome, nullptr, threads, pool.get());
    EXPECT_TRUE(same_bits(others.q, gradients.q));
    EXPECT_TRUE(same_bits(others.k, gradients.k));
    EXPECT_TRUE(same_bits(others.v, gradients.v));
  }
}

// Gradients of sum(out o dout) over the tokens from `begin` on, against finite differences of the twin over the whole sequence;
// what comes before `begin` is a state.
template <class Op>
void expect_gradients(const Case<Op>& c, int64_t begin) {
  ASSERT_TRUE(begin == 0 || c.shape.batch == 1);
  std::vector<double> inputs[3] = {{c.q.begin(), c.q.end()}, {c.k.begin(), c.k.end()}, {c.v.begin(), c.v.end()}};
  const auto loss = [&] {
    std::vector<double> out(size_of_shape(c.out_shape()));
    Op::twin(View4(inputs[0].data(), c.q_shape()), View4(inputs[1].data(), c.k_shape()), View4(inputs[2].data(), c.v_shape()),
             MutView4(out.data(), c.out_shape()), c.options);
    double sum = 0;
    for (size_t i = static_cast<size_t>(begin * c.shape.heads * c.shape.value_dim); i < out.size(); ++i) {
      if (std::isfinite(c.dout[i])) sum += out[i] * static_cast<double>(c.dout[i]);
    }
    return sum;
  };

  // Slopes along single numbers and, for each input, along a direction that touches all of them.
  struct Slope {
    size_t input;
    std::vector<std::pair<size_t, double>> direction;  // number of the tokens from `begin` on, and how far it goes
    double expected;
  };
  constexpr double kStep = 1e-5;
  constexpr int kSingle = 12;
  std::vector<Slope> slopes;
  RandomStream random({.seed = 77});
  for (size_t input = 0; input < 3; ++input) {
    const size_t skipped = inputs[input].size() / static_cast<size_t>(c.shape.length) * static_cast<size_t>(begin);
    const size_t count = inputs[input].size() - skipped;
    for (int draw = 0; draw <= kSingle; ++draw) {
      Slope slope{input, {}, 0};
      if (draw < kSingle) slope.direction = {{random.next_u32() % count, 1.0}};
      for (size_t i = 0; draw == kSingle && i < count; ++i) slope.direction.emplace_back(i, random.next_normal());
      std::erase_if(slope.direction, [&](const auto& at) { return std::isnan(inputs[input][skipped + at.first]); });
      const std::vector<double> kept = inputs[input];
      for (double side : {1.0, -1.0}) {
        for (const auto& [i, far] : slope.direction) inputs[input][skipped + i] = kept[skipped + i] + side * kStep * far;
        slope.expected += side * loss() / (2 * kStep);
      }
      inputs[input] = kept;
      slopes.push_back(slope);
    }
  }

  Shape rest_shape = c.shape;
  rest_shape.length = c.shape.length - begin;
  Case<Op> part(rest_shape, c.options);
  const auto tail = [&](const std::vector<float>& from, int64_t width) {
    return std::vector<float>(from.begin() + begin * width, from.end());
  };
  part.q = tail(c.q, c.shape.heads * c.shape.dim), part.k = tail(c.k, c.shape.groups * c.shape.dim);
  part.v = tail(c.v, c.shape.groups * c.shape.value_dim), part.dout = tail(c.dout, c.shape.heads * c.shape.value_dim);
  if (!c.valid.empty()) {
    part.valid.assign(c.valid.begin() + begin, c.valid.end());
    part.options.layout.valid = View2(part.valid.data(), {c.shape.batch, rest_shape.length});
  }
  for_each_isa([&] {
    Gradients<Op> gradients(part);
    if (begin == 0) {
      gradients = backward(part, run(part));
    } else {
      WindowState state = c.empty_state(1);
      std::vector<float> past(size_of_shape(c.out_shape()));
      run_tokens(c, 0, begin, state, past);
      WindowState running = state;
      gradients = backward(part, run(part, &running), &state);
    }
    const std::vector<float>* found[3] = {&gradients.q, &gradients.k, &gradients.v};
    const std::vector<float>* of[3] = {&part.q, &part.k, &part.v};
    for (size_t input = 0; input < 3; ++input) {
      for (size_t i = 0; i < found[input]->size(); ++i) {
        const float gradient = (*found[input])[i];
        ASSERT_TRUE(std::isfinite(gradient) && (gradient == 0 || !std::isnan((*of[input])[i])))
            << c.shape.text() << " input " << input << " at " << i << ": " << gradient;
      }
    }
    double largest[3] = {};
    for (const Slope& slope : slopes) {
      double sum = 0, squares = 0;
      for (const auto& [i, far] : slope.direction) {
        sum += far * static_cast<double>((*found[slope.input])[i]);
        squares += far * far;
      }
      // Probabilities of a query sum to one over all that it sees: a number of a token gets, on average, one query's worth of
      // gradient, which errs as an output does, times |dout|. Along many numbers errors add in squares. Differences themselves
      // err by the third derivative times h^2 / 6 and by 2^-53 f / h, about 1e-9 a number.
      const double error = std::sqrt(squares) * (1e-7 + greatest_of(c.dout) * c.out_error());
      if (squares > 0) largest[slope.input] = std::max(largest[slope.input], std::abs(slope.expected) / error);
      ASSERT_NEAR(sum, slope.expected, error)
          << c.shape.text() << " from " << begin << " input " << slope.input << ", " << slope.direction.size() << " numbers";
    }
    for (double max : largest) EXPECT_GT(max, 20) << "the differences are too small to test anything";
  });
}

template <class Op>
void gradients_equal_finite_differences() {
  expect_gradients(Case<Op>({.length = 45, .heads = 2, .groups = 1, .spread = 0.7F}), 0);
  expect_gradients(Case<Op>({.length = 40, .batch = 2, .dim = 3, .value_dim = 2, .spread = 0.7F}), 0);
  expect_gradients(Case<Op>({.length = 50, .heads = 2, .groups = 2, .spread = 0.7F}), 21);
  expect_gradients(Case<Op>({.length = 33, .spread = 0.7F}), 9);
  Case<Op> masked({.length = 45, .heads = 2, .groups = 1, .spread = 0.7F});
  masked.add_mask("xx.xxxxxx......xx");
  expect_gradients(masked, 0);
  expect_gradients(masked, 16);
}

// What is not asked for, and gradients in bf16.
template <class Op>
void gradients_come_in_bf16_and_one_by_one() {
  Case<Op> c({.length = 44, .batch = 2, .heads = 2, .groups = 1});
  c.set_lengths({44, 20});
  const Outcome outcome = run(c);
  const Gradients<Op> all = backward(c, outcome);
  std::vector<float> alone(c.k.size(), kNan);
  Op::backward(c.q_view(), c.k_view(), c.v_view(), nullptr, View4(outcome.out.data(), c.out_shape()), outcome.record,
               c.dout_view(), {.k = MutView4(alone.data(), c.k_shape())}, c.options);
  EXPECT_TRUE(same_bits(alone, all.k));
  std::vector<BFloat16> rounded(c.q.size());
  Op::backward(c.q_view(), c.k_view(), c.v_view(), nullptr, View4(outcome.out.data(), c.out_shape()), outcome.record,
               c.dout_view(), {.q = MutView4(rounded.data(), c.q_shape())}, c.options);
  for (size_t i = 0; i < rounded.size(); ++i) ASSERT_EQ(rounded[i].to_float(), BFloat16::from_float(all.q[i]).to_float()) << i;
  for (int64_t t = 20; t < 44; ++t) {
    for (int64_t i = 0; i < 2 * c.shape.dim; ++i) ASSERT_EQ(all.q[static_cast<size_t>((44 + t) * 2 * c.shape.dim + i)], 0.0F);
  }
}

// Calls without tokens, sequences or entries leave everything as it is.
template <class Op>
void nothing_changes_nothing() {
  const Case<Op> none({.length = 0, .heads = 2, .groups = 1}), no_batch({.length = 7, .batch = 0, .heads = 2, .groups = 1});
  const Case<Op> some({.length = 23, .heads = 2, .groups = 1});
  WindowState state = some.empty_state(1);
  run(some, &state);
  const WindowState before = state;
  float nothing = 0;
  const auto empty = [&](const Extents<4>& shape) { return View4(&nothing, shape); };
  Op::attention(empty(none.q_shape()), empty(none.k_shape()), empty(none.v_shape()), &state, MutView4(&nothing, none.out_shape()),
                some.options);
  EXPECT_EQ(state, before);
  WindowState no_state = some.empty_state(0);
  Op::attention(empty(no_batch.q_shape()), empty(no_batch.k_shape()), empty(no_batch.v_shape()), &no_state,
                MutView4(&nothing, no_batch.out_shape()), some.options);
  Op::step(View3(&nothing, {0, 2, 5}), View3(&nothing, {0, 1, 5}), View3(&nothing, {0, 1, 6}), no_state,
           MutView3(&nothing, {0, 2, 6}), some.options);
  Op::backward(empty(none.q_shape()), empty(none.k_shape()), empty(none.v_shape()), &state, empty(none.out_shape()), {},
               empty(none.out_shape()), {}, some.options);
  EXPECT_EQ(nothing, 0.0F);
}

template <class Op>
void extremes_stay_finite_and_in_the_hull() {
  for_each_isa([] {
    for (float spread : {1e-30F, 1.0F, 16.0F, 100.0F}) {
      Case<Op> c({.length = 61, .heads = 2, .groups = 1, .dim = 64, .value_dim = 8, .spread = spread});
      WindowState state = c.empty_state(1), stepped = c.empty_state(1);
      const Outcome outcome = run(c, &state);
      std::vector<float> steps(outcome.out.size(), kNan);
      step_tokens(c, 0, 61, stepped, steps);
      const double bound = greatest_of(c.v) * (1 + 64 * kUnit);
      for (const std::vector<float>* out : {&outcome.out, static_cast<const std::vector<float>*>(&steps)}) {
        for (float x : *out) ASSERT_LE(std::abs(static_cast<double>(x)), bound) << c.shape.text();
      }
      const Gradients<Op> gradients = backward(c, outcome);
      for (const std::vector<float>* gradient : {&gradients.q, &gradients.k, &gradients.v}) {
        for (float x : *gradient) ASSERT_TRUE(std::isfinite(x)) << c.shape.text();
      }
    }
  });
}

}  // namespace raffia::internal::windowed_tests

#endif  // RAFFIA_TESTS_ESTIMATORS_WINDOWED_GRADIENTS_H_
