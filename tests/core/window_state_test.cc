#include "raffia/window_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/window_layout.h"
#include "raffia/error.h"
#include "raffia/random.h"

namespace raffia::internal {
namespace {

constexpr float kNoWeight = -std::numeric_limits<float>::infinity();

constexpr WindowStateShape kHybrid{
    .kind = WindowKind::hybrid, .batch = 3, .heads = 2, .dim = 5, .far_dim = 3, .value_dim = 4, .window = 6, .features = 7};
constexpr WindowStateShape kEva{.kind = WindowKind::eva,
                                .batch = 3,
                                .query_heads = 4,
                                .heads = 2,
                                .dim = 5,
                                .value_dim = 3,
                                .window = 6,
                                .summaries = 9,
                                .features = 7,
                                .chunk = 2};
constexpr WindowStateShape kLara{.kind = WindowKind::lara,
                                 .batch = 3,
                                 .query_heads = 4,
                                 .heads = 2,
                                 .dim = 5,
                                 .value_dim = 3,
                                 .window = 6,
                                 .summaries = 8,
                                 .proposals = 4,
                                 .chunk = 3};
constexpr std::array kShapes = {kHybrid, kEva, kLara};

std::vector<WindowPart> all_parts() {
  std::vector<WindowPart> parts;
  for (int i = 0; i < kWindowParts; ++i) parts.push_back(static_cast<WindowPart>(i));
  return parts;
}

WindowState random_state(const WindowStateShape& shape, uint64_t seed) {
  WindowState state(shape);
  RandomStream stream({.seed = seed});
  for (int64_t b = 0; b < shape.batch; ++b) {
    state.tokens(b) = 100 + 7 * b;
    for (WindowPart part : all_parts()) {
      for (float& x : state.part(part, b)) x = static_cast<float>(stream.next_normal());
    }
  }
  return state;
}

// Entry `b` of `state` is entry `expected_b` of `expected`.
void expect_same_entry(const WindowState& state, int64_t b, const WindowState& expected, int64_t expected_b) {
  EXPECT_EQ(state.tokens(b), expected.tokens(expected_b));
  for (WindowPart part : all_parts()) {
    EXPECT_TRUE(std::ranges::equal(state.part(part, b), expected.part(part, expected_b))) << "part " << static_cast<int>(part);
  }
}

std::string refusal_of(const WindowStateShape& shape) {
  try {
    const WindowState state(shape);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(WindowState, BeginsWithNoTokensNoWeightAndZeroElsewhere) {
  for (const WindowStateShape& shape : kShapes) {
    const WindowState state(shape);
    EXPECT_EQ(state.shape(), shape);
    for (int64_t b = 0; b < shape.batch; ++b) {
      EXPECT_EQ(state.tokens(b), 0);
      for (WindowPart part : all_parts()) {
        const bool is_log_weight =
            part == WindowPart::summary_weights || part == WindowPart::folded_weights || part == WindowPart::mixtures;
        for (float x : state.part(part, b)) EXPECT_EQ(x, is_log_weight ? kNoWeight : 0.0F) << static_cast<int>(part);
      }
    }
    EXPECT_EQ(state, WindowState(shape)) << "-inf compares equal";
  }
}

TEST(WindowState, PartsHaveTheSizesOfTheirShapes) {
  // In the order of WindowPart, N = 12 tokens for hybrid and 6 for the others.
  using Sizes = std::array<size_t, kWindowParts>;
  constexpr Sizes kExpected[] = {
      {0, 12 * 2 * 5, 12 * 2 * 3, 12 * 2 * 4, 12 * 2, 12, 2 * 7 * 4, 2 * 7, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0},
      {6 * 4 * 5, 6 * 2 * 5, 0, 6 * 2 * 3, 0, 6, 0, 0, 0, 0, 9 * 2 * 5, 9, 9 * 4 * 3, 7 * 2, 7 * 4 * 3, 0, 0, 7 * 2 * 5},
      {6 * 4 * 5, 6 * 2 * 5, 0, 6 * 2 * 3, 0, 6, 0, 0, 0, 0, 8 * 4 * 5, 8 * 4, 8 * 4 * 3, 0, 0, 4 * 4 * 5, 8 * 4, 8 * 2 * 5},
  };
  for (size_t i = 0; i < kShapes.size(); ++i) {
    const WindowState state(kShapes[i]);
    size_t floats = 0;
    for (WindowPart part : all_parts()) {
      const size_t size = kExpected[i][static_cast<size_t>(part)];
      EXPECT_EQ(state.part(part, 1).size(), size) << name_of(kShapes[i].kind) << " part " << static_cast<int>(part);
      floats += (size + 15) / 16 * 16;
    }
    EXPECT_EQ(state.size_bytes(), 3 * floats * sizeof(float)) << "each part is padded to whole cache lines";
  }
  WindowStateShape near = kHybrid;
  near.far_dim = 0;
  EXPECT_TRUE(WindowState(near).part(WindowPart::far_keys, 0).empty());
}

TEST(WindowState, PartsBeginCacheLinesAndDoNotOverlap) {
  for (const WindowStateShape& shape : kShapes) {
    WindowState state(shape);
    float next = 1;
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (WindowPart part : all_parts()) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(state.part(part, b).data()) % 64, 0U);
        for (float& x : state.part(part, b)) x = next++;
      }
    }
    const WindowState& readable = state;
    float expected = 1;
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (WindowPart part : all_parts()) {
        EXPECT_EQ(readable.part(part, b).data(), state.part(part, b).data());
        for (float x : readable.part(part, b)) EXPECT_EQ(x, expected++);
      }
    }
  }
}

TEST(WindowState, ResetForgetsAllOrOneEntry) {
  for (const WindowStateShape& shape : kShapes) {
    const WindowState used = random_state(shape, 1), empty(shape);
    WindowState state = used;
    EXPECT_NE(state, empty);
    state.reset(1);
    expect_same_entry(state, 0, used, 0);
    expect_same_entry(state, 1, empty, 1);
    expect_same_entry(state, 2, used, 2);
    state.reset();
    EXPECT_EQ(state, empty);
  }
}

TEST(WindowState, CopiesAreForks) {
  for (const WindowStateShape& shape : kShapes) {
    const WindowState state = random_state(shape, 2);
    WindowState fork = state;
    EXPECT_EQ(fork, state);
    fork.part(WindowPart::values, 2).back() += 1.0F;
    EXPECT_NE(fork, state);
    fork = state;
    ++fork.tokens(0);
    EXPECT_NE(fork, state) << "the number of tokens is compared, not only the data";
  }
}

TEST(WindowState, SelectReordersRepeatsAndShrinks) {
  for (const WindowStateShape& shape : kShapes) {
    const WindowState state = random_state(shape, 3);
    const std::vector<int64_t> beams = {2, 0, 0, 1};
    const WindowState selected = state.select(beams);
    WindowStateShape expected = shape;
    expected.batch = 4;
    EXPECT_EQ(selected.shape(), expected);
    for (int64_t i = 0; i < 4; ++i) expect_same_entry(selected, i, state, beams[static_cast<size_t>(i)]);
    EXPECT_EQ(selected.select(std::vector<int64_t>{1, 3, 0}), state);

    const WindowState none = state.select({});
    EXPECT_EQ(none.shape().batch, 0);
    EXPECT_EQ(none.size_bytes(), 0U);
  }
}

TEST(WindowState, RefusesEntriesItDoesNotHave) {
  WindowState state(kEva);
  const WindowState& readable = state;
  for (int64_t b : {int64_t{3}, int64_t{-1}}) {
    EXPECT_THROW((void)state.tokens(b), InvalidArgument);
    EXPECT_THROW((void)readable.tokens(b), InvalidArgument);
    EXPECT_THROW((void)state.part(WindowPart::keys, b), InvalidArgument);
    EXPECT_THROW((void)readable.part(WindowPart::keys, b), InvalidArgument);
    EXPECT_THROW(state.reset(b), InvalidArgument);
    EXPECT_THROW((void)state.select(std::vector<int64_t>{0, b}), InvalidArgument);
  }
}

TEST(WindowState, RefusalsNameTheExtentAndTheKind) {
  using Extent = int64_t WindowStateShape::*;
  using S = WindowStateShape;
  struct Case {
    WindowStateShape shape;
    Extent extent;
    int64_t value;
    const char* message;
  };
  const Case cases[] = {
      {kHybrid, &S::batch, -1, "WindowState: batch is -1, expected at least 0 (hybrid)"},
      {kHybrid, &S::heads, 0, "WindowState: heads is 0, expected at least 1 (hybrid)"},
      {kHybrid, &S::query_heads, 2, "WindowState: query_heads is 2, expected 1 (hybrid stores no queries)"},
      {kHybrid, &S::dim, 0, "WindowState: dim is 0, expected at least 1 (hybrid)"},
      {kHybrid, &S::far_dim, -1, "WindowState: far_dim is -1, expected at least 0 (hybrid)"},
      {kHybrid, &S::window, 0, "WindowState: window is 0, expected at least 1 (hybrid)"},
      {kHybrid, &S::summaries, 1, "WindowState: summaries is 1, expected 0 (hybrid does not use it)"},
      {kHybrid, &S::proposals, 1, "WindowState: proposals is 1, expected 0 (hybrid does not use it)"},
      {kHybrid, &S::features, 0, "WindowState: features is 0, expected at least 1 (hybrid)"},
      {kEva, &S::value_dim, 0, "WindowState: value_dim is 0, expected at least 1 (eva)"},
      {kEva, &S::query_heads, 3, "WindowState: query_heads is 3, expected a multiple of heads, 2"},
      {kEva, &S::far_dim, 4, "WindowState: far_dim is 4, expected 0 (eva does not use it)"},
      {kEva, &S::summaries, 0, "WindowState: summaries is 0, expected at least 1 (eva)"},
      {kEva, &S::proposals, 4, "WindowState: proposals is 4, expected 0 (eva does not use it)"},
      {kEva, &S::features, 0, "WindowState: features is 0, expected at least 1 (eva)"},
      {kLara, &S::query_heads, 0, "WindowState: query_heads is 0, expected at least 1 (lara)"},
      {kLara, &S::summaries, 0, "WindowState: summaries is 0, expected at least 1 (lara)"},
      {kLara, &S::proposals, 0, "WindowState: proposals is 0, expected at least 1 (lara)"},
      {kLara, &S::features, 7, "WindowState: features is 7, expected 0 (lara does not use it)"},
      {kHybrid, &S::chunk, 2, "WindowState: chunk is 2, expected 0 (hybrid does not use it)"},
      {kEva, &S::chunk, 0, "WindowState: chunk is 0, expected at least 1 (eva)"},
      {kLara, &S::chunk, 4, "WindowState: chunk is 4, expected a divisor of window, 6"},
  };
  for (const Case& each : cases) {
    WindowStateShape shape = each.shape;
    shape.*each.extent = each.value;
    EXPECT_EQ(refusal_of(shape), each.message);
  }
  WindowStateShape unknown = kEva;
  unknown.kind = static_cast<WindowKind>(3);
  EXPECT_EQ(refusal_of(unknown), "WindowState: kind is 3, expected below 3");
}

TEST(WindowState, RefusesSizesThatNoNumberHolds) {
  using S = WindowStateShape;
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const WindowStateShape& base : kShapes) {
    for (auto extent : {&S::batch, &S::dim, &S::far_dim, &S::value_dim, &S::window, &S::summaries, &S::proposals, &S::features}) {
      if (base.*extent == 0) continue;  // refused for being there at all
      for (int64_t value : {kHuge, kHuge - 15, kHuge / 2 + 1, int64_t{1} << 61}) {
        WindowStateShape shape = base;
        shape.*extent = value;
        shape.chunk = base.chunk == 0 ? 0 : 1;  // which divides any window
        EXPECT_NE(refusal_of(shape).find("does not fit in memory"), std::string::npos) << refusal_of(shape);
        if (extent == &S::batch) continue;
        shape.batch = 0;
        EXPECT_NE(refusal_of(shape).find("does not fit in memory"), std::string::npos)
            << "an entry must fit, even if the batch is empty";
      }
    }
  }
  // Each part fits, their sum does not.
  EXPECT_EQ(refusal_of({.kind = WindowKind::eva,
                        .dim = int64_t{1} << 61,
                        .value_dim = int64_t{1} << 61,
                        .window = 1,
                        .summaries = 1,
                        .features = 1,
                        .chunk = 1}),
            "WindowState: eva with batch 1, query_heads 1, heads 1, dim 2305843009213693952, far_dim 0, value_dim "
            "2305843009213693952, window 1, summaries 1, proposals 0, features 1, chunk 1 does not fit in memory");
}

TEST(WindowState, DifferencesOfShapesAreNamed) {
  EXPECT_EQ(difference_of(kEva, kEva), "");
  using S = WindowStateShape;
  for (auto [extent, name] : {std::pair{&S::batch, "batch"},
                              {&S::query_heads, "query_heads"},
                              {&S::heads, "heads"},
                              {&S::dim, "dim"},
                              {&S::far_dim, "far_dim"},
                              {&S::value_dim, "value_dim"},
                              {&S::window, "window"},
                              {&S::summaries, "summaries"},
                              {&S::proposals, "proposals"},
                              {&S::features, "features"},
                              {&S::chunk, "chunk"}}) {
    WindowStateShape found = kEva;
    found.*extent = 41;
    EXPECT_EQ(difference_of(found, kEva), std::string(name) + " 41, expected " + std::to_string(kEva.*extent));
  }
  WindowStateShape found = kLara;
  found.recipe = 0xabc;
  EXPECT_EQ(
      difference_of(found, kLara),
      "recipe 0000000000000abc, expected 0000000000000000: it was made with other options (compare seed, layer, draw, draws, "
      "scale and samples_per_proposal)");
  found.window = 12;
  found.chunk = 6;
  EXPECT_EQ(difference_of(found, kLara), "window 12, expected 6; chunk 6, expected 3");
  EXPECT_EQ(difference_of(kHybrid, kEva).find("kind hybrid, expected eva; "), 0U);
}

TEST(WindowState, RecipesDifferInEveryOptionAndTheirOrder) {
  const uint64_t recipe = recipe_of({1, 2, 3});
  EXPECT_EQ(recipe, recipe_of({1, 2, 3}));
  for (uint64_t other : {recipe_of({0, 2, 3}), recipe_of({1, 0, 3}), recipe_of({1, 2, 0}), recipe_of({2, 1, 3}),
                         recipe_of({1, 3, 2}), recipe_of({1, 2}), recipe_of({1, 2, 3, 0}), uint64_t{0}}) {
    EXPECT_NE(recipe, other);
  }
  EXPECT_EQ(recipe_of({0}), 0xe220a8397b1dcdafU) << "the first number of SplitMix64 with seed 0: recipes are stored in files";
}

TEST(WindowState, KindsHaveNames) {
  EXPECT_EQ(name_of(WindowKind::hybrid), "hybrid");
  EXPECT_EQ(name_of(WindowKind::eva), "eva");
  EXPECT_EQ(name_of(WindowKind::lara), "lara");
}

}  // namespace
}  // namespace raffia::internal
