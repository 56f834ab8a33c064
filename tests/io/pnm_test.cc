#include "io/formats/pnm.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "raffia/error.h"
#include "support/refusal.h"

namespace raffia::internal {
namespace {

using namespace std::string_literals;
using Values = std::vector<float>;

TEST(Pnm, TextAndBinaryHoldTheSameImage) {
  const FloatArray grey = parse_pnm("P2\n# a comment\n3 2\n255\n0 51 102\n153 204 255\n", "f");
  EXPECT_EQ(grey.shape, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(grey.values, (Values{0, 0.2F, 0.4F, 0.6F, 0.8F, 1}));
  EXPECT_EQ(parse_pnm("P5 3 2 255\n\x00\x33\x66\x99\xCC\xFF"s, "f").values, grey.values);

  // Channels come apart.
  const FloatArray colour = parse_pnm("P3 2 1 #c\r10 0 5 10  10 0 5", "f");
  EXPECT_EQ(colour.shape, (std::vector<int64_t>{3, 1, 2}));
  EXPECT_EQ(colour.values, (Values{0, 1, 0.5F, 0, 1, 0.5F}));
  EXPECT_EQ(parse_pnm("P6\t2\n1\n10 \x00\x05\x0A\x0A\x00\x05"s, "f").values, colour.values);

  EXPECT_EQ(parse_pnm("P5 2 1 65535\n\xFF\xFF\x00\x00"s, "f").values, (Values{1, 0}));
}

TEST(Pnm, WhatIsNoImageIsRefusedWithItsPlace) {
  const auto said = [](const std::string& bytes) { return refusal<FormatError>([&] { (void)parse_pnm(bytes, "f.pgm"); }); };
  EXPECT_EQ(said(""), "f.pgm: byte 0: is not an image, expected P2, P3, P5 or P6 (PGM or PPM) at the start");
  EXPECT_EQ(said("P4 1 1\nx").substr(0, 14), "f.pgm: byte 0:");
  EXPECT_EQ(said("P5 0 1 255\n"), "f.pgm: byte 3: the width is missing or wrong, expected 1 to 16777216");
  EXPECT_EQ(said("P5 1 99999999999999999999 255\n"), "f.pgm: byte 5: the height is missing or wrong, expected 1 to 16777216");
  EXPECT_EQ(said("P5 1 1 65536\n"), "f.pgm: byte 7: the maximum value is missing or wrong, expected 1 to 65535");
  EXPECT_EQ(said("P5 1 1 255"), "f.pgm: byte 10: white space is missing after the maximum value");
  EXPECT_EQ(said("P5 2 2 255\nabc"), "f.pgm: byte 11: 3 bytes follow, expected 4 (an image of 2 x 2)");
  EXPECT_EQ(said("P5 2 2 255\nabcde"), "f.pgm: byte 11: 5 bytes follow, expected 4 (an image of 2 x 2)");
  EXPECT_EQ(said("P6 16777216 16777216 65535\nabc"),
            "f.pgm: byte 27: 3 bytes follow, expected 1,688,849,860,263,936 (an image of 16777216 x 16777216)");
  EXPECT_EQ(said("P5 2 1 9\n\x09\x0A"), "f.pgm: byte 10: a value is 10, expected 0 to 9");
  EXPECT_EQ(said("P2 2 1 9\n9 10"), "f.pgm: byte 11: a value is missing or wrong, expected 0 to 9");
  EXPECT_EQ(said("P2 2 1 9\n9 x"), "f.pgm: byte 11: a value is missing or wrong, expected 0 to 9");
  EXPECT_EQ(said("P2 2 1 9\n9 1 1"), "f.pgm: byte 13: unexpected bytes after the image");
}

}  // namespace
}  // namespace raffia::internal
