#include "raffia/random.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "core/check.h"
#include "raffia/error.h"

namespace raffia {
namespace {

constexpr int kRounds = 10;

// The high and low halves of a 32 x 32 bit product.
struct Halves {
  uint32_t high, low;
};

Halves multiply(uint32_t a, uint32_t b) {
  const uint64_t product = static_cast<uint64_t>(a) * b;
  return {static_cast<uint32_t>(product >> 32), static_cast<uint32_t>(product)};
}

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void draw_normals(RandomStream& stream, std::span<double> out) {
  for (double& x : out) x = stream.next_normal();
}

// Takes from `row` its parts along the orthonormal rows before it, and scales it to length 1. Projecting twice leaves it
// orthogonal to rounding even where little of it remains after the first time. Rows of a Gaussian matrix so treated are the Q of
// its QR with a positive diagonal of R: a uniformly distributed frame.
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
  for (int round = 0; round < kRounds; ++round) {
    const Halves p0 = multiply(0xD2511F53U, counter[0]);
    const Halves p1 = multiply(0xCD9E8D57U, counter[2]);
    counter = {p1.high ^ counter[1] ^ key[0], p1.low, p0.high ^ counter[3] ^ key[1], p0.low};
    key[0] += 0x9E3779B9U;  // the golden ratio
    key[1] += 0xBB67AE85U;  // sqrt(3) - 1
  }
  return counter;
}

RandomStream::RandomStream(const StreamKey& key) : key_(key) {}

uint32_t RandomStream::next_u32() {
  if (used_ == 4) {
    // The block number has one word of the counter: 2^34 numbers, then the stream would meet its own beginning.
    if (block_ > std::numeric_limits<uint32_t>::max()) throw Error("RandomStream: all 2^34 numbers of the stream are used up");
    words_ = philox4x32({static_cast<uint32_t>(block_), key_.layer, key_.head, key_.draw},
                        {static_cast<uint32_t>(key_.seed), static_cast<uint32_t>(key_.seed >> 32)});
    ++block_;
    used_ = 0;
  }
  return words_[static_cast<size_t>(used_++)];
}

double RandomStream::next_uniform() {
  const uint64_t low = next_u32();
  const uint64_t bits = (static_cast<uint64_t>(next_u32()) << 32) | low;
  // The middles of 2^52 equal intervals: with 53 bits the last middle would round to 1.
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

double RandomStream::next_normal() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  const double radius = std::sqrt(-2.0 * std::log(next_uniform()));
  const double angle = 2.0 * std::numbers::pi * next_uniform();
  spare_ = radius * std::sin(angle);
  has_spare_ = true;
  return radius * std::cos(angle);
}

void draw_projection(const StreamKey& key, Draws draws, int64_t count, int64_t dim, std::span<float> rows) {
  require(count >= 1 && dim >= 1, "draw_projection: count is {} and dim is {}, expected at least 1", count, dim);
  const std::optional<int64_t> size = checked_product({count, dim});
  require(size.has_value() && rows.size() == static_cast<size_t>(*size), "draw_projection: rows has {} floats, expected {} x {}",
          rows.size(), count, dim);

  RandomStream stream(key);
  if (draws == Draws::iid) {
    for (float& x : rows) x = static_cast<float>(stream.next_normal());
    return;
  }

  // Row by row, direction then length, so that more rows extend a projection and leave its first rows as they are.
  const size_t d = static_cast<size_t>(dim);
  std::vector<double> block(d * static_cast<size_t>(std::min(count, dim)));
  std::vector<double> fresh(d);
  for (int64_t r = 0; r < count; ++r) {
    const size_t in_block = static_cast<size_t>(r % dim);
    const std::span<double> row = std::span(block).subspan(in_block * d, d);
    draw_normals(stream, row);
    orthonormalise(std::span(block).first(in_block * d), row);
    draw_normals(stream, fresh);
    const double length = std::sqrt(dot(fresh, fresh));
    for (size_t i = 0; i < d; ++i) rows[static_cast<size_t>(r) * d + i] = static_cast<float>(length * row[i]);
  }
}

}  // namespace raffia
