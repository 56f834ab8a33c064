// What states of causal windowed ops hold beside their shape: the options they were made with, and their random rows.
#ifndef RAFFIA_TESTS_ESTIMATORS_WINDOWED_STATES_H_
#define RAFFIA_TESTS_ESTIMATORS_WINDOWED_STATES_H_

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "estimators/windowed_case.h"
#include "raffia/random.h"

namespace raffia::internal::windowed_tests {

// A state made with small_options() and past its first windows is refused with `options`, by every function that takes one, and
// is left as it was.
template <class Op>
void expect_refused_state(const typename Op::Options& options, const std::string& difference) {
  Case<Op> c({.length = 40, .heads = 2, .groups = 1});
  WindowState state = c.empty_state(1);
  const Outcome outcome = run(c, &state);
  const WindowState before = state;
  c.options = options;
  std::vector<float> out(size_of_shape(c.out_shape()), 7.0F);
  const auto expect_refusal = [&](const std::string& function, const std::string& argument, const auto& body) {
    EXPECT_EQ(refusal_of(body),
              fmt::format("causal_{}_{}: {} has {} (shapes of q, k, v, and options)", Op::kName, function, argument, difference));
    EXPECT_EQ(state, before);
    EXPECT_EQ(out, std::vector<float>(out.size(), 7.0F));
  };
  expect_refusal("attention", "state", [&] {
    Op::attention(c.q_view(), c.k_view(), c.v_view(), &state, MutView4(out.data(), c.out_shape()), options);
  });
  expect_refusal("record_size", "initial", [&] { (void)Op::record_size(c.q_view(), c.k_view(), c.v_view(), &state, options); });
  expect_refusal("attention_backward", "initial", [&] {
    Op::backward(c.q_view(), c.k_view(), c.v_view(), &state, View4(outcome.out.data(), c.out_shape()), outcome.record,
                 c.dout_view(), {}, options);
  });
  expect_refusal("step", "the state of session 0", [&] { step_tokens(c, 0, 1, state, out); });
  WindowState* const sessions[] = {&state};
  expect_refusal("step", "the state of session 0", [&] {
    Op::step_sessions(View3(c.q.data(), {1, 2, 5}), View3(c.k.data(), {1, 1, 5}), View3(c.v.data(), {1, 1, 6}), sessions,
                      MutView3(out.data(), {1, 2, 6}), options);
  });
}

// Of options that leave the shape of a state as it is.
template <class Op>
void expect_refused_recipe(const typename Op::Options& options, const std::string& names) {
  const auto recipe_of_options = [](const typename Op::Options& of) { return Op::state_shape(1, 2, 1, 5, 6, of).recipe; };
  const uint64_t found = recipe_of_options(Op::small_options()), expected = recipe_of_options(options);
  EXPECT_NE(found, expected);
  expect_refused_state<Op>(options, fmt::format("recipe {:016x}, expected {:016x}: it was made with other options (compare {})",
                                                found, expected, names));
}

template <class Op>
void the_default_scale_is_a_number() {
  Case<Op> c({.length = 40, .heads = 2, .groups = 1});
  WindowState state = c.empty_state(1);
  run(c, &state);
  c.options.scale = static_cast<float>(1 / std::sqrt(5.0));
  EXPECT_EQ(c.empty_state(1).shape(), state.shape());
  run(c, &state);
}

// Entries hold the rows that draw_projection gives their key heads from the first token on, and never change them.
template <class Op>
void entries_hold_their_random_rows() {
  Case<Op> c({.length = 61, .batch = 3, .heads = 4, .groups = 2});
  c.set_lengths({1, 0, 61});
  WindowState state = c.empty_state(3), stepped = c.empty_state(3);
  run(c, &state);
  const auto rows = [](const WindowState& of, int64_t b) {
    const auto part = of.part(WindowPart::projections, b);
    return std::vector<float>(part.begin(), part.end());
  };
  const size_t G = 2, D = 5, count = rows(state, 0).size() / (G * D);
  ASSERT_GE(count, 5U);
  std::vector<float> drawn(count * D), expected(count * G * D);
  for (size_t g = 0; g < G; ++g) {
    draw_projection({c.options.seed, c.options.layer, static_cast<uint32_t>(g), c.options.draw}, c.options.draws,
                    static_cast<int64_t>(count), D, drawn);
    for (size_t r = 0; r < count; ++r) std::copy_n(drawn.data() + r * D, D, expected.data() + (r * G + g) * D);
  }
  EXPECT_EQ(rows(state, 0), expected);
  EXPECT_EQ(rows(state, 1), std::vector<float>(expected.size(), 0.0F)) << "masked tokens have no rows";
  EXPECT_EQ(rows(state, 2), expected);

  const Case<Op> tokens({.length = 61, .batch = 3, .heads = 4, .groups = 2});
  std::vector<float> out(size_of_shape(tokens.out_shape()));
  step_tokens(tokens, 0, 1, stepped, out);
  for (int64_t b : {0, 1, 2}) EXPECT_EQ(rows(stepped, b), expected);
  step_tokens(tokens, 1, 61, stepped, out);
  for (int64_t b : {0, 1, 2}) EXPECT_EQ(rows(stepped, b), expected);
  stepped.reset(1);
  EXPECT_EQ(rows(stepped, 1), std::vector<float>(expected.size(), 0.0F));
  step_tokens(tokens, 0, 1, stepped, out);
  EXPECT_EQ(rows(stepped, 1), expected);
}

// Steps and chunks read the rows of the state, and draw none of their own: with other rows in it they give something else.
template <class Op>
void later_tokens_read_the_rows_of_the_state() {
  const Case<Op> c({.length = 61, .heads = 2, .groups = 1});
  const auto continued = [&](bool changed, bool steps) {
    WindowState state = c.empty_state(1);
    std::vector<float> out(size_of_shape(c.out_shape()), 0.0F);
    run_tokens(c, 0, 2, state, out);
    if (changed) std::ranges::reverse(state.part(WindowPart::projections, 0));
    if (steps) {
      step_tokens(c, 2, 61, state, out);
    } else {
      run_tokens(c, 2, 61, state, out);
    }
    return out;
  };
  for (bool steps : {false, true}) {
    const std::vector<float> out = continued(false, steps), other = continued(true, steps);
    double max = 0;
    for (size_t i = 0; i < out.size(); ++i) max = std::max(max, std::abs(static_cast<double>(out[i] - other[i])));
    EXPECT_GT(max, 100 * c.out_error()) << (steps ? "steps" : "chunks");
  }
  expect_near(continued(true, true), continued(true, false), c.out_error(), "steps and chunks");
}

}  // namespace raffia::internal::windowed_tests

#endif  // RAFFIA_TESTS_ESTIMATORS_WINDOWED_STATES_H_
