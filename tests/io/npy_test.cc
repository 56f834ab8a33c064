#include "io/formats/npy.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "raffia/error.h"

namespace raffia::internal {
namespace {

namespace fs = std::filesystem;
using Shape = std::vector<int64_t>;
using Values = std::vector<float>;

template <typename Word>
std::string little(Word word) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(Word); ++i) bytes += static_cast<char>(static_cast<uint64_t>(word) >> (8 * i));
  return bytes;
}

template <typename T, typename Word>
std::string elements(const std::vector<T>& values) {
  std::string bytes;
  for (const T value : values) bytes += little(std::bit_cast<Word>(value));
  return bytes;
}

std::string floats(const Values& values) { return elements<float, uint32_t>(values); }

// As np.save writes it: the header padded with spaces to a multiple of 64 bytes, a newline last.
std::string npy(std::string header, const std::string& data, int version = 1) {
  const size_t prefix = version == 1 ? 10 : 12;
  while ((prefix + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  bytes += version == 1 ? little(static_cast<uint16_t>(header.size())) : little(static_cast<uint32_t>(header.size()));
  return bytes + header + data;
}

std::string header(const std::string& descr, const std::string& shape, const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
}

FloatArray parse(const std::string& bytes) { return parse_npy(std::as_bytes(std::span(bytes)), "a.npy"); }

std::string refusal_of(const std::string& bytes) {
  try {
    (void)parse(bytes);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "accepted";
}

void expect_refused(const std::string& bytes, const std::string& message) {
  const std::string said = refusal_of(bytes);
  EXPECT_EQ(said.rfind("a.npy: ", 0), 0U) << said;
  EXPECT_NE(said.find(message), std::string::npos) << said;
}

const Values kSix = {0, 1, 2, 3, 4, 5};

TEST(Npy, EveryVersionGivesTheSameArray) {
  for (const int version : {1, 2, 3}) {
    const FloatArray array = parse(npy(header("<f4", "(2, 3)"), floats(kSix), version));
    EXPECT_EQ(array.shape, (Shape{2, 3})) << version;
    EXPECT_EQ(array.values, kSix) << version;
  }
}

TEST(Npy, AnyRank) {
  EXPECT_EQ(parse(npy(header("<f4", "()"), floats({7}))).shape, Shape{});
  EXPECT_EQ(parse(npy(header("<f4", "()"), floats({7}))).values, Values{7});
  EXPECT_EQ(parse(npy(header("<f4", "(6,)"), floats(kSix))).shape, Shape{6});
  EXPECT_EQ(parse(npy(header("<f4", "(1, 2, 1, 3, 1)"), floats(kSix))).shape, (Shape{1, 2, 1, 3, 1}));
  EXPECT_EQ(parse(npy(header("<f4", "(3, 0, 2)"), "")).shape, (Shape{3, 0, 2}));
  EXPECT_TRUE(parse(npy(header("<f4", "(3, 0, 2)"), "")).values.empty());
}

TEST(Npy, DoublesAreRoundedToFloats) {
  const std::vector<double> values = {1.0, -0.1, 1e-300, 1e300, std::numeric_limits<double>::infinity()};
  const FloatArray array = parse(npy(header("<f8", "(5,)"), elements<double, uint64_t>(values)));
  EXPECT_EQ(array.values, (Values{1.0F, -0.1F, 0.0F, HUGE_VALF, HUGE_VALF}));
}

TEST(Npy, HalvesConvertExactly) {
  // Zeros, one, the largest, the smallest normal, the subnormals at both ends, infinity.
  const std::vector<uint16_t> halves = {0x0000, 0x8000, 0x3c00, 0xc000, 0x7bff, 0x0400, 0x03ff, 0x0001, 0x8001, 0x7c00, 0xfc00};
  const Values expected = {0.0F, -0.0F, 1.0F, -2.0F, 65504.0F, 0x1p-14F, 0x3ffp-24F, 0x1p-24F, -0x1p-24F, HUGE_VALF, -HUGE_VALF};
  const FloatArray array = parse(npy(header("<f2", "(11,)"), elements<uint16_t, uint16_t>(halves)));
  EXPECT_EQ(array.values, expected);
  EXPECT_TRUE(std::signbit(array.values[1]));
  EXPECT_TRUE(std::isnan(parse(npy(header("<f2", "(1,)"), little(uint16_t{0x7e01}))).values[0]));
}

TEST(Npy, FortranOrderGivesTheSameArray) {
  // Element [i, j, k] holds 100 i + 10 j + k, stored with i fastest.
  const Shape shape = {2, 3, 4};
  Values fortran, row_major;
  for (int k = 0; k < 4; ++k) {
    for (int j = 0; j < 3; ++j) {
      for (int i = 0; i < 2; ++i) fortran.push_back(static_cast<float>(100 * i + 10 * j + k));
    }
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 4; ++k) row_major.push_back(static_cast<float>(100 * i + 10 * j + k));
    }
  }
  const FloatArray array = parse(npy(header("<f4", "(2, 3, 4)", "True"), floats(fortran)));
  EXPECT_EQ(array.shape, shape);
  EXPECT_EQ(array.values, row_major);
  EXPECT_EQ(parse(npy(header("<f4", "()", "True"), floats({7}))).values, Values{7});
  EXPECT_TRUE(parse(npy(header("<f4", "(0, 3)", "True"), "")).values.empty());
}

TEST(Npy, HeadersOfOtherWritersAreRead) {
  EXPECT_EQ(parse(npy("{\"shape\":(2,3),\"descr\":\"<f4\",\"fortran_order\":False}", floats(kSix))).values, kSix);
  EXPECT_EQ(parse(npy(" {  'descr' : '<f4' , 'fortran_order' : False , 'shape' : ( 2 , 3 , ) }", floats(kSix))).values, kSix);
}

TEST(Npy, RefusesEveryTruncation) {
  for (const int version : {1, 2}) {
    const std::string whole = npy(header("<f4", "(2, 3)"), floats(kSix), version);
    for (size_t size = 0; size < whole.size(); ++size) EXPECT_NE(refusal_of(whole.substr(0, size)), "accepted") << size;
  }
}

TEST(Npy, RefusalsSayWhatAndWhere) {
  const std::string data = floats(kSix);
  EXPECT_EQ(refusal_of("PK\x03\x04 and so on"), "a.npy: does not begin with \\x93NUMPY: not an npy file");
  EXPECT_EQ(refusal_of(npy(header("<f4", "(2, 3)"), data, 4)), "a.npy: npy version 4.0 at byte 6, expected 1.0, 2.0 or 3.0");
  EXPECT_EQ(refusal_of(npy(header("<i8", "(2, 3)"), data)),
            "a.npy: element type '<i8' at byte 20, expected '<f2', '<f4' or '<f8'");
  EXPECT_EQ(refusal_of(npy(header("<f4", "(2, 4)"), data)),
            "a.npy: 24 bytes of elements from byte 128, expected 32 (shape [2, 4], 4 bytes each): truncated");
  EXPECT_EQ(refusal_of(npy(header("<f4", "(2, 2)"), data)),
            "a.npy: 24 bytes of elements from byte 128, expected 16 (shape [2, 2], 4 bytes each): bytes follow the array");
  expect_refused(npy(header(">f4", "(2, 3)"), data), "element type '>f4'");
  expect_refused(npy("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (6,)}", data), "a record type");
  expect_refused(npy(header("<f4", "(2, 3)", "Maybe"), data), "'M' at byte 44, expected True or False");
  expect_refused(npy(header("<f4", "(2, -3)"), data), "expected an extent of 0 or more");
  expect_refused(npy(header("<f4", "(2 3)"), data), "expected ',' or ')'");
  expect_refused(npy(header("<f4", "(,)"), data), "expected an extent");
  expect_refused(npy(header("<f4", "[2, 3]"), data), "'[' at byte 60, expected '('");
  expect_refused(npy(header("<f4", "(99999999999999999999,)"), data), "fits 63 bits");
  expect_refused(npy("{'descr': '<f4', 'fortran_order': False}", data), "without one of its keys");
  expect_refused(npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (6,)}", data), "a second key 'descr'");
  expect_refused(npy("{'descr': '<f4', 'order': 'C', 'fortran_order': False, 'shape': (6,)}", data), "key 'order'");
  expect_refused(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (6,)} 1", data), "text after the dictionary");
  expect_refused(npy("{'descr: <f4", data), "a string without an end");
  expect_refused(npy("", data), "the end of the header at byte 64, expected '{'");
}

TEST(Npy, AllocatesNothingForAShapeThatTheBytesDoNotHold) {
  expect_refused(npy(header("<f4", "(1099511627776,)"), floats(kSix)), "expected 4398046511104");
  expect_refused(npy(header("<f4", "(4294967296, 4294967296)"), floats(kSix)), "expected one whose elements fit in memory");
  // 2^62 elements of 4 bytes wrap to 0 bytes.
  expect_refused(npy(header("<f4", "(4611686018427387904,)"), ""), "expected one whose elements fit in memory");
  std::string axes = "(";
  for (int i = 0; i < 65; ++i) axes += "1,";
  expect_refused(npy(header("<f4", axes + ")"), floats({1})), "a shape of too many axes");
}

TEST(Npy, AHeaderLongerThanTheFileIsNotRead) {
  std::string bytes = npy(header("<f4", "(2, 3)"), floats(kSix), 2);
  bytes.replace(8, 4, little(uint32_t{0xffffffff}));
  expect_refused(bytes, "header of 4294967295 bytes at byte 8, expected at most");
}

TEST(NpyFile, IsReadFromDiskAndErrorsNameIt) {
  std::string name = (fs::temp_directory_path() / "raffia-npy-XXXXXX").string();
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  const fs::path directory = name, path = directory / "q.npy";
  // More elements than are converted at a time.
  Values many(300'000);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<float>(i);
  const auto write = [&path](const std::string& bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  };
  write(npy(header("<f4", "(1000, 300)"), floats(many)));
  const FloatArray array = read_npy(path);
  EXPECT_EQ(array.shape, (Shape{1000, 300}));
  EXPECT_EQ(array.values, many);

  const auto said_by = [](const fs::path& which) -> std::string {
    try {
      (void)read_npy(which);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  write("no array");
  EXPECT_EQ(said_by(path), path.string() + ": does not begin with \\x93NUMPY: not an npy file");
  EXPECT_EQ(said_by(directory / "none.npy"), (directory / "none.npy").string() + ": cannot open: No such file or directory");
  EXPECT_EQ(said_by(directory), directory.string() + ": cannot read: not a regular file");
  ASSERT_EQ(mkfifo((directory / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(said_by(directory / "pipe"), (directory / "pipe").string() + ": cannot read: not a regular file");
  fs::remove_all(directory);
}

}  // namespace
}  // namespace raffia::internal
