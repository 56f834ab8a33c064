#include "raffia/random.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "core/check.h"
#include "core/random_blocks.h"
#include "raffia/error.h"

namespace raffia {

using namespace internal;
namespace {

// The rounds of Philox for N counters side by side: those of one need not wait for those of another, and the compiler makes
// vector code of many. The vectors of kernels/noise.cc are the only other form.
template <size_t N>
void philox_rounds(uint32_t (&words)[4][N], uint32_t low, uint32_t high) {
  for (int round = 0; round < Philox::kRounds; ++round) {
    for (size_t i = 0; i < N; ++i) {
      const uint64_t p0 = uint64_t{Philox::kMultipliers[0]} * words[0][i], p1 = uint64_t{Philox::kMultipliers[1]} * words[2][i];
      words[0][i] = static_cast<uint32_t>(p1 >> 32) ^ words[1][i] ^ low;
      words[1][i] = static_cast<uint32_t>(p1);
      words[2][i] = static_cast<uint32_t>(p0 >> 32) ^ words[3][i] ^ high;
      words[3][i] = static_cast<uint32_t>(p0);
    }
    low += Philox::kKeySteps[0];
    high += Philox::kKeySteps[1];
  }
}

// The block number has one word of the counter: after 2^34 numbers the stream would repeat.
void require_block(uint64_t block) {
  if (block > std::numeric_limits<uint32_t>::max()) throw Error("RandomStream: all 2^34 numbers of the stream are used up");
}

// Eight independent sums: a single one would wait for the latency of every addition.
double dot(std::span<const double> a, std::span<const double> b) {
  constexpr size_t kSums = 8;
  double sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= a.size(); i += kSums) {
    for (size_t lane = 0; lane < kSums; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < a.size(); ++i) sums[0] += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// The normals of a stream from its beginning, as RandomStream gives them, several blocks at a time.
class Normals {
 public:
  explicit Normals(const StreamKey& key) : key_(key) {}

  double next() {
    if (used_ == kCount) fill();
    return normals_[used_++];
  }
  void fill(std::span<double> out) {
    for (double& x : out) x = next();
  }

 private:
  static constexpr size_t kBlocks = 16, kCount = 2 * kBlocks;

  void fill() {
    require_block(block_ + kBlocks - 1);
    uint32_t words[4][kBlocks];
    for (size_t i = 0; i < kBlocks; ++i) {
      words[0][i] = static_cast<uint32_t>(block_ + i), words[1][i] = key_.layer;
      words[2][i] = key_.head, words[3][i] = key_.draw;
    }
    philox_rounds(words, static_cast<uint32_t>(key_.seed), static_cast<uint32_t>(key_.seed >> 32));
    for (size_t i = 0; i < kBlocks; ++i) {
      const auto [normal, spare] = normals_of(uniform_of(words[0][i], words[1][i]), uniform_of(words[2][i], words[3][i]));
      normals_[2 * i] = normal;
      normals_[2 * i + 1] = spare;
    }
    block_ += kBlocks;
    used_ = 0;
  }

  StreamKey key_;
  uint64_t block_ = 0;
  size_t used_ = kCount;
  double normals_[kCount] = {};
};

// Gram-Schmidt: removes from `row` its components along the orthonormal rows before it, and scales it to length 1. Projecting
// twice keeps it orthogonal up to rounding even if little of it remains after the first time. Applied to a Gaussian matrix this
// gives Q of its QR decomposition with a positive diagonal of R: a uniformly distributed frame.
void orthonormalise(std::span<const double> rows_before, std::span<double> row) {
  const size_t dim = row.size();
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t begin = 0; begin < rows_before.size(); begin += dim) {
      const std::span<const double> before = rows_before.subspan(begin, dim);
      const double along = dot(before, row);
      for (size_t i = 0; i < dim; ++i) row[i] -= along * before[i];
    }
  }
  const double length = std::sqrt(dot(row, row));
  for (double& x : row) x /= length;
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  uint32_t words[4][1] = {{counter[0]}, {counter[1]}, {counter[2]}, {counter[3]}};
  philox_rounds(words, key[0], key[1]);
  return {words[0][0], words[1][0], words[2][0], words[3][0]};
}

std::array<uint32_t, 4> internal::block_of(const StreamKey& key, uint64_t block) {
  require_block(block);
  return philox4x32({static_cast<uint32_t>(block), key.layer, key.head, key.draw},
                    {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
}

double internal::uniform_of(uint64_t low, uint64_t high) {
  // With 53 bits the last middle would round to 1.
  return (static_cast<double>(((high << 32) | low) >> 12) + 0.5) * 0x1p-52;
}

std::array<double, 2> internal::normals_of(double first, double second) {
  const double radius = std::sqrt(-2.0 * std::log(first));
  const double angle = 2.0 * std::numbers::pi * second;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

uint64_t internal::block_of_draw(int64_t query, int64_t draws, int64_t draw, int64_t dim) {
  constexpr int64_t kBlocks = int64_t{1} << 32;  // of a stream
  require(query >= 0 && draw >= 0 && draw < draws, "randomized_draw: query is {} and draw is {} of {}, expected numbers from 0",
          query, draw, draws);
  const int64_t blocks = 1 + (dim + 1) / 2;
  const std::optional<int64_t> end = query < kBlocks ? checked_product({query + 1, draws, blocks}) : std::nullopt;
  require(end.has_value() && *end <= kBlocks, "randomized_draw: query {} of {} draws of {} numbers is past the end of the stream",
          query, draws, dim);
  return static_cast<uint64_t>((query * draws + draw) * blocks);
}

RandomStream::RandomStream(const StreamKey& key) : key_(key) {}

uint32_t RandomStream::next_u32() {
  if (used_ == 4) {
    words_ = block_of(key_, block_);
    ++block_;
    used_ = 0;
  }
  return words_[static_cast<size_t>(used_++)];
}

double RandomStream::next_uniform() {
  const uint32_t low = next_u32();
  return uniform_of(low, next_u32());
}

double RandomStream::next_normal() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  const double first = next_uniform();
  const auto [normal, spare] = normals_of(first, next_uniform());
  spare_ = spare;
  has_spare_ = true;
  return normal;
}

double randomized_draw(const StreamKey& key, int64_t query, int64_t draws, int64_t draw, std::span<float> noise) {
  uint64_t block = block_of_draw(query, draws, draw, static_cast<int64_t>(noise.size()));
  const std::array<uint32_t, 4> first = block_of(key, block);
  for (size_t i = 0; i < noise.size(); i += 2) {
    const std::array<uint32_t, 4> words = block_of(key, ++block);
    const auto [normal, spare] = normals_of(uniform_of(words[0], words[1]), uniform_of(words[2], words[3]));
    noise[i] = static_cast<float>(normal);
    if (i + 1 < noise.size()) noise[i + 1] = static_cast<float>(spare);
  }
  return uniform_of(first[0], first[1]);
}

double randomized_uniform(const StreamKey& key, int64_t query, int64_t draws, int64_t draw, int64_t dim) {
  const std::array<uint32_t, 4> first = block_of(key, block_of_draw(query, draws, draw, dim));
  return uniform_of(first[0], first[1]);
}

void draw_projection(const StreamKey& key, Draws draws, int64_t count, int64_t dim, std::span<float> rows) {
  require(count >= 1 && dim >= 1, "draw_projection: count is {} and dim is {}, expected at least 1", count, dim);
  const std::optional<int64_t> size = checked_product({count, dim});
  require(size.has_value() && rows.size() == static_cast<size_t>(*size), "draw_projection: rows has {} floats, expected {} x {}",
          rows.size(), count, dim);

  Normals normals(key);
  if (draws == Draws::iid) {
    for (float& x : rows) x = static_cast<float>(normals.next());
    return;
  }

  // Row by row, direction then length, so that a projection with more rows has the same first rows.
  const size_t d = static_cast<size_t>(dim);
  std::vector<double> block(d * static_cast<size_t>(std::min(count, dim)));
  std::vector<double> fresh(d);
  for (int64_t r = 0; r < count; ++r) {
    const size_t in_block = static_cast<size_t>(r % dim);
    const std::span<double> row = std::span(block).subspan(in_block * d, d);
    normals.fill(row);
    orthonormalise(std::span(block).first(in_block * d), row);
    normals.fill(fresh);
    const double length = std::sqrt(dot(fresh, fresh));
    for (size_t i = 0; i < d; ++i) rows[static_cast<size_t>(r) * d + i] = static_cast<float>(length * row[i]);
  }
}

}  // namespace raffia
