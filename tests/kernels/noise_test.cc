// Normals by vectors against those of the C library, on every ISA: the same bits.
#include "kernels/noise.h"

#include <gtest/gtest.h>

#include <vector>

#include "raffia/random.h"
#include "support/arrays.h"

namespace raffia::internal {
namespace {

constexpr float kUntouched = 77.0F;

// Number `query` of `draws` draws, and that nothing past the noise is written.
void expect_twin(const StreamKey& key, int64_t query, int64_t draws, int64_t draw, size_t dim) {
  std::vector<float> noise(dim + 1, kUntouched), expected(dim);
  randomized_noise(key, query, draws, draw, std::span(noise).first(dim));
  randomized_draw(key, query, draws, draw, expected);
  ASSERT_TRUE(same_bits(std::span<const float>(noise).first(dim), expected))
      << "query " << query << ", draw " << draw << " of " << draws << ", dim " << dim;
  ASSERT_EQ(noise[dim], kUntouched);
}

TEST(RandomizedNoise, IsThatOfTheTwinAtEveryDimension) {
  for_each_isa([] {
    for (size_t dim = 0; dim <= 40; ++dim) {
      for (int64_t query : {0, 1, 5000}) {
        for (int64_t draw : {0, 2})
          expect_twin({.seed = 0x123456789ABCDEF0, .layer = 3, .head = 1, .draw = 9}, query, 3, draw, dim);
      }
    }
  });
}

// About one number in 2^18 is so near to the middle between two floats that vectors cannot decide which one it is: a few of
// these.
TEST(RandomizedNoise, IsThatOfTheTwinInManyDraws) {
  for_each_isa([] {
    for (int64_t query = 0; query < 20000; ++query) expect_twin({.seed = 7, .head = 5}, query, 1, 0, 64);
  });
}

TEST(RandomizedNoise, ReachesTheLastBlockOfAStream) {
  for_each_isa([] { expect_twin({.seed = 1}, (int64_t{1} << 30) - 1, 1, 0, 5); });  // 4 blocks a draw
}

}  // namespace
}  // namespace raffia::internal
