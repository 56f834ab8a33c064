#include "io/formats/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "raffia/error.h"

namespace raffia::internal {
namespace {

namespace fs = std::filesystem;
using Shape = std::vector<int64_t>;
using Values = std::vector<float>;

std::string size_prefix(uint64_t size) {
  std::string bytes;
  for (size_t i = 0; i < 8; ++i) bytes += static_cast<char>(size >> (8 * i));
  return bytes;
}

std::string file(const std::string& header, const std::string& buffer) { return size_prefix(header.size()) + header + buffer; }

std::string floats(const Values& values) {
  std::string bytes;
  for (const float value : values) {
    for (size_t i = 0; i < 4; ++i) bytes += static_cast<char>(std::bit_cast<uint32_t>(value) >> (8 * i));
  }
  return bytes;
}

Safetensors over(const std::string& bytes) { return Safetensors::over(std::as_bytes(std::span(bytes)), "m.safetensors"); }

std::string refusal_of(const std::string& bytes) {
  try {
    (void)over(bytes);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "accepted";
}

void expect_refused(const std::string& header, const std::string& buffer, const std::string& message) {
  const std::string said = refusal_of(file(header, buffer));
  EXPECT_EQ(said.rfind("m.safetensors: ", 0), 0U) << said;
  EXPECT_NE(said.find(message), std::string::npos) << said;
}

// One tensor "x" of 4 floats, with one value of its entry replaced.
std::string entry(const std::string& dtype = "\"F32\"", const std::string& shape = "[2,2]",
                  const std::string& offsets = "[0,16]") {
  return R"({"x":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

const std::string kFour = floats({1, 2, 3, 4});

TEST(Safetensors, TensorsAreReadByName) {
  const std::string bytes = file(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[16,24]},)"
                                 R"("a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}   )",
                                 kFour + floats({-5, 6}));
  const Safetensors tensors = over(bytes);
  ASSERT_EQ(tensors.tensors().size(), 2U);
  EXPECT_EQ(tensors.tensors()[0].name, "a") << "in the order of their bytes";
  EXPECT_EQ(tensors.read("a").shape, (Shape{2, 2}));
  EXPECT_EQ(tensors.read("a").values, (Values{1, 2, 3, 4}));
  EXPECT_EQ(tensors.read("b").values, (Values{-5, 6}));
  EXPECT_EQ(tensors.metadata().at("format"), "pt");
  EXPECT_EQ(tensors.find("c"), nullptr);
  try {
    (void)tensors.read("c");
    FAIL() << "a missing tensor was read";
  } catch (const FormatError& error) {
    EXPECT_STREQ(error.what(), "m.safetensors: no tensor \"c\", expected one of a, b");
  }
}

TEST(Safetensors, EveryFloatTypeConverts) {
  const std::string bytes =
      file(R"({"h":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},)"
           R"("d":{"dtype":"F64","shape":[1],"data_offsets":[8,16]},"i":{"dtype":"I64","shape":[1],"data_offsets":[16,24]}})",
           std::string("\x00\x3c\x00\xc0\x80\x3f\x00\xc0", 8) + std::string("\x00\x00\x00\x00\x00\x00\xe0\x3f", 8) +
               std::string("\x05\0\0\0\0\0\0\0", 8));
  const Safetensors tensors = over(bytes);
  EXPECT_EQ(tensors.read("h").values, (Values{1, -2}));
  EXPECT_EQ(tensors.read("b").values, (Values{1, -2}));
  EXPECT_EQ(tensors.read("d").values, (Values{0.5}));
  EXPECT_EQ(tensors.read_bytes("i").size(), 8U);
  EXPECT_EQ(tensors.read_bytes("i")[0], std::byte{5});
  try {
    (void)tensors.read("i");
    FAIL() << "integers were read as floats";
  } catch (const FormatError& error) {
    EXPECT_STREQ(error.what(), "m.safetensors: tensor \"i\" has dtype I64, expected F32, F16, BF16 or F64");
  }
}

TEST(Safetensors, ScalarsAndEmptyTensorsAndEmptyFilesAreFine) {
  const std::string bytes =
      file(R"({"none":{"dtype":"F32","shape":[3,0],"data_offsets":[4,4]},"one":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
           R"("zero":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
           floats({9}));
  const Safetensors tensors = over(bytes);
  EXPECT_EQ(tensors.read("one").shape, Shape{});
  EXPECT_EQ(tensors.read("one").values, Values{9});
  EXPECT_EQ(tensors.read("none").shape, (Shape{3, 0}));
  EXPECT_TRUE(tensors.read("zero").values.empty());
  EXPECT_TRUE(over(file("{}", "")).tensors().empty());
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string whole = file(entry(), kFour);
  ASSERT_EQ(refusal_of(whole), "accepted");
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_NE(refusal_of(whole.substr(0, size)), "accepted") << size;
}

TEST(Safetensors, RefusalsSayWhatAndWhere) {
  EXPECT_EQ(refusal_of("short"), "m.safetensors: 5 bytes, expected at least 8: truncated, or not a safetensors file");
  EXPECT_EQ(refusal_of(size_prefix(~uint64_t{0}) + "{}"),
            "m.safetensors: header of 18446744073709551615 bytes, expected at most 2: truncated, or not a safetensors file");
  EXPECT_EQ(
      refusal_of(file(entry("\"F12\""), kFour)).rfind("m.safetensors: tensor \"x\" has dtype \"F12\", expected one of F32", 0),
      0U);
  EXPECT_EQ(refusal_of(file(entry("\"F32\"", "[2,2]", "[0,20]"), kFour)),
            "m.safetensors: tensor \"x\" ends at byte 20 of the buffer, expected at most 16 (its size): the file is truncated");
  EXPECT_EQ(refusal_of(file(entry("\"F32\"", "[2,3]"), kFour)),
            "m.safetensors: tensor \"x\" takes 16 bytes, expected the size of shape [2, 3] of F32 (4 bytes each)");
  EXPECT_EQ(refusal_of(file(entry(), kFour + "more")), "m.safetensors: 85 bytes, expected 81 (where the last tensor ends)");
  expect_refused(entry("\"F32\"", "[2,2]", "[16,0]"), kFour, "begins at byte 16 and ends at byte 0");
  expect_refused(entry("\"F32\"", "[2,2]", "[0,16,16]"), kFour, "has 3 data_offsets, expected 2");
  expect_refused(entry("\"F32\"", "[2,2]", "[0]"), kFour, "has 1 data_offsets, expected 2");
  expect_refused(entry("\"F32\"", "[4]", "[4,16]"), kFour, "takes 12 bytes");
  expect_refused(entry("\"F32\"", "[3]", "[4,16]"), kFour, "a gap");
  expect_refused(entry("\"F32\"", "[4.0]"), kFour, "4.0 in shape of tensor \"x\", expected integers of 0 or more");
  expect_refused(entry("\"F32\"", "[-4]"), kFour, "-4 in shape of tensor \"x\"");
  expect_refused(entry("\"F32\"", "[[4]]"), kFour, "an array in shape");
  expect_refused(entry("\"F32\"", "4"), kFour, "4 as shape of tensor \"x\", expected an array");
  expect_refused(entry("[]"), kFour, "an array as dtype of tensor \"x\", expected a string");
  expect_refused(entry("null"), kFour, "null as dtype");
  expect_refused(R"({"x":{"dtype":"F32","shape":[4]}})", kFour, "tensor \"x\" without one of its keys");
  expect_refused(R"({"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16],"stride":[1]}})", kFour, "key \"stride\"");
  expect_refused(R"({"x":true})", kFour, "a truth value as value of \"x\", expected an object");
  expect_refused(R"({"__metadata__":{"n":1}})", "", "1 as value of \"n\" of __metadata__, expected a string");
  expect_refused("[]", "", "an array, expected an object of tensors");
  expect_refused("{", "", ": parse error at line 1, column 2");
  expect_refused("", "", "the header is not JSON near byte");
  expect_refused("{} {}", "", "the header is not JSON near byte");
  expect_refused("{\"\xff\":{}}", "", "the header is not JSON near byte");
}

TEST(Safetensors, RefusesDuplicates) {
  const std::string x = R"("x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string again = R"("x":{"dtype":"F32","shape":[2],"data_offsets":[8,16]})";
  expect_refused("{" + x + "," + again + "}", kFour, "tensor \"x\" twice, expected once");
  expect_refused(R"({"x":{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]}})", kFour,
                 "dtype of tensor \"x\" twice");
  expect_refused(R"({"x":{"dtype":"F32","shape":[9],"shape":[4],"data_offsets":[0,16]}})", kFour, "shape of tensor \"x\" twice");
  expect_refused(R"({"__metadata__":{},"__metadata__":{}})", "", "__metadata__ twice");
  expect_refused(R"({"__metadata__":{"a":"1","a":"2"}})", "", "key \"a\" of __metadata__ twice");
}

TEST(Safetensors, RefusesTensorsThatShareBytes) {
  const std::string a = R"("a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]})";
  const std::string b = R"("b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]})";
  expect_refused("{" + a + "," + b + "}", kFour, "tensor \"b\" begins at byte");
  expect_refused("{" + b + "," + a + "}", kFour, "tensors overlap");
}

TEST(Safetensors, SizesThatWrapAreRefused) {
  expect_refused(entry("\"F32\"", "[4611686018427387904]", "[0,0]"), "", "takes 0 bytes");  // 2^62 floats wrap to 0 bytes
  expect_refused(entry("\"F32\"", "[4294967296,4294967296]", "[0,0]"), "", "takes 0 bytes");
  expect_refused(entry("\"F32\"", "[18446744073709551615]", "[0,16]"), kFour, "has an extent of 18446744073709551615");
  expect_refused(entry("\"F32\"", "[18446744073709551616]", "[0,16]"), kFour, "in shape of tensor");
  expect_refused(entry("\"F32\"", "[4]", "[18446744073709551600,18446744073709551615]"), kFour, "ends at byte");
}

TEST(Safetensors, NestingIsRefusedAtOnce) {
  expect_refused(std::string(1'000'000, '['), "", "an array, expected an object of tensors");
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  expect_refused(deep, "", "key \"a\" of tensor \"a\"");
}

// A directory of its own for each test, gone when it ends.
class SafetensorsFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "raffia-safetensors-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
    path_ = directory_ / "m.safetensors";
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string refusal_of_write(const TensorToWrite& tensor, const std::map<std::string, std::string>& metadata = {}) const {
    try {
      write_safetensors(path_, std::vector{tensor}, metadata);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  }

  fs::path directory_, path_;
};

TEST_F(SafetensorsFile, IsReadFromDiskPieceByPiece) {
  const std::string bytes = file(entry(), kFour);
  std::ofstream(path_, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const Safetensors tensors = Safetensors::open(path_);
  EXPECT_EQ(tensors.read("x").values, (Values{1, 2, 3, 4}));

  fs::resize_file(path_, bytes.size() - 4);  // behind the reader's back
  try {
    (void)tensors.read("x");
    FAIL() << "a file that shrank was read";
  } catch (const FormatError& error) {
    EXPECT_EQ(error.what(), path_.string() + ": ends at byte 77, expected 81: it shrank while it was read");
  }
  try {
    (void)Safetensors::open(path_);
    FAIL() << "a truncated file was opened";
  } catch (const FormatError& error) {
    EXPECT_EQ(error.what(), path_.string() +
                                ": tensor \"x\" ends at byte 16 of the buffer, expected at most 12 (its size): "
                                "the file is truncated");
  }
  EXPECT_THROW((void)Safetensors::open(directory_ / "none"), IoError);
}

TEST_F(SafetensorsFile, WhatIsWrittenIsReadBack) {
  const Values a = {1, -2, 3.5, 1e-30F, 0, 7};
  const uint8_t bytes[] = {1, 2, 3};
  const TensorToWrite tensors[] = {
      {.name = "layers.0.weight", .dtype = "F32", .shape = {2, 3}, .bytes = std::as_bytes(std::span(a))},
      {.name = "a \"quoted\" name", .dtype = "U8", .shape = {3}, .bytes = std::as_bytes(std::span(bytes))},
      {.name = "empty", .dtype = "F32", .shape = {0, 3}, .bytes = {}}};
  write_safetensors(path_, tensors, {{"step", "12"}});
  const Safetensors read = Safetensors::open(path_);
  ASSERT_EQ(read.tensors().size(), 3U);
  EXPECT_EQ(read.tensors()[0].begin % 8, 0U) << "aligned";
  EXPECT_EQ(read.read("layers.0.weight").shape, (Shape{2, 3}));
  EXPECT_EQ(read.read("layers.0.weight").values, a);
  EXPECT_EQ(read.read_bytes("a \"quoted\" name"), (std::vector{std::byte{1}, std::byte{2}, std::byte{3}}));
  EXPECT_EQ(read.read("empty").shape, (Shape{0, 3}));
  EXPECT_EQ(read.metadata().at("step"), "12");
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()), 1) << "no other file is left";
}

TEST_F(SafetensorsFile, ARefusedWriteLeavesTheOldFile) {
  const Values a = {1, 2};
  const TensorToWrite good{.name = "a", .dtype = "F32", .shape = {2}, .bytes = std::as_bytes(std::span(a))};
  write_safetensors(path_, std::vector{good});
  TensorToWrite bad = good;
  bad.shape = {3};
  EXPECT_EQ(refusal_of_write(bad), "write_safetensors: tensor \"a\" has 8 bytes, expected the size of shape [3] of F32");
  bad = good;
  bad.dtype = "f32";
  EXPECT_EQ(refusal_of_write(bad), "write_safetensors: tensor \"a\" has dtype \"f32\", expected one like F32");
  bad = good;
  bad.name = "__metadata__";
  EXPECT_EQ(refusal_of_write(bad), "write_safetensors: name \"__metadata__\" is reserved or used twice");
  bad.name = "\xff";
  EXPECT_EQ(refusal_of_write(bad), "write_safetensors: a name or metadata is not UTF-8");
  EXPECT_THROW(write_safetensors(path_, std::vector{good, good}), InvalidArgument);
  EXPECT_EQ(Safetensors::open(path_).read("a").values, a);
}

}  // namespace
}  // namespace raffia::internal
