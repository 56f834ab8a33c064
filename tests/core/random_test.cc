#include "raffia/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <set>
#include <vector>

#include "raffia/error.h"

namespace raffia::internal {
namespace {

using Words = std::array<uint32_t, 4>;

// Statistics below are of fixed seeds. Their bounds are 5 standard deviations of the statistic, derived beside each: a right
// generator fails one with a probability below 1e-6.
constexpr double kDeviations = 5.0;

TEST(Philox, MatchesThePublishedVectors) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, IsTheGeneratorOverItsKey) {
  RandomStream stream({.seed = 0x299f31d0a4093822, .layer = 3, .head = 5, .draw = 7});
  for (uint32_t block = 0; block < 3; ++block) {
    for (uint32_t word : philox4x32({block, 3, 5, 7}, {0xa4093822, 0x299f31d0})) EXPECT_EQ(stream.next_u32(), word);
  }
}

TEST(RandomStream, EveryPartOfTheKeyNamesAnotherStream) {
  const StreamKey keys[] = {{},           {.seed = 1}, {.seed = uint64_t{1} << 32},
                            {.layer = 1}, {.head = 1}, {.draw = 1},
                            {.layer = 2}, {.head = 2}, {.draw = 2}};
  std::set<uint32_t> firsts;
  for (const StreamKey& key : keys) firsts.insert(RandomStream(key).next_u32());
  EXPECT_EQ(firsts.size(), std::size(keys));
}

TEST(RandomStream, UniformsFillTheOpenInterval) {
  RandomStream stream({.seed = 1});
  constexpr int kCount = 100000;
  double sum = 0, smallest = 1, largest = 0;
  for (int i = 0; i < kCount; ++i) {
    const double u = stream.next_uniform();
    sum += u;
    smallest = std::min(smallest, u);
    largest = std::max(largest, u);
  }
  EXPECT_GT(smallest, 0.0);
  EXPECT_LT(largest, 1.0);
  EXPECT_LT(smallest, 20.0 / kCount);  // missed with probability (1 - 20 / n)^n = e^-20
  EXPECT_GT(largest, 1.0 - 20.0 / kCount);
  EXPECT_NEAR(sum / kCount, 0.5, kDeviations / std::sqrt(12.0 * kCount));  // variance 1/12
}

TEST(RandomStream, NormalsAreBoxMullerOfTheUniforms) {
  RandomStream normals({.seed = 9, .draw = 2});
  RandomStream uniforms({.seed = 9, .draw = 2});
  for (int pair = 0; pair < 100; ++pair) {
    const long double radius = std::sqrt(-2.0L * std::log(static_cast<long double>(uniforms.next_uniform())));
    const long double angle = 2.0L * std::numbers::pi_v<long double> * uniforms.next_uniform();
    // The rounded angle is off by up to 2 ulp of 2 pi, which moves sine and cosine by as much absolutely; the other operations
    // add a few ulp of the result. The radius is below sqrt(-2 log 2^-53) < 9.
    const double tolerance = 9.0 * (2 * 0x1p-50 + 8 * 0x1p-53);
    EXPECT_NEAR(normals.next_normal(), static_cast<double>(radius * std::cos(angle)), tolerance);
    EXPECT_NEAR(normals.next_normal(), static_cast<double>(radius * std::sin(angle)), tolerance);
  }
}

TEST(RandomStream, NormalsHaveTheMomentsOfANormal) {
  RandomStream stream({.seed = 2});
  constexpr int kCount = 200000;
  double moments[5] = {};
  double lagged = 0, before = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = stream.next_normal();
    double power = 1;
    for (double& moment : moments) {
      moment += power / kCount;
      power *= x;
    }
    lagged += x * before / kCount;
    before = x;
  }
  const double unit = kDeviations / std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(moments[1], 0.0, unit);                    // var x = 1
  EXPECT_NEAR(moments[2], 1.0, unit * std::sqrt(2.0));   // var x^2 = 3 - 1
  EXPECT_NEAR(moments[3], 0.0, unit * std::sqrt(15.0));  // var x^3 = 15
  EXPECT_NEAR(moments[4], 3.0, unit * std::sqrt(96.0));  // var x^4 = 105 - 9
  EXPECT_NEAR(lagged, 0.0, unit);                        // var x y = 1
}

// The stream read from its beginning, block by block, and nothing skipped but the two spare words of the uniform's block.
TEST(RandomizedDraw, IsItsPartOfTheStream) {
  const StreamKey key{.seed = 11, .layer = 1, .head = 2, .draw = 3};
  for (size_t dim : {1U, 2U, 5U, 8U}) {
    RandomStream stream(key);
    for (int64_t number = 0; number < 12; ++number) {
      std::vector<float> noise(dim);
      EXPECT_EQ(randomized_draw(key, number / 3, 3, number % 3, noise), stream.next_uniform());
      stream.next_uniform();
      for (float entry : noise) EXPECT_EQ(entry, static_cast<float>(stream.next_normal()));
      if (dim % 2 == 1) stream.next_normal();
    }
  }
}

TEST(RandomizedDraw, RefusesNumbersThatTheStreamHasNot) {
  std::vector<float> noise(6);  // 4 blocks a draw
  randomized_draw({}, (int64_t{1} << 30) - 1, 1, 0, noise);
  EXPECT_THROW(randomized_draw({}, int64_t{1} << 30, 1, 0, noise), InvalidArgument);
  EXPECT_THROW(randomized_draw({}, int64_t{1} << 62, int64_t{1} << 62, 0, noise), InvalidArgument);
  EXPECT_THROW(randomized_draw({}, -1, 1, 0, noise), InvalidArgument);
  EXPECT_THROW(randomized_draw({}, 0, 2, 2, noise), InvalidArgument);
}

std::vector<float> draw(const StreamKey& key, Draws draws, int64_t count, int64_t dim) {
  std::vector<float> rows(static_cast<size_t>(count * dim));
  draw_projection(key, draws, count, dim, rows);
  return rows;
}

double dot(const std::vector<float>& rows, int64_t a, int64_t b, int64_t dim) {
  double sum = 0;
  for (int64_t i = 0; i < dim; ++i) {
    sum +=
        static_cast<double>(rows[static_cast<size_t>(a * dim + i)]) * static_cast<double>(rows[static_cast<size_t>(b * dim + i)]);
  }
  return sum;
}

TEST(DrawProjection, IidEntriesAreTheNormalsOfTheStream) {
  const StreamKey key{.seed = 4, .layer = 1, .head = 2, .draw = 3};
  RandomStream stream(key);
  for (float entry : draw(key, Draws::iid, 37, 13)) EXPECT_EQ(entry, static_cast<float>(stream.next_normal()));
}

TEST(DrawProjection, RowsOfABlockAreOrthogonalBelowAtAndAboveTheDimension) {
  constexpr std::pair<int64_t, int64_t> kSizes[] = {{1, 1}, {5, 1}, {1, 8}, {5, 8}, {8, 8}, {9, 8}, {27, 8}, {64, 64}, {100, 64}};
  for (const auto& [count, dim] : kSizes) {
    const std::vector<float> rows = draw({.seed = 5}, Draws::orthogonal, count, dim);
    for (int64_t a = 0; a < count; ++a) {
      for (int64_t b = a - a % dim; b < a; ++b) {
        const double lengths = std::sqrt(dot(rows, a, a, dim) * dot(rows, b, b, dim));
        // Rounding the entries to float moves each row by 2^-24 of its length; the double arithmetic before it by far less.
        EXPECT_LE(std::abs(dot(rows, a, b, dim)), 0x1p-22 * lengths) << count << " x " << dim << ": rows " << a << " and " << b;
      }
    }
  }
}

TEST(DrawProjection, BlocksAreIndependent) {
  // A block that repeated another, or were drawn orthogonal to it, would have cosines of 1 or 0 throughout.
  constexpr int64_t kDim = 8, kBlocks = 50;
  const std::vector<float> rows = draw({.seed = 6}, Draws::orthogonal, kDim * kBlocks, kDim);
  double mean_square = 0;
  for (int64_t block = 1; block < kBlocks; ++block) {
    const int64_t a = block * kDim, b = a - kDim;
    mean_square +=
        dot(rows, a, b, kDim) * dot(rows, a, b, kDim) / (dot(rows, a, a, kDim) * dot(rows, b, b, kDim)) / (kBlocks - 1);
  }
  // cos^2 of two uniform directions: mean 1/d, variance 2 (d - 1) / (d^2 (d + 2)).
  const double deviation = std::sqrt(2.0 * (kDim - 1) / (kDim * kDim * (kDim + 2)) / (kBlocks - 1));
  EXPECT_NEAR(mean_square, 1.0 / kDim, kDeviations * deviation);
}

TEST(DrawProjection, RowLengthsAreChi) {
  for (int64_t dim : {1, 4, 16}) {
    constexpr int64_t kCount = 4000;
    const std::vector<float> rows = draw({.seed = 7}, Draws::orthogonal, kCount, dim);
    double mean = 0, mean_square = 0;
    for (int64_t r = 0; r < kCount; ++r) {
      const double square = dot(rows, r, r, dim);
      mean += square / kCount;
      mean_square += square * square / kCount;
    }
    // chi^2(d): mean d, variance 2d, excess kurtosis 12/d, so that a sample variance deviates by 2d sqrt((2 + 12/d) / n).
    const double n = kCount, d = static_cast<double>(dim);
    EXPECT_NEAR(mean, d, kDeviations * std::sqrt(2 * d / n)) << dim;
    EXPECT_NEAR(mean_square - mean * mean, 2 * d, kDeviations * 2 * d * std::sqrt((2 + 12 / d) / n)) << dim;
  }
}

TEST(DrawProjection, OrthogonalFramesAreUniform) {
  // Of a uniform frame of O(3) every entry has mean 0 and variance 1/3, and both signs of the determinant are as likely.
  // A QR without the sign fix fails the first.
  constexpr int kFrames = 3000;
  double mean[9] = {};
  double determinant = 0;
  for (uint32_t frame = 0; frame < kFrames; ++frame) {
    const std::vector<float> rows = draw({.seed = 8, .draw = frame}, Draws::orthogonal, 3, 3);
    double q[9];
    for (int64_t r = 0; r < 3; ++r) {
      const double length = std::sqrt(dot(rows, r, r, 3));
      for (int64_t i = 0; i < 3; ++i) q[r * 3 + i] = static_cast<double>(rows[static_cast<size_t>(r * 3 + i)]) / length;
    }
    for (int i = 0; i < 9; ++i) mean[i] += q[i] / kFrames;
    determinant +=
        (q[0] * (q[4] * q[8] - q[5] * q[7]) - q[1] * (q[3] * q[8] - q[5] * q[6]) + q[2] * (q[3] * q[7] - q[4] * q[6])) / kFrames;
  }
  for (double entry : mean) EXPECT_NEAR(entry, 0.0, kDeviations / std::sqrt(3.0 * kFrames));
  EXPECT_NEAR(determinant, 0.0, kDeviations / std::sqrt(static_cast<double>(kFrames)));
}

// As every version has drawn them on every CPU. Another C library may round log, sin and cos differently in double, which moves
// an entry by far less than the distance between two floats: it is rounded to the same one, or to the next.
TEST(DrawProjection, IsThatOfAllVersionsAndMachines) {
  const StreamKey key{.seed = 0x299f31d0a4093822, .layer = 3, .head = 5, .draw = 7};
  const std::pair<Draws, std::vector<float>> kDrawn[] = {
      {Draws::iid,
       {0x1.495e6p+0F, 0x1.3545f2p-2F, -0x1.3999bp+0F, -0x1.01f86ep-1F, 0x1.63606ep-1F, -0x1.abe1e8p-2F, -0x1.b63a16p-4F,
        -0x1.15f85cp+0F, 0x1.27c1a8p-5F, 0x1.d1c078p-1F, 0x1.366a68p-1F, -0x1.4b7f0ap-1F, 0x1.eabb1ep-2F, 0x1.6948e2p-3F,
        0x1.25f224p+0F}},
      {Draws::orthogonal,
       {0x1.5cc466p-1F, 0x1.477cfcp-3F, -0x1.4c11f8p-1F, 0x1.d4f586p-4F, -0x1.405482p+0F, -0x1.818cfep-3F, 0x1.33ee54p+0F,
        -0x1.3bff44p-4F, 0x1.3e8b7cp+0F, 0x1.e59788p-3F, 0x1.3fe98p+0F, -0x1.8fb4f8p+0F, 0x1.e4e918p+0F, -0x1.478ca4p+0F,
        -0x1.790b2p-1F}}};
  for (const auto& [draws, expected] : kDrawn) {
    const std::vector<float> found = draw(key, draws, 5, 3);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_GE(found[i], std::nextafter(expected[i], -100.0F)) << i;
      EXPECT_LE(found[i], std::nextafter(expected[i], 100.0F)) << i;
    }
  }
}

TEST(DrawProjection, MoreRowsExtendAProjection) {
  for (Draws draws : {Draws::iid, Draws::orthogonal}) {
    const std::vector<float> many = draw({.seed = 10}, draws, 40, 12);
    for (int64_t count : {1, 5, 12, 13, 24, 39}) {
      const std::vector<float> few = draw({.seed = 10}, draws, count, 12);
      EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin())) << count;
    }
  }
}

TEST(DrawProjection, RefusesSizesThatDoNotFit) {
  std::vector<float> rows(12);
  EXPECT_THROW(draw_projection({}, Draws::iid, 3, 5, rows), InvalidArgument);
  EXPECT_THROW(draw_projection({}, Draws::iid, 0, 12, rows), InvalidArgument);
  EXPECT_THROW(draw_projection({}, Draws::orthogonal, -3, -4, rows), InvalidArgument);
  EXPECT_THROW(draw_projection({}, Draws::iid, int64_t{1} << 62, 4, std::span<float>()), InvalidArgument);
}

}  // namespace
}  // namespace raffia::internal
