#include "io/data/datasets.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "io/formats/compressed.h"
#include "io/formats/text.h"
#include "raffia/error.h"
#include "support/compressed_text.h"
#include "support/refusal.h"
#include "support/temporary_directory.h"

namespace raffia::internal {
namespace {

using Strings = std::vector<std::string>;

constexpr uint64_t kLimit = 1 << 20;

std::string big_endian(uint32_t number) {
  return {static_cast<char>(number >> 24), static_cast<char>(number >> 16), static_cast<char>(number >> 8),
          static_cast<char>(number)};
}

std::string idx(const std::vector<uint32_t>& shape, const std::string& values) {
  std::string bytes = {0, 0, 8, static_cast<char>(shape.size())};
  for (const uint32_t extent : shape) bytes += big_endian(extent);
  return bytes + values;
}

TEST(Compressed, FilesAreKnownByTheirFirstBytes) {
  const TemporaryDirectory directory("datasets_test");
  EXPECT_EQ(read_text_file(directory.write("a.gz", kGzip)), "two\nlines\n");
  EXPECT_EQ(read_text_file(directory.write("a.xz", kXz)), "two\nlines\n");
  EXPECT_EQ(read_text_file(directory.write("b", std::string(kGzip) + std::string(kGzip))), "two\nlines\ntwo\nlines\n");
  EXPECT_EQ(decompressed("plain", "here", kLimit), "plain");
}

TEST(Compressed, EveryFlippedByteAndEveryCutIsRefusedOrHarmless) {
  for (const std::string_view whole : {kGzip, kXz}) {
    for (size_t size = 6; size < whole.size(); ++size) {
      EXPECT_THROW((void)decompressed(std::string(whole.substr(0, size)), "here", kLimit), FormatError) << size;
    }
    for (size_t at = 6; at < whole.size(); ++at) {
      std::string damaged(whole);
      damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
      try {
        EXPECT_EQ(decompressed(damaged, "here", kLimit), "two\nlines\n") << at;  // bytes 8 and 9 of gzip are notes
      } catch (const FormatError& error) {
        EXPECT_EQ(std::string(error.what()).rfind("here: is not valid ", 0), 0U) << error.what();
      }
    }
    EXPECT_NE(refusal<FormatError>([&] { (void)decompressed(std::string(whole), "here", 9); }).find("more than 9 bytes"),
              std::string::npos);
  }
}

TEST(Compressed, PiecesOfAnySizeGiveTheSame) {
  const std::string two = "two\nlines\ntwo\nlines\n";
  for (const std::string_view once : {kGzip, kXz}) {
    const std::string bytes = std::string(once) + std::string(once);
    for (const size_t given : {1, 2, 7, 1000}) {
      for (const size_t taken : {1, 3, 1000}) {
        Decompressor decompressor(*compression_of(bytes, true), "here");
        std::string output, held;
        size_t at = 0;
        for (bool ended = false; !ended;) {
          if (held.empty()) {
            held = bytes.substr(at, given);
            at += held.size();
          }
          std::string_view left = held;
          const size_t before = output.size();
          ended = decompressor.run(left, at == bytes.size(), output, taken);
          ASSERT_LE(output.size(), before + taken);
          held.erase(0, held.size() - left.size());
        }
        EXPECT_EQ(output, two) << given << " and " << taken;
      }
    }
  }
}

TEST(Compressed, ShortBeginsAreToldOnlyWhenTheyMustBe) {
  EXPECT_EQ(compression_of("", false), std::nullopt);
  EXPECT_EQ(compression_of("\x1F", false), std::nullopt);
  EXPECT_EQ(compression_of("\xFD"
                           "7zX",
                           false),
            std::nullopt);
  EXPECT_EQ(compression_of("\x1F", true), Compression::none);
  EXPECT_EQ(compression_of("a", false), Compression::none);  // nobody at a terminal has to type six characters
  EXPECT_EQ(compression_of("\x1F\x8B", false), Compression::gzip);
  EXPECT_EQ(compression_of("BZh9 is a text", false), Compression::none);
  EXPECT_EQ(compression_of("PK\n", false), Compression::none);
}

TEST(Compressed, OtherFormatsAreRefusedByName) {
  for (const auto& [name, begin] : {std::pair("zstd", "\x28\xB5\x2F\xFD\x04"), std::pair("zip", "PK\x03\x04\x14"),
                                    std::pair("bzip2", "BZh11AY&SY."), std::pair("bzip2", "BZh91AY&SY.")}) {
    EXPECT_EQ(refusal<FormatError>([&, bytes = begin] { (void)decompressed(bytes, "here", 100); }),
              std::string("here: is compressed with ") + name + ", expected gzip (.gz), xz (.xz) or no compression");
  }
}

TEST(LabelledTexts, ColumnsAreChosen) {
  const TemporaryDirectory directory("datasets_test");
  const auto plain = read_labelled_texts(directory.write("a.tsv", "pos\tgood one\nneg\tbad\tone\n"));
  EXPECT_EQ(plain.labels, (Strings{"pos", "neg"}));
  EXPECT_EQ(plain.texts, (Strings{"good one", "bad"}));
  const auto reviews = read_labelled_texts(directory.write("b.tsv", "1\t9\t17_9\tgood\n0\t2\t18_2\tbad\n"), {.text_column = 4});
  EXPECT_EQ(reviews.texts, (Strings{"good", "bad"}));
  const auto pairs = read_labelled_texts(directory.write("c.tsv", "1\ta\tb\n"), {.pairs = true});
  EXPECT_EQ(pairs.seconds, (Strings{"b"}));
  const auto listops = read_labelled_texts(directory.write("d.tsv", "Source\tTarget\r\n[MAX 1 2 ]\t2\r\n"),
                                           {.label_column = 2, .text_column = 1, .header = true});
  EXPECT_EQ(listops.labels, (Strings{"2"}));
  EXPECT_EQ(listops.texts, (Strings{"[MAX 1 2 ]"}));
}

TEST(LabelledTexts, LabelIsFoundByNumberOrName) {
  const TemporaryDirectory directory("datasets_test");
  const auto path = directory.write("a.tsv", "review\tsentiment\ngood one\tpos\nbad one\tneg\n");
  for (const char* label : {"2", "sentiment"}) {
    LabelledTextFormat format{.header = true};
    format.set_label(label);
    const LabelledTexts read = read_labelled_texts(path, format);
    EXPECT_EQ(read.labels, (Strings{"pos", "neg"})) << label;
    EXPECT_EQ(read.texts, (Strings{"good one", "bad one"})) << label;  // the label is last: the text is first
  }
  LabelledTextFormat middle;
  middle.set_label("2");
  EXPECT_EQ(read_labelled_texts(directory.write("b.tsv", "7\tpos\tgood\n"), middle).texts, (Strings{"good"}));
  LabelledTextFormat pairs{.pairs = true};
  pairs.set_label("3");
  EXPECT_EQ(read_labelled_texts(directory.write("c.tsv", "a\tb\tsame\n"), pairs).seconds, (Strings{"b"}));
  EXPECT_THROW(middle.set_label("0"), InvalidArgument);
}

TEST(LabelledTexts, TextsInPlaceOfLabelsGetAShortError) {
  Strings texts;
  for (int i = 0; i < 300; ++i) texts.push_back("text number " + std::to_string(i));
  const std::string different = refusal<FormatError>([&] { require_classes(texts, "x.tsv"); });
  EXPECT_EQ(different.find("x.tsv: 300 labels of 300 examples are different"), 0U) << different;
  texts.assign(3, std::string(3000, 'a'));
  const std::string longer = refusal<FormatError>([&] { require_classes(texts, "x.tsv"); });
  EXPECT_EQ(longer.find("x.tsv: the label of example 1 has 3,000 bytes"), 0U) << longer;
  EXPECT_LT(longer.size(), 300U);
  const std::string unknown = refusal<FormatError>([&] { (void)class_ids(Strings{std::string(3000, 'b')}, texts, "x.tsv"); });
  EXPECT_LT(unknown.size(), 400U);
  texts.assign(1000, "a");
  for (int i = 0; i < 400; ++i) texts.push_back(std::to_string(i));  // many classes, and still classes
  require_classes(texts, "x.tsv");
}

TEST(LabelledTexts, LinesWithoutTheirColumnsAreRefusedByNumber) {
  const TemporaryDirectory directory("datasets_test");
  const auto refused = [&](const std::string& text, const LabelledTextFormat& format = {}) {
    const auto path = directory.write("x.tsv", text);
    return refusal<FormatError>([&] { (void)read_labelled_texts(path, format); });
  };
  EXPECT_NE(refused("1\ta\n2 b\n").find("x.tsv: line 2 has 1 column, expected at least 2"), std::string::npos);
  EXPECT_NE(refused("1\ta\n", {.pairs = true}).find("line 1 has 2 columns, expected at least 3"), std::string::npos);
  EXPECT_NE(refused("\ta\n").find("line 1 has no label in column 1"), std::string::npos);
  EXPECT_NE(refused("label\ttext\n", {.header = true}).find("has no examples"), std::string::npos);
  EXPECT_THROW((void)read_labelled_texts("none", {.label_column = 0}), InvalidArgument);
  const auto path = directory.write("y.tsv", "1\ta\n");
  EXPECT_THROW((void)read_labelled_texts(path, {.label_column = 2, .text_column = 2}), InvalidArgument);
  EXPECT_NE(
      refusal<FormatError>([&] { (void)read_labelled_texts(path, {.label_name = "sentiment"}); }).find("there is no column"),
      std::string::npos);
}

TEST(LabelledTexts, ClassesAreInTheOrderOfNumbersOrBytes) {
  EXPECT_EQ(classes_of(Strings{"10", "9", "-1", "9"}), (Strings{"-1", "9", "10"}));
  EXPECT_EQ(classes_of(Strings{"neg", "10", "9"}), (Strings{"10", "9", "neg"}));
  EXPECT_EQ(class_ids(Strings{"b", "a", "b"}, Strings{"a", "b"}, "x.tsv"), (std::vector<int64_t>{1, 0, 1}));
  EXPECT_EQ(refusal<FormatError>([] {
              (void)class_ids(Strings{"a", "c"}, Strings{"a", "b"}, "x.tsv");
            }),
            "x.tsv: example 2 has label \"c\", expected one of the 2 classes: a, b");
}

TEST(ParallelText, LinesBelongTogether) {
  const TemporaryDirectory directory("datasets_test");
  const auto source = directory.write("t.en", "a dog\n\ntwo\n"), target = directory.write("t.de", "ein Hund\n\nzwei\n");
  const ParallelText text = read_parallel_text(source, target);
  EXPECT_EQ(text.sources, (Strings{"a dog", "two"}));
  EXPECT_EQ(text.targets, (Strings{"ein Hund", "zwei"}));
  const auto shorter = directory.write("s.de", "ein Hund\n");
  EXPECT_EQ(refusal<FormatError>([&] { (void)read_parallel_text(source, shorter); }),
            source.string() + " has 3 lines and " + shorter.string() + " has 1: expected the same number of lines");
  const auto hole = directory.write("h.de", "ein Hund\nx\nzwei\n");
  EXPECT_NE(refusal<FormatError>([&] { (void)read_parallel_text(source, hole); }).find("t.en: line 2 is empty, but not in"),
            std::string::npos);
}

TEST(ParallelText, FilesOfAPrefixMayBeCompressed) {
  const TemporaryDirectory directory("datasets_test");
  directory.write("t.en.gz", kGzip);
  directory.write("t.de.xz", kXz);
  directory.write("t.fr", "deux\nlignes\n");
  const std::string prefix = (directory.path() / "t").string();
  EXPECT_EQ(read_parallel_text(prefix, "en", "de").targets, (Strings{"two", "lines"}));
  EXPECT_EQ(read_parallel_text(prefix, "en", "fr").targets, (Strings{"deux", "lignes"}));
  EXPECT_NE(refusal<IoError>([&] { (void)read_parallel_text(prefix, "en", "it"); }).find("t.it"), std::string::npos);
}

TEST(LabelledImages, IdxFilesAreReadAndChecked) {
  const TemporaryDirectory directory("datasets_test");
  const auto images = directory.write("images", idx({2, 2, 2}, "abcdefgh")), labels = directory.write("labels", idx({2}, {7, 9}));
  const LabelledImages read = read_idx_images(images, labels);
  EXPECT_EQ(read.count, 2);
  EXPECT_EQ(read.channels, 1);
  EXPECT_EQ(read.size, 2);
  EXPECT_EQ(read.pixels[4], 'e');
  EXPECT_EQ(read.labels, (std::vector<int64_t>{7, 9}));
  EXPECT_EQ(read.classes(), 10);
  const auto refused = [&](const std::string& bytes) {
    const auto path = directory.write("broken", bytes);
    return refusal<FormatError>([&] { (void)read_idx_images(path, labels); });
  };
  EXPECT_NE(refused(idx({2, 2, 2}, "abcdefg")).find("has 7 bytes of values, expected the product of its shape [2, 2, 2]"),
            std::string::npos);
  EXPECT_NE(refused(idx({2, 2, 2}, "abcdefghi")).find("has 9 bytes"), std::string::npos);
  EXPECT_NE(refused(idx({0, 2, 2}, "")).find("has 0 bytes"), std::string::npos);
  EXPECT_NE(refused(idx({0x80000000U, 0x80000000U, 4}, "")).find("has 0 bytes"), std::string::npos);  // 2^64
  EXPECT_NE(refused(idx({2, 4}, "abcdefgh")).find("begins with 00000802, expected 00000803"), std::string::npos);
  EXPECT_NE(refused("short").find("has 5 bytes, expected at least 16"), std::string::npos);
  EXPECT_NE(refused(idx({2, 4, 1}, "abcdefgh")).find("images of 4 x 1, expected square"), std::string::npos);
  EXPECT_NE(refused(idx({1, 2, 2}, "abcd")).find("has 1 images and"), std::string::npos);
}

TEST(LabelledImages, CifarFilesFollowEachOther) {
  const TemporaryDirectory directory("datasets_test");
  const auto record = [](char label, char pixel) { return std::string(1, label) + std::string(3072, pixel); };
  const std::vector<std::filesystem::path> paths = {directory.write("1.bin", record(3, 'a') + record(9, 'b')),
                                                    directory.write("2.bin", record(0, 'c'))};
  const LabelledImages read = read_cifar_images(paths);
  EXPECT_EQ(read.count, 3);
  EXPECT_EQ(read.pixels.size(), 3U * 3072);
  EXPECT_EQ(read.pixels[3072], 'b');
  EXPECT_EQ(read.labels, (std::vector<int64_t>{3, 9, 0}));
  const std::vector<std::filesystem::path> cut = {directory.write("3.bin", record(3, 'a') + "x")};
  EXPECT_NE(refusal<FormatError>([&] { (void)read_cifar_images(cut); }).find("has 3,074 bytes, expected a multiple of 3073"),
            std::string::npos);
  const std::vector<std::filesystem::path> wrong = {directory.write("4.bin", record(10, 'a'))};
  EXPECT_NE(refusal<FormatError>([&] { (void)read_cifar_images(wrong); }).find("label 10 at byte 0, expected 0 to 9"),
            std::string::npos);
}

}  // namespace
}  // namespace raffia::internal
