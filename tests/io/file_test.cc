#include "io/formats/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <set>
#include <string>

#include "io/formats/mapped_file.h"
#include "raffia/error.h"
#include "support/temporary_directory.h"

namespace raffia::internal {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.insert(entry.path().filename());
  return names;
}

unsigned mode_of(const fs::path& path) { return static_cast<unsigned>(fs::status(path).permissions()); }

void replace(const fs::path& path, std::string_view text) {
  ReplacementFile file(path);
  file.write(bytes_of(text));
  file.commit();
}

TEST(ReplacementFile, NobodyElseCanReadItBeforeItIsComplete) {
  const TemporaryDirectory directory("file_test");
  const mode_t mask = ::umask(0022);
  {
    ReplacementFile file(directory.path() / "new");
    file.write(bytes_of("secret"));
    const std::set<std::string> names = names_in(directory.path());
    ASSERT_EQ(names.size(), 1U);
    EXPECT_EQ(mode_of(directory.path() / *names.begin()), 0600U);
    file.commit();
  }
  EXPECT_EQ(mode_of(directory.path() / "new"), 0644U);
  ::umask(0027);
  replace(directory.path() / "narrow", "x");
  EXPECT_EQ(mode_of(directory.path() / "narrow"), 0640U);
  ::umask(mask);
}

TEST(ReplacementFile, HasThePermissionsOfWhatItReplaces) {
  const TemporaryDirectory directory("file_test");
  const fs::path path = directory.write("kept", "old");
  for (const unsigned mode : {0600U, 0664U, 0755U}) {
    fs::permissions(path, static_cast<fs::perms>(mode));
    replace(path, "new");
    EXPECT_EQ(mode_of(path), mode);
  }
}

TEST(ReplacementFile, LeavesNothingWithoutCommit) {
  const TemporaryDirectory directory("file_test");
  directory.write("kept", "old");
  {
    ReplacementFile file(directory.path() / "kept");
    file.write(bytes_of("new"));
  }
  EXPECT_EQ(names_in(directory.path()), std::set<std::string>{"kept"});
  EXPECT_THROW(ReplacementFile(directory.path() / "missing" / "file"), IoError);
}

// What killed processes left is removed; what is locked, or has another name, stays.
TEST(TemporaryEntry, SweepsWhatKilledProcessesLeft) {
  const TemporaryDirectory directory("file_sweep_test");
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const ReplacementFile file(directory.path() / "model");
    const TemporaryEntry other(directory.path(), TemporaryEntry::Kind::directory, "model");
    (void)!::write(ready[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(names_in(directory.path()).size(), 2U);
  for (const char* name : {".raffia-12.tmp", ".raffia-x-1.tmp", "raffia-1-1.tmp", ".raffia-1-1.tmp.txt", ".raffia-12-.tmp"}) {
    directory.write(name, "somebody's");
  }
  const std::set<std::string> all = names_in(directory.path());
  // Its process lives: another one that writes there removes nothing.
  const pid_t writer = ::fork();
  if (writer == 0) {
    replace(directory.path() / "saved", "x");
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(writer, &status, 0);
  ASSERT_EQ(status, 0);
  std::set<std::string> expected = all;
  expected.insert("saved");
  EXPECT_EQ(names_in(directory.path()), expected);

  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(names_in(directory.path()), expected);
  replace(directory.path() / "saved", "y");
  EXPECT_EQ(names_in(directory.path()), (std::set<std::string>{".raffia-12.tmp", ".raffia-x-1.tmp", "raffia-1-1.tmp",
                                                               ".raffia-1-1.tmp.txt", ".raffia-12-.tmp", "saved"}));
}

TEST(MappedFile, KnowsWhetherItsFileChanged) {
  const TemporaryDirectory directory("file_test");
  const fs::path path = directory.write("weights", std::string(10000, 'w'));
  const MappedFile mapped(path);
  EXPECT_TRUE(mapped.is_untouched());
  // Another file under its name is not its file.
  replace(path, "other");
  EXPECT_TRUE(mapped.is_untouched());
  EXPECT_EQ(mapped.bytes()[9999], std::byte{'w'});

  const fs::path second = directory.write("second", std::string(10000, 'w'));
  const MappedFile changed(second);
  fs::last_write_time(second, fs::last_write_time(second) + std::chrono::seconds(1));
  EXPECT_FALSE(changed.is_untouched());
  EXPECT_TRUE(changed.has_its_size());
  fs::resize_file(second, 5000);
  EXPECT_FALSE(changed.has_its_size());
}

TEST(MappedFileDeathTest, AFileThatIsCutShortIsNamedInOneLine) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const TemporaryDirectory directory("file_test");
  const fs::path path = directory.write("weights", std::string(100000, 'w'));
  EXPECT_EXIT(
      {
        exit_where_mapped_files_are_cut("raffia");
        const MappedFile mapped(path);
        fs::resize_file(path, 10);
        volatile std::byte lost = mapped.bytes()[90000];
        (void)lost;
      },
      testing::ExitedWithCode(1), "raffia: .*weights: was truncated while it was memory-mapped");
}

}  // namespace
}  // namespace raffia::internal
