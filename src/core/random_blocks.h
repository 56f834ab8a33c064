// How numbers are made of the blocks of a random stream: for random.cc, and for the kernel that makes many at once.
#ifndef RAFFIA_CORE_RANDOM_BLOCKS_H_
#define RAFFIA_CORE_RANDOM_BLOCKS_H_

#include <array>
#include <cstdint>

#include "raffia/random.h"

namespace raffia::internal {

// Philox4x32-10 multiplies two words of the counter, and adds to the key after each round.
struct Philox {
  static constexpr int kRounds = 10;
  static constexpr uint32_t kMultipliers[2] = {0xD2511F53U, 0xCD9E8D57U};
  static constexpr uint32_t kKeySteps[2] = {0x9E3779B9U, 0xBB67AE85U};  // the golden ratio, sqrt(3) - 1
};

// Block number `block` of a stream: philox4x32({block, layer, head, draw}, seed).
std::array<uint32_t, 4> block_of(const StreamKey& key, uint64_t block);

// The middle of one of 2^52 equal intervals of (0, 1), from 64 random bits.
double uniform_of(uint64_t low, uint64_t high);

// Two independent N(0, 1) of two uniform numbers, by Box and Muller.
std::array<double, 2> normals_of(double first, double second);

// The block with the uniform number of a draw of randomized_draw(); those of its `dim` normals follow.
uint64_t block_of_draw(int64_t query, int64_t draws, int64_t draw, int64_t dim);

}  // namespace raffia::internal

#endif  // RAFFIA_CORE_RANDOM_BLOCKS_H_
