// Causal LARA: a window of exact keys, and samples for all windows before it.
#include "estimators/windowed_case.h"
#include "estimators/windowed_gradients.h"
#include "estimators/windowed_states.h"
#include "raffia/lara.h"

namespace raffia::internal::windowed_tests {
namespace {

struct Lara {
  static constexpr const char* kName = "lara";
  using Options = CausalLaraOptions;
  // Three chunks of 2 tokens a window, two samples each: 6 of a window. The first three windows propose, until token 18.
  static Options small_options() { return {.window = 6, .chunk = 2, .samples = 20, .samples_per_proposal = 2, .seed = 3}; }
  static WindowStateShape state_shape(int64_t batch, int64_t heads, int64_t groups, int64_t dim, int64_t value_dim,
                                      const Options& options) {
    return causal_lara_state_shape(batch, heads, groups, dim, value_dim, options);
  }
  static void attention(View4 q, View4 k, View4 v, WindowState* state, MutView4 out, const Options& options,
                        std::span<float> record = {}) {
    if (state != nullptr) return causal_lara_attention(q, k, v, *state, out, options, record);
    causal_lara_attention(q, k, v, out, options, record);
  }
  static int64_t record_size(View4 q, View4 k, View4 v, const WindowState* initial, const Options& options) {
    return initial != nullptr ? causal_lara_record_size(q, k, v, *initial, options) : causal_lara_record_size(q, k, v, options);
  }
  static void backward(View4 q, View4 k, View4 v, const WindowState* initial, View4 out, std::span<const float> record,
                       View4 dout, const QkvGradients& gradients, const Options& options) {
    if (initial != nullptr) return causal_lara_attention_backward(q, k, v, *initial, out, record, dout, gradients, options);
    causal_lara_attention_backward(q, k, v, out, record, dout, gradients, options);
  }
  static void step(View3 q, View3 k, View3 v, WindowState& state, MutView3 out, const Options& options) {
    causal_lara_step(q, k, v, state, out, options);
  }
  static void step_sessions(View3 q, View3 k, View3 v, std::span<WindowState* const> sessions, MutView3 out,
                            const Options& options) {
    causal_lara_step(q, k, v, sessions, out, options);
  }
  static void twin(View4 q, View4 k, View4 v, MutView4 out, const Options& options) {
    reference::causal_lara_attention(q, k, v, out, options);
  }
};

// New samples read all keys again; no state.
struct FullLara : Lara {
  static Options small_options() {
    Options options = Lara::small_options();
    options.streaming = false;
    return options;
  }
};

TEST(CausalLara, LengthsAroundWindowsEqualTheTwin) { lengths_around_windows_equal_the_twin<Lara>(); }
TEST(CausalLara, MasksPaddingAndPackingEqualTheTwin) { masks_padding_and_packing_equal_the_twin<Lara>(); }
TEST(CausalLara, Bf16AndStridesEqualTheTwin) { bf16_and_strides_equal_the_twin<Lara>(); }
TEST(CausalLara, LaterTokensChangeNoEarlierBit) { later_tokens_change_no_earlier_bit<Lara>(); }
TEST(CausalLara, SplitAndResumeEqualsWhole) { split_and_resume_equals_whole<Lara>(); }
TEST(CausalLara, StepsEqualTheWhole) { steps_equal_the_whole<Lara>(); }
TEST(CausalLara, ForksAndFilesContinueAlike) { forks_and_files_continue_alike<Lara>(); }
TEST(CausalLara, SessionsAtDifferentPositionsStepTogether) { sessions_at_different_positions_step_together<Lara>(); }
TEST(CausalLara, BitsDoNotDependOnThreads) { bits_do_not_depend_on_threads<Lara>(); }
TEST(CausalLara, GradientsEqualFiniteDifferences) { gradients_equal_finite_differences<Lara>(); }
TEST(CausalLara, GradientsComeInBf16AndOneByOne) { gradients_come_in_bf16_and_one_by_one<Lara>(); }
TEST(CausalLara, NothingChangesNothing) { nothing_changes_nothing<Lara>(); }
TEST(CausalLara, ExtremesStayFiniteAndInTheHull) { extremes_stay_finite_and_in_the_hull<Lara>(); }

TEST(CausalLaraFull, LengthsAroundWindowsEqualTheTwin) { lengths_around_windows_equal_the_twin<FullLara>(); }
TEST(CausalLaraFull, MasksPaddingAndPackingEqualTheTwin) { masks_padding_and_packing_equal_the_twin<FullLara>(); }
TEST(CausalLaraFull, LaterTokensChangeNoEarlierBit) { later_tokens_change_no_earlier_bit<FullLara>(); }
TEST(CausalLaraFull, GradientsEqualFiniteDifferences) {
  expect_gradients(Case<FullLara>({.length = 38, .heads = 2, .groups = 1, .spread = 0.7F}), 0);
  Case<FullLara> masked({.length = 38, .heads = 2, .groups = 1, .spread = 0.7F});
  masked.add_mask("xx.xxxxxx......xx");
  expect_gradients(masked, 0);
}

TEST(CausalLara, TheDefaultScaleIsANumber) { the_default_scale_is_a_number<Lara>(); }
TEST(CausalLara, EntriesHoldTheirRandomRows) { entries_hold_their_random_rows<Lara>(); }
TEST(CausalLara, LaterTokensReadTheRowsOfTheState) { later_tokens_read_the_rows_of_the_state<Lara>(); }

TEST(CausalLara, RefusesStatesOfOtherOptions) {
  const Lara::Options base = Lara::small_options();
  Lara::Options options = base;
  // Two chunks of 3 tokens and three samples each: as many samples in all, of fewer proposals.
  options.chunk = 3, options.samples_per_proposal = 3;
  expect_refused_state<Lara>(options, "proposals 9, expected 6; chunk 2, expected 3");
  // As many samples and proposals, of windows of another length.
  options = base, options.window = 12, options.chunk = 4;
  expect_refused_state<Lara>(options, "window 6, expected 12; chunk 2, expected 4");
  std::vector<Lara::Options> others(5, base);
  others[0].seed = 4;
  others[1].layer = 1;
  others[2].draw = 1;
  others[3].draws = Draws::iid;
  others[4].scale = 0.5F;
  for (const Lara::Options& other : others) {
    expect_refused_recipe<Lara>(other, "seed, layer, draw, draws, scale and samples_per_proposal");
  }
}

TEST(CausalLara, RefusesSizesBeyondUse) {
  const Case<Lara> c({.length = 40});
  std::vector<float> out(size_of_shape(c.out_shape()));
  for (int64_t huge : {INT64_MAX, int64_t{1} << 62, (int64_t{1} << 24) + 1}) {
    const auto expect_refusal = [&](const Lara::Options& options, const std::string& message) {
      EXPECT_EQ(refusal_of([&] {
                  Lara::attention(c.q_view(), c.k_view(), c.v_view(), nullptr, MutView4(out.data(), c.out_shape()), options);
                }),
                "causal_lara_attention: " + message);
      EXPECT_EQ(refusal_of([&] { causal_lara_state_shape(1, 1, 1, 5, 6, options); }), "causal_lara_state_shape: " + message);
    };
    expect_refusal({.window = huge, .chunk = huge}, fmt::format("window is {}, expected 1 to 16777216", huge));
    expect_refusal({.window = 6, .chunk = huge}, fmt::format("chunk is {}, expected a divisor of window, 6", huge));
    expect_refusal({.samples = huge}, fmt::format("samples is {}, expected at most 16777216", huge));
    expect_refusal(
        {.samples_per_proposal = huge},
        fmt::format("samples is 128, expected at least window / chunk * samples_per_proposal, 4 * {} (those of one window)",
                    huge));
  }
}

// Samples up to the bound: rows are drawn for those that the tokens make.
TEST(CausalLara, ManyMoreSamplesThanTokensEqualTheTwin) {
  Lara::Options options = Lara::small_options();
  options.samples = 3000;
  expect_equals_twin(Case<Lara>({.length = 43, .heads = 2, .groups = 1}, options));
}

TEST(CausalLara, EveryOptionEqualsTheTwin) {
  std::vector<Lara::Options> all(7, Lara::small_options());
  all[0].samples = 6;
  all[1].samples = 200, all[1].samples_per_proposal = 1;
  all[2].window = 7, all[2].chunk = 7, all[2].samples = 50, all[2].samples_per_proposal = 5;
  all[3].window = 5, all[3].chunk = 1, all[3].draws = Draws::iid;
  all[4].window = 1, all[4].chunk = 1, all[4].samples = 9, all[4].samples_per_proposal = 1;
  all[5].scale = 0.9F, all[5].layer = 4, all[5].draw = 2;
  all[6].window = 100, all[6].chunk = 10;
  for (Lara::Options options : all) {
    for (bool streaming : {true, false}) {
      options.streaming = streaming;
      expect_equals_twin(Case<Lara>({.length = 70, .heads = 2, .groups = 1}, options));
    }
  }
}

// More samples than a block of keys, windows that straddle blocks of queries.
TEST(CausalLara, LongSequencesEqualTheTwin) {
  expect_equals_twin(
      Case<Lara>({.length = 300, .dim = 12}, {.window = 33, .chunk = 3, .samples = 150, .samples_per_proposal = 2}));
  expect_equals_twin(
      Case<Lara>({.length = 300, .heads = 2, .dim = 12}, {.window = 33, .chunk = 3, .samples = 150, .samples_per_proposal = 2}));
  expect_equals_twin(Case<Lara>({.length = 650, .heads = 2, .groups = 1}, {.window = 200, .chunk = 1, .samples = 200}));
}

TEST(CausalLara, OneWindowIsSoftmax) {
  Case<Lara> c({.length = 50, .heads = 2, .groups = 1}, {.window = 50, .chunk = 5, .samples = 10});
  std::vector<float> expected(size_of_shape(c.out_shape()));
  softmax_attention(c.q_view(), c.k_view(), c.v_view(), MutView4(expected.data(), c.out_shape()), {.causal = true});
  expect_near(run(c).out, expected, c.out_error(), "softmax");
}

TEST(CausalLara, RefusesWhatDoesNotFit) {
  const Case<Lara> c({.length = 20, .heads = 2, .groups = 1});
  std::vector<float> out(size_of_shape(c.out_shape()), 7.0F);
  WindowState state = c.empty_state(1);
  const WindowState before = state;
  const auto refusal = [&](Lara::Options options, WindowState* with) {
    const std::string text = refusal_of(
        [&] { Lara::attention(c.q_view(), c.k_view(), c.v_view(), with, MutView4(out.data(), c.out_shape()), options); });
    EXPECT_EQ(state, before);
    EXPECT_EQ(out, std::vector<float>(out.size(), 7.0F));
    return text;
  };
  Lara::Options options = c.options;
  options.chunk = 4;
  EXPECT_EQ(refusal(options, nullptr), "causal_lara_attention: chunk is 4, expected a divisor of window, 6");
  options = c.options, options.window = 0;
  EXPECT_EQ(refusal(options, nullptr), "causal_lara_attention: window is 0, expected 1 to 16777216");
  options = c.options, options.samples = 5;
  EXPECT_EQ(refusal(options, nullptr),
            "causal_lara_attention: samples is 5, expected at least window / chunk * samples_per_proposal, 3 * 2 (those of one "
            "window)");
  options = c.options, options.samples_per_proposal = 0;
  EXPECT_EQ(refusal(options, nullptr), "causal_lara_attention: samples_per_proposal is 0, expected at least 1");
  options = c.options, options.streaming = false;
  EXPECT_EQ(refusal(options, &state),
            "causal_lara_attention: state is given without streaming, expected none (new samples read all keys)");
  EXPECT_EQ(refusal_of([&] { causal_lara_state_shape(1, 1, 1, 4, 4, options); }),
            "causal_lara_state_shape: streaming is off, expected on (no state can be carried otherwise)");
  options = c.options, options.samples = 30;
  EXPECT_EQ(
      refusal(options, &state),
      "causal_lara_attention: state has summaries 18, expected 30; proposals 9, expected 15 (shapes of q, k, v, and options)");
  WindowState two = c.empty_state(2);
  EXPECT_EQ(refusal(c.options, &two), "causal_lara_attention: state has 2 entries, expected 1 (sequences)");

  const std::vector<float> token(64);
  std::vector<float> step_out(64);
  options = c.options, options.streaming = false;
  EXPECT_EQ(refusal_of([&] {
              causal_lara_step(View3(token.data(), {1, 2, 5}), View3(token.data(), {1, 1, 5}), View3(token.data(), {1, 1, 6}),
                               state, MutView3(step_out.data(), {1, 2, 6}), options);
            }),
            "causal_lara_step: streaming is off, expected on (no state can be carried otherwise)");
  EXPECT_EQ(refusal_of([&] {
              causal_lara_step(View3(token.data(), {2, 2, 5}), View3(token.data(), {2, 1, 5}), View3(token.data(), {2, 1, 6}),
                               state, MutView3(step_out.data(), {2, 2, 6}), c.options);
            }),
            "causal_lara_step: state has 1 entries, expected 2 (batch of q)");
  EXPECT_EQ(state, before);
}

}  // namespace
}  // namespace raffia::internal::windowed_tests
