#include "raffia/views.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace raffia::internal {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

double stored_as_bf16(double value) {
  BFloat16 cell;
  MutView1 view(&cell, {1});
  view.set(value, 0);
  return view(0);
}

TEST(BFloat16, KeepsWhatItCanRepresent) {
  for (float value : {0.0F, -0.0F, 1.0F, -2.5F, 0x1.fep127F, 0x1p-126F, 0x1p-133F, kInf, -kInf}) {
    const float back = BFloat16::from_float(value).to_float();
    EXPECT_EQ(back, value);
    EXPECT_EQ(std::signbit(back), std::signbit(value));
  }
}

TEST(BFloat16, RoundsTiesToEven) {
  // Neighbours of 1 are 2^-7 apart.
  EXPECT_EQ(BFloat16::from_float(1.0F + 0x1p-8F).to_float(), 1.0F);
  EXPECT_EQ(BFloat16::from_float(1.0F + 0x3p-8F).to_float(), 1.0F + 0x2p-7F);
  EXPECT_EQ(BFloat16::from_float(-1.0F - 0x1p-8F).to_float(), -1.0F);
  EXPECT_EQ(BFloat16::from_float(1.0F + 0x1.0002p-8F).to_float(), 1.0F + 0x1p-7F);
  EXPECT_EQ(BFloat16::from_float(0x1.ffp127F).to_float(), kInf);  // half way to the next power of two
  EXPECT_EQ(BFloat16::from_float(0x1p-134F).to_float(), 0.0F);    // half the smallest subnormal
  EXPECT_EQ(BFloat16::from_float(0x1.8p-134F).to_float(), 0x1p-133F);
}

TEST(BFloat16, NanStaysNan) {
  EXPECT_TRUE(std::isnan(BFloat16::from_float(std::numeric_limits<float>::quiet_NaN()).to_float()));
  // All payload bits in the half that is dropped: truncation would give infinity.
  EXPECT_TRUE(std::isnan(BFloat16::from_float(std::bit_cast<float>(0x7f800001U)).to_float()));
  // Adding the rounding bias would overflow into the sign.
  EXPECT_TRUE(std::isnan(BFloat16::from_float(std::bit_cast<float>(0x7fffffffU)).to_float()));
  EXPECT_TRUE(std::isnan(stored_as_bf16(std::numeric_limits<double>::quiet_NaN())));
}

TEST(Views, StoringADoubleAsBf16RoundsOnce) {
  // Next to a tie by less than a float can tell: by way of the nearest float, both would end at the even neighbour, 1.
  EXPECT_EQ(stored_as_bf16(1.0 + 0x1p-8 + 0x1p-40), 1.0 + 0x1p-7);
  EXPECT_EQ(stored_as_bf16(-1.0 - 0x1p-8 - 0x1p-40), -1.0 - 0x1p-7);
  // And below the tie between 1 + 2^-7 and the even 1 + 2^-6.
  EXPECT_EQ(stored_as_bf16(1.0 + 0x3p-8 - 0x1p-40), 1.0 + 0x1p-7);
  EXPECT_EQ(stored_as_bf16(1.0 + 0x1p-8), 1.0);
  EXPECT_EQ(stored_as_bf16(1e300), static_cast<double>(kInf));
  EXPECT_EQ(stored_as_bf16(-1e300), static_cast<double>(-kInf));
  EXPECT_EQ(stored_as_bf16(1e-300), 0.0);
}

TEST(Views, ElementsOfEveryTypeRoundTrip) {
  float f32[2] = {};
  double f64[2] = {};
  uint8_t u8[2] = {};
  bool flags[2] = {};
  MutView1(f32, {2}).set(1.5, 1);
  MutView1(f64, {2}).set(0.1, 1);
  MutView1(u8, {2}).set(1, 1);
  MutView1(flags, {2}).set(1, 1);
  EXPECT_EQ(f32[1], 1.5F);
  EXPECT_EQ(f64[1], 0.1);
  EXPECT_EQ(u8[1], 1);
  EXPECT_TRUE(flags[1]);
  EXPECT_FALSE(flags[0]);
  EXPECT_EQ(View1(f64, {2})(1), 0.1);
  EXPECT_EQ(View1(u8, {2})(1), 1.0);
}

TEST(Views, TypesHaveSizesAndNames) {
  EXPECT_EQ(size_of(DType::f32), sizeof(float));
  EXPECT_EQ(size_of(DType::bf16), sizeof(BFloat16));
  EXPECT_EQ(size_of(DType::f64), sizeof(double));
  EXPECT_EQ(size_of(DType::u8), sizeof(uint8_t));
  EXPECT_STREQ(name_of(DType::f32), "f32");
  EXPECT_STREQ(name_of(DType::bf16), "bf16");
  EXPECT_STREQ(name_of(DType::f64), "f64");
  EXPECT_STREQ(name_of(DType::u8), "u8");
}

TEST(Views, PermutedReadsAnotherLayoutInPlace) {
  std::vector<float> data(2 * 3 * 4 * 5);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  const View4 bhtd(data.data(), {2, 3, 4, 5});
  const View4 bthd = bhtd.permuted({0, 2, 1, 3});
  EXPECT_EQ(bthd.shape(), (Extents<4>{2, 4, 3, 5}));
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = 0; t < 4; ++t) {
      for (int64_t h = 0; h < 3; ++h) {
        for (int64_t d = 0; d < 5; ++d) EXPECT_EQ(bthd(b, t, h, d), static_cast<double>(((b * 3 + h) * 4 + t) * 5 + d));
      }
    }
  }
}

TEST(Views, SliceMovesTheOriginByTheElementSize) {
  std::vector<BFloat16> data(4 * 6);
  for (size_t i = 0; i < data.size(); ++i) data[i] = BFloat16::from_float(static_cast<float>(i));
  const View2 whole(data.data(), {4, 6});
  const View2 part = whole.slice(0, 1, 2).slice(1, 4, 2);
  EXPECT_EQ(part.shape(), (Extents<2>{2, 2}));
  EXPECT_EQ(part(0, 0), 10.0);
  EXPECT_EQ(part(1, 1), 17.0);
}

TEST(Views, AbsentIsNoDataAndNoElements) {
  EXPECT_TRUE(View3().absent());
  float cell = 0;
  EXPECT_FALSE(View1(&cell, {1}).absent());
  EXPECT_FALSE(View1(&cell, {0}).absent());
  EXPECT_TRUE(View2().slice(0, 0, 0).absent());
}

TEST(Views, ShapesPrintInBrackets) {
  const int64_t extents[] = {2, 128, -1};
  EXPECT_EQ(to_string(extents, 3), "[2, 128, -1]");
  EXPECT_EQ(to_string(extents, 0), "[]");
}

}  // namespace
}  // namespace raffia::internal
