// Causal EVA: a window of exact keys, summaries of chunks, and a folded past.
#include "estimators/windowed_case.h"
#include "estimators/windowed_gradients.h"
#include "estimators/windowed_states.h"
#include "raffia/eva.h"

namespace raffia::internal::windowed_tests {
namespace {

struct Eva {
  static constexpr const char* kName = "eva";
  using Options = CausalEvaOptions;
  // Three chunks of 2 tokens a window; two windows are kept, older ones folded: the folded past begins with token 18.
  static Options small_options() { return {.window = 6, .chunk = 2, .summaries = 6, .features = 5, .decay = 0.8F, .seed = 3}; }
  static WindowStateShape state_shape(int64_t batch, int64_t heads, int64_t groups, int64_t dim, int64_t value_dim,
                                      const Options& options) {
    return causal_eva_state_shape(batch, heads, groups, dim, value_dim, options);
  }
  static void attention(View4 q, View4 k, View4 v, WindowState* state, MutView4 out, const Options& options,
                        std::span<float> record = {}) {
    if (state != nullptr) return causal_eva_attention(q, k, v, *state, out, options, record);
    causal_eva_attention(q, k, v, out, options, record);
  }
  static int64_t record_size(View4 q, View4 k, View4 v, const WindowState* initial, const Options& options) {
    return initial != nullptr ? causal_eva_record_size(q, k, v, *initial, options) : causal_eva_record_size(q, k, v, options);
  }
  static void backward(View4 q, View4 k, View4 v, const WindowState* initial, View4 out, std::span<const float> record,
                       View4 dout, const QkvGradients& gradients, const Options& options) {
    if (initial != nullptr) return causal_eva_attention_backward(q, k, v, *initial, out, record, dout, gradients, options);
    causal_eva_attention_backward(q, k, v, out, record, dout, gradients, options);
  }
  static void step(View3 q, View3 k, View3 v, WindowState& state, MutView3 out, const Options& options) {
    causal_eva_step(q, k, v, state, out, options);
  }
  static void step_sessions(View3 q, View3 k, View3 v, std::span<WindowState* const> sessions, MutView3 out,
                            const Options& options) {
    causal_eva_step(q, k, v, sessions, out, options);
  }
  static void twin(View4 q, View4 k, View4 v, MutView4 out, const Options& options) {
    reference::causal_eva_attention(q, k, v, out, options);
  }
};

TEST(CausalEva, LengthsAroundWindowsEqualTheTwin) { lengths_around_windows_equal_the_twin<Eva>(); }
TEST(CausalEva, MasksPaddingAndPackingEqualTheTwin) { masks_padding_and_packing_equal_the_twin<Eva>(); }
TEST(CausalEva, Bf16AndStridesEqualTheTwin) { bf16_and_strides_equal_the_twin<Eva>(); }
TEST(CausalEva, LaterTokensChangeNoEarlierBit) { later_tokens_change_no_earlier_bit<Eva>(); }
TEST(CausalEva, SplitAndResumeEqualsWhole) { split_and_resume_equals_whole<Eva>(); }
TEST(CausalEva, StepsEqualTheWhole) { steps_equal_the_whole<Eva>(); }
TEST(CausalEva, ForksAndFilesContinueAlike) { forks_and_files_continue_alike<Eva>(); }
TEST(CausalEva, SessionsAtDifferentPositionsStepTogether) { sessions_at_different_positions_step_together<Eva>(); }
TEST(CausalEva, BitsDoNotDependOnThreads) { bits_do_not_depend_on_threads<Eva>(); }
TEST(CausalEva, GradientsEqualFiniteDifferences) { gradients_equal_finite_differences<Eva>(); }
TEST(CausalEva, GradientsComeInBf16AndOneByOne) { gradients_come_in_bf16_and_one_by_one<Eva>(); }
TEST(CausalEva, NothingChangesNothing) { nothing_changes_nothing<Eva>(); }
TEST(CausalEva, ExtremesStayFiniteAndInTheHull) { extremes_stay_finite_and_in_the_hull<Eva>(); }

TEST(CausalEva, TheDefaultScaleIsANumber) { the_default_scale_is_a_number<Eva>(); }
TEST(CausalEva, EntriesHoldTheirRandomRows) { entries_hold_their_random_rows<Eva>(); }
TEST(CausalEva, LaterTokensReadTheRowsOfTheState) { later_tokens_read_the_rows_of_the_state<Eva>(); }

TEST(CausalEva, RefusesStatesOfOtherOptions) {
  const Eva::Options base = Eva::small_options();
  Eva::Options options = base;
  options.chunk = 1;
  expect_refused_state<Eva>(options, "chunk 2, expected 1");
  options = base, options.window = 12;
  expect_refused_state<Eva>(options, "window 6, expected 12");
  options = base, options.features = 6;
  expect_refused_state<Eva>(options, "features 5, expected 6");
  std::vector<Eva::Options> others(6, base);
  others[0].seed = 4;
  others[1].layer = 1;
  others[2].draw = 1;
  others[3].draws = Draws::iid;
  others[4].scale = 0.5F;
  others[5].decay = 0.9F;
  for (const Eva::Options& other : others) expect_refused_recipe<Eva>(other, "seed, layer, draw, draws, scale and decay");
}

TEST(CausalEva, RefusesSizesBeyondUse) {
  const Case<Eva> c({.length = 40});
  std::vector<float> out(size_of_shape(c.out_shape()));
  for (int64_t huge : {INT64_MAX, int64_t{1} << 62, (int64_t{1} << 24) + 1}) {
    const auto expect_refusal = [&](const Eva::Options& options, const std::string& message) {
      EXPECT_EQ(refusal_of([&] {
                  Eva::attention(c.q_view(), c.k_view(), c.v_view(), nullptr, MutView4(out.data(), c.out_shape()), options);
                }),
                "causal_eva_attention: " + message);
      EXPECT_EQ(refusal_of([&] { causal_eva_state_shape(1, 1, 1, 5, 6, options); }), "causal_eva_state_shape: " + message);
    };
    expect_refusal({.window = huge, .chunk = huge, .summaries = 1}, fmt::format("window is {}, expected 1 to 16777216", huge));
    expect_refusal({.window = 6, .chunk = huge, .summaries = 1},
                   fmt::format("chunk is {}, expected a divisor of window, 6", huge));
    expect_refusal({.window = 6, .chunk = 6, .summaries = huge}, fmt::format("summaries is {}, expected at most 16777216", huge));
    expect_refusal({.features = huge}, fmt::format("features is {}, expected 1 to 16777216", huge));
  }
}

TEST(CausalEva, EveryOptionEqualsTheTwin) {
  const Eva::Options base = Eva::small_options();
  std::vector<Eva::Options> all(8, base);
  all[0].summaries = 0;
  all[1].summaries = 3, all[1].decay = 1;
  all[2].window = 7, all[2].chunk = 7, all[2].summaries = 1, all[2].features = 33;
  all[3].window = 5, all[3].chunk = 1, all[3].summaries = 10, all[3].draws = Draws::iid;
  all[4].window = 1, all[4].chunk = 1, all[4].summaries = 4;
  all[5].scale = 0.9F, all[5].layer = 4, all[5].draw = 2;
  all[6].window = 100, all[6].chunk = 10, all[6].summaries = 10;
  all[7].window = 32, all[7].chunk = 8, all[7].summaries = 256, all[7].features = 64;
  for (const Eva::Options& options : all) {
    expect_equals_twin(Case<Eva>({.length = 70, .heads = 2, .groups = 1}, options));
  }
}

// More chunks than a block of keys, windows that straddle blocks of queries.
TEST(CausalEva, LongSequencesEqualTheTwin) {
  expect_equals_twin(
      Case<Eva>({.length = 467, .dim = 12}, {.window = 33, .chunk = 3, .summaries = 22, .features = 130, .decay = 0.5F}));
  expect_equals_twin(Case<Eva>({.length = 467, .dim = 12}, {.window = 30, .chunk = 2, .summaries = 150, .features = 9}));
  expect_equals_twin(Case<Eva>({.length = 467, .heads = 2, .dim = 12},
                               {.window = 33, .chunk = 3, .summaries = 22, .features = 200, .decay = 0.5F}));
  expect_equals_twin(
      Case<Eva>({.length = 700, .heads = 2, .groups = 1}, {.window = 200, .chunk = 1, .summaries = 200, .features = 5}));
}

// While nothing is older than the window, and no chunk is older than it, EVA is softmax.
TEST(CausalEva, OneWindowIsSoftmax) {
  Case<Eva> c({.length = 50, .heads = 2, .groups = 1}, {.window = 50, .chunk = 5, .summaries = 10});
  std::vector<float> expected(size_of_shape(c.out_shape()));
  softmax_attention(c.q_view(), c.k_view(), c.v_view(), MutView4(expected.data(), c.out_shape()), {.causal = true});
  expect_near(run(c).out, expected, c.out_error(), "softmax");
}

// Chunks of one token hold what the token held.
TEST(CausalEva, ChunksOfOneTokenAreSoftmax) {
  Case<Eva> c({.length = 50, .heads = 2, .groups = 1}, {.window = 8, .chunk = 1, .summaries = 0});
  std::vector<float> expected(size_of_shape(c.out_shape()));
  softmax_attention(c.q_view(), c.k_view(), c.v_view(), MutView4(expected.data(), c.out_shape()), {.causal = true});
  expect_near(run(c).out, expected, c.out_error(), "softmax");
}

TEST(CausalEva, RefusesWhatDoesNotFit) {
  const Case<Eva> c({.length = 20, .heads = 2, .groups = 1});
  std::vector<float> out(size_of_shape(c.out_shape()), 7.0F);
  WindowState state = c.empty_state(1);
  const WindowState before = state;
  const auto refusal = [&](const Eva::Options& options, WindowState* with, std::span<float> to_record = {}) {
    const std::string text = refusal_of([&] {
      Eva::attention(c.q_view(), c.k_view(), c.v_view(), with, MutView4(out.data(), c.out_shape()), options, to_record);
    });
    EXPECT_EQ(state, before);
    EXPECT_EQ(out, std::vector<float>(out.size(), 7.0F));
    return text;
  };
  Eva::Options options = c.options;
  options.chunk = 4;
  EXPECT_EQ(refusal(options, nullptr), "causal_eva_attention: chunk is 4, expected a divisor of window, 6");
  options = c.options, options.summaries = 4;
  EXPECT_EQ(refusal(options, nullptr), "causal_eva_attention: summaries is 4, expected a multiple of 3 (window / chunk)");
  options = c.options, options.summaries = 0;
  EXPECT_EQ(refusal(options, &state),
            "causal_eva_attention: state is given with summaries = 0, expected none (such a state would grow without bound)");
  options = c.options, options.features = 0;
  EXPECT_EQ(refusal(options, nullptr), "causal_eva_attention: features is 0, expected 1 to 16777216");
  for (float decay : {0.0F, -1.0F, 1.5F, kNan}) {
    options = c.options, options.decay = decay;
    EXPECT_EQ(refusal(options, nullptr), fmt::format("causal_eva_attention: decay is {}, expected above 0 and at most 1", decay));
  }
  options = c.options, options.scale = -1.0F;
  EXPECT_EQ(refusal(options, nullptr), "causal_eva_attention: scale is -1, expected a positive number");
  options = c.options, options.summaries = 9;
  EXPECT_EQ(refusal(options, &state), "causal_eva_attention: state has summaries 6, expected 9 (shapes of q, k, v, and options)");
  WindowState two = c.empty_state(2);
  EXPECT_EQ(refusal(c.options, &two), "causal_eva_attention: state has 2 entries, expected 1 (sequences)");
  std::vector<float> record(3);
  EXPECT_EQ(refusal(c.options, nullptr, record), "causal_eva_attention: record has 3 floats, expected 40 (its record size)");
  options = c.options, options.summaries = 0;
  EXPECT_EQ(refusal_of([&] { causal_eva_state_shape(1, 1, 1, 4, 4, options); }),
            "causal_eva_state_shape: summaries is 0, expected at least 3 (such a state would grow without bound)");

  const std::vector<float> token(64);
  std::vector<float> step_out(64);
  WindowState* const twice[] = {&state, &state};
  EXPECT_EQ(refusal_of([&] {
              causal_eva_step(View3(token.data(), {2, 2, 5}), View3(token.data(), {2, 1, 5}), View3(token.data(), {2, 1, 6}),
                              twice, MutView3(step_out.data(), {2, 2, 6}), c.options);
            }),
            "causal_eva_step: a session is given twice, expected distinct sessions");
  EXPECT_EQ(refusal_of([&] {
              causal_eva_step(View3(token.data(), {1, 2, 4}), View3(token.data(), {1, 1, 4}), View3(token.data(), {1, 1, 6}),
                              state, MutView3(step_out.data(), {1, 2, 6}), c.options);
            }),
            "causal_eva_step: the state of session 0 has dim 5, expected 4 (shapes of q, k, v, and options)");
}

}  // namespace
}  // namespace raffia::internal::windowed_tests
