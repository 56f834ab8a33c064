#include "io/formats/text.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "core/message.h"
#include "io/formats/compressed.h"
#include "raffia/error.h"
#include "support/compressed_text.h"
#include "support/refusal.h"
#include "support/temporary_directory.h"

namespace raffia::internal {
namespace {

// The borders of Table 3-7 of the Unicode standard.
TEST(Text, FirstByteThatIsNotTextIsFound) {
  EXPECT_EQ(first_byte_not_text("plain, \xC3\xA9, \xE2\x82\xAC, \xF0\x9F\x8C\xB1\n"), std::nullopt);
  EXPECT_EQ(first_byte_not_text("\xC2\x80 \xDF\xBF \xE0\xA0\x80 \xED\x9F\xBF \xEE\x80\x80 \xEF\xBF\xBF"), std::nullopt);
  EXPECT_EQ(first_byte_not_text("\xF0\x90\x80\x80 \xF4\x8F\xBF\xBF"), std::nullopt);
  EXPECT_EQ(first_byte_not_text("ab\x80"), 2U);              // a continuation alone
  EXPECT_EQ(first_byte_not_text("ab\xC1\xBF"), 2U);          // overlong
  EXPECT_EQ(first_byte_not_text("ab\xE0\x9F\xBF"), 2U);      // overlong
  EXPECT_EQ(first_byte_not_text("ab\xED\xA0\x80"), 2U);      // a surrogate
  EXPECT_EQ(first_byte_not_text("ab\xF0\x8F\xBF\xBF"), 2U);  // overlong
  EXPECT_EQ(first_byte_not_text("ab\xF4\x90\x80\x80"), 2U);  // above U+10FFFF
  EXPECT_EQ(first_byte_not_text("ab\xE2\x82"), 2U);          // cut off
  EXPECT_EQ(first_byte_not_text("ab\xE2\x82z"), 2U);
  EXPECT_EQ(first_byte_not_text(std::string_view("ab\0c", 4)), 2U);
}

TEST(Text, FileThatDoesNotFitIntoMemoryIsRefusedByName) {
  const TemporaryDirectory directory("text_test");
  const auto large = directory.write("large.txt", std::string(uint64_t{1} << 25, 'a'));
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
  GTEST_SKIP() << "sanitizers end the program where an allocation is too large";
#endif
#endif
  const auto read_without_memory = [&large] {
    const rlimit none{1, 1};  // no more than the process has already
    ::setrlimit(RLIMIT_AS, &none);
    write_message(refusal<IoError>([&large] { (void)read_text_file(large); }));
    std::_Exit(0);
  };
  EXPECT_EXIT(read_without_memory(), testing::ExitedWithCode(0),
              "large.txt: has 33,554,432 bytes, for which there is not enough memory");
}

TEST(Text, CompressedFileThatDoesNotFitIntoMemoryIsRefusedByName) {
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
  GTEST_SKIP() << "sanitizers end the program where an allocation is too large";
#endif
#endif
  constexpr size_t kMembers = size_t{2} << 20;  // of 10 bytes each when decompressed
  std::string members;
  for (size_t i = 0; i < kMembers; ++i) members += kGzip;
  const auto decompress_without_memory = [&members] {
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t size = pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE)) + (size_t{16} << 20);
    const rlimit little{size, size};
    ::setrlimit(RLIMIT_AS, &little);
    write_message(refusal<IoError>([&members] { (void)decompressed(std::move(members), "large.gz", uint64_t{1} << 33); }));
    std::_Exit(0);
  };
  EXPECT_EXIT(decompress_without_memory(), testing::ExitedWithCode(0),
              "large.gz: is more than [0-9,]+ bytes when decompressed, for which there is not enough memory");
}

TEST(Text, HoleOfManyGigabytesIsNotRead) {
  const TemporaryDirectory directory("text_test");
  const auto hole = directory.write("hole.txt", "begin");
  std::filesystem::resize_file(hole, uint64_t{40} << 30);
  for (const auto& read : {read_text_file, read_text_bytes}) {
    const std::string said = refusal<FormatError>([&] { (void)read(hole); });
    EXPECT_TRUE(said.starts_with(hole.string() + ": has 42949672960 bytes, of which ")) << said;
    EXPECT_TRUE(said.ends_with(" are on disk: the rest is a hole, not data")) << said;
  }
  EXPECT_EQ(refusal<FormatError>([&] { (void)read_data_file(hole, 1000); }),
            hole.string() + ": has 42,949,672,960 bytes, expected at most 1,000");
}

TEST(Text, LimitOfDataIsThatOfTheFileToo) {
  const TemporaryDirectory directory("text_test");
  const auto file = directory.write("data", "0123456789");
  EXPECT_EQ(read_data_file(file, 10), "0123456789");
  EXPECT_EQ(refusal<FormatError>([&] { (void)read_data_file(file, 9); }), file.string() + ": has 10 bytes, expected at most 9");
}

TEST(Text, FileThatIsNotTextIsRefusedByNameAndPlace) {
  const TemporaryDirectory directory("text_test");
  const auto bad = directory.write("bad.txt", std::string(1024, 'a') + "\xFF");
  EXPECT_EQ(refusal<FormatError>([&] { (void)read_text_file(bad); }),
            bad.string() + ": byte 1,024 is not UTF-8 text: is this a binary file? (--tokenizer byte takes any bytes)");
  const auto empty = directory.write("empty.txt", "");
  EXPECT_EQ(refusal<FormatError>([&] { (void)read_text_file(empty); }), empty.string() + ": is empty, expected text");
  EXPECT_THROW((void)read_text_file(directory.path() / "none.txt"), IoError);
  EXPECT_THROW((void)read_text_file(directory.path()), IoError);
  EXPECT_EQ(read_text_file(directory.write("good.txt", "two\nlines\n")), "two\nlines\n");
}

TEST(Text, ExtensionOfACompressedFileIsTheOneBefore) {
  EXPECT_EQ(data_extension("a/b.PGM"), ".pgm");
  EXPECT_EQ(data_extension("a.b/c.pgm.xz"), ".pgm");
  EXPECT_EQ(data_extension("c.Npy.GZ"), ".npy");
  EXPECT_EQ(data_extension("a.pgm/images-idx3-ubyte.gz"), "");
  EXPECT_EQ(data_extension("c.gz.txt"), ".txt");
}

TEST(Text, LinesEndAtEitherEnd) {
  const std::vector<std::string_view> expected = {"a", "", "b c", "d"};
  EXPECT_EQ(lines_of("a\n\nb c\r\nd"), expected);
  EXPECT_EQ(lines_of("a\n\nb c\r\nd\n"), expected);
  EXPECT_TRUE(lines_of("").empty());
}

TEST(Text, EndsBeforeACharacterThatIsCutOff) {
  const std::string text = "a\u00e9\u2581\U0001F33Fz";  // characters of 1, 2, 3, 4 and 1 bytes
  const size_t ends[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11};
  for (size_t size = 0; size <= text.size(); ++size) {
    EXPECT_EQ(end_of_whole_characters(std::string_view(text).substr(0, size)), ends[size]) << size;
  }
  EXPECT_EQ(end_of_whole_characters("\x81\x81\x81\x81"), 4U);  // no character begins here
}

TEST(Text, NumbersAreGroupedByThousands) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1024), "1,024");
  EXPECT_EQ(grouped(123456789), "123,456,789");
}

}  // namespace
}  // namespace raffia::internal
