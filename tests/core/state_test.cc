#include "raffia/state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "raffia/error.h"
#include "raffia/random.h"

namespace raffia::internal {
namespace {

constexpr StateShape kShape{.batch = 3, .heads = 2, .features = 5, .value_dim = 4};

State random_state(uint64_t seed, float log_decay = -0.5F) {
  State state(kShape);
  RandomStream stream({.seed = seed});
  for (float& x : state.data()) x = static_cast<float>(stream.next_normal());
  for (int64_t b = 0; b < kShape.batch; ++b) {
    for (int64_t h = 0; h < kShape.heads; ++h) state.log_decay(b, h) = log_decay * static_cast<float>(1 + b + h);
  }
  return state;
}

TEST(State, BeginsEmptyAndResets) {
  State state(kShape);
  EXPECT_EQ(state.size_bytes(), 3U * 2U * (5U * 4U + 5U + 2U) * sizeof(float));
  for (float x : state.data()) EXPECT_EQ(x, 0.0F);
  State used = random_state(1);
  EXPECT_NE(used, state);
  used.reset();
  EXPECT_EQ(used, state);
}

TEST(State, TakesItsShapeFromTheMap) {
  const State state(FeatureMap::trig({.dim = 8, .count = 6, .heads = 3}), {.batch = 2, .value_dim = 7});
  EXPECT_EQ(state.shape(), (StateShape{.batch = 2, .heads = 3, .features = 12, .value_dim = 7}));
}

TEST(State, PartsTileTheWhole) {
  State state(kShape);
  float next = 0;
  const auto for_heads = [](const auto& body) {
    for (int64_t b = 0; b < kShape.batch; ++b) {
      for (int64_t h = 0; h < kShape.heads; ++h) body(b, h);
    }
  };
  for_heads([&](int64_t b, int64_t h) {
    for (float& x : state.sums(b, h)) x = next++;
  });
  for_heads([&](int64_t b, int64_t h) {
    for (float& x : state.normaliser(b, h)) x = next++;
  });
  for_heads([&](int64_t b, int64_t h) { state.mass(b, h) = next++; });
  for_heads([&](int64_t b, int64_t h) { state.log_decay(b, h) = next++; });
  ASSERT_EQ(static_cast<size_t>(next), state.data().size());
  for (size_t i = 0; i < state.data().size(); ++i) EXPECT_EQ(state.data()[i], static_cast<float>(i));
  const State& readable = state;
  EXPECT_EQ(readable.sums(2, 1).data(), state.sums(2, 1).data());
  EXPECT_EQ(readable.normaliser(2, 1).data(), state.normaliser(2, 1).data());
  EXPECT_EQ(readable.mass(2, 1), state.mass(2, 1));
  EXPECT_EQ(readable.log_decay(2, 1), state.log_decay(2, 1));
}

TEST(State, RefusesEntriesItDoesNotHave) {
  State state(kShape);
  EXPECT_THROW((void)state.sums(3, 0), InvalidArgument);
  EXPECT_THROW((void)state.normaliser(0, 2), InvalidArgument);
  EXPECT_THROW((void)state.mass(-1, 0), InvalidArgument);
  EXPECT_THROW((void)state.log_decay(0, -1), InvalidArgument);
}

TEST(State, RefusesShapesThatCannotBe) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const StateShape& shape : {StateShape{-1, 1, 1, 1}, StateShape{1, 0, 1, 1}, StateShape{1, 1, 0, 1}, StateShape{1, 1, 1, 0},
                                  StateShape{1, 1, 1, kHuge}, StateShape{1, 1, kHuge, 1}, StateShape{kHuge, kHuge, 1, 1},
                                  StateShape{0, 1, int64_t{1} << 40, int64_t{1} << 40}}) {
    EXPECT_THROW(State{shape}, InvalidArgument);
  }
}

TEST(State, CopiesAreForks) {
  const State state = random_state(2);
  State fork = state;
  EXPECT_EQ(fork, state);
  fork.mass(0, 0) += 1.0F;
  EXPECT_NE(fork, state);
}

TEST(State, SelectReordersRepeatsAndShrinks) {
  const State state = random_state(3);
  const std::vector<int64_t> beams = {2, 0, 0, 1};
  const State selected = state.select(beams);
  EXPECT_EQ(selected.shape().batch, 4);
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t h = 0; h < kShape.heads; ++h) {
      const int64_t from = beams[static_cast<size_t>(i)];
      EXPECT_TRUE(std::ranges::equal(selected.sums(i, h), state.sums(from, h)));
      EXPECT_TRUE(std::ranges::equal(selected.normaliser(i, h), state.normaliser(from, h)));
      EXPECT_EQ(selected.mass(i, h), state.mass(from, h));
      EXPECT_EQ(selected.log_decay(i, h), state.log_decay(from, h));
    }
  }
  const State none = state.select({});
  EXPECT_EQ(none.shape().batch, 0);
  EXPECT_EQ(none.size_bytes(), 0U);
}

TEST(State, SelectRefusesAnEntryThatIsNotThere) {
  const State state = random_state(4);
  for (int64_t index : {int64_t{3}, int64_t{-1}})
    EXPECT_THROW((void)state.select(std::vector<int64_t>{0, index}), InvalidArgument);
}

TEST(State, ComposeDecaysTheEarlierByTheLater) {
  const State earlier = random_state(5), later = random_state(6);
  const State both = State::compose(earlier, later);
  for (int64_t b = 0; b < kShape.batch; ++b) {
    for (int64_t h = 0; h < kShape.heads; ++h) {
      const double decay = std::exp(static_cast<double>(later.log_decay(b, h)));
      const auto near = [&](float found, float before, float after) {
        const double expected = decay * static_cast<double>(before) + static_cast<double>(after);
        // Roundings of exp (1 ulp), product and sum: 3 relative errors of 2^-23 of the terms' sizes.
        const double size = decay * std::abs(static_cast<double>(before)) + std::abs(static_cast<double>(after));
        EXPECT_NEAR(static_cast<double>(found), expected, 3 * 0x1p-23 * size);
      };
      for (size_t i = 0; i < both.sums(b, h).size(); ++i) near(both.sums(b, h)[i], earlier.sums(b, h)[i], later.sums(b, h)[i]);
      for (size_t i = 0; i < both.normaliser(b, h).size(); ++i) {
        near(both.normaliser(b, h)[i], earlier.normaliser(b, h)[i], later.normaliser(b, h)[i]);
      }
      near(both.mass(b, h), earlier.mass(b, h), later.mass(b, h));
      EXPECT_EQ(both.log_decay(b, h), earlier.log_decay(b, h) + later.log_decay(b, h));
    }
  }
}

TEST(State, ComposeIsAssociative) {
  const State a = random_state(7, -0.25F), b = random_state(8, -1.0F), c = random_state(9, -0.125F);
  const State left = State::compose(State::compose(a, b), c);
  const State right = State::compose(a, State::compose(b, c));
  for (size_t i = 0; i < left.data().size(); ++i) {
    const double size = std::abs(static_cast<double>(a.data()[i])) + std::abs(static_cast<double>(b.data()[i])) +
                        std::abs(static_cast<double>(c.data()[i]));
    // All decays are below 1. Each side rounds 2 exponentials, 3 products and 2 sums by at most 2^-23 of `size`.
    EXPECT_NEAR(left.data()[i], right.data()[i], 14 * 0x1p-23 * size);
  }
}

TEST(State, EmptyMemoryIsNeutralInCompose) {
  const State state = random_state(10);
  EXPECT_EQ(State::compose(state, State(kShape)), state);
  EXPECT_EQ(State::compose(State(kShape), state), state);
}

TEST(State, AHardResetForgetsTheEarlier) {
  State later = random_state(11);
  for (int64_t b = 0; b < kShape.batch; ++b) {
    for (int64_t h = 0; h < kShape.heads; ++h) later.log_decay(b, h) = -1e4F;
  }
  const State both = State::compose(random_state(12), later);
  EXPECT_TRUE(std::ranges::equal(both.sums(1, 1), later.sums(1, 1)));
  EXPECT_EQ(both.mass(1, 1), later.mass(1, 1));
}

TEST(State, ComposeRefusesAnotherShape) {
  const State other(StateShape{.batch = 3, .heads = 2, .features = 4, .value_dim = 5});
  try {
    (void)State::compose(random_state(13), other);
    FAIL() << "another shape was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "State::compose: later has shape [3, 2, 4, 5], expected [3, 2, 5, 4] (the shape of earlier)");
  }
}

}  // namespace
}  // namespace raffia::internal
