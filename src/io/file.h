// Files: reading them, and replacing them so that a crash or a full disk never leaves half of one. All throw IoError that names
// the path and the system's reason.
#ifndef RAFFIA_IO_FILE_H_
#define RAFFIA_IO_FILE_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

struct stat;

namespace raffia {

// What changes with the contents of a file: its size, and the time of its last change in nanoseconds.
struct FileVersion {
  uint64_t size = 0;
  int64_t seconds = 0, nanoseconds = 0;
  bool operator==(const FileVersion&) const = default;
};

// An open file, closed at the end of its life.
class File {
 public:
  // Only regular files: a pipe without a writer does not block, it is refused.
  static File open_to_read(const std::filesystem::path& path);

  // `flags` of open(2); `action` names what failed: "cannot <action>".
  File(std::filesystem::path path, int flags, std::string_view action);
  File(std::filesystem::path path, int descriptor) : path_(std::move(path)), fd_(descriptor) {}  // closes it in the end
  File(File&& other) noexcept;
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  uint64_t size() const;          // of a regular file; others are refused
  uint64_t size_on_disk() const;  // less than size() where it has holes or is compressed
  FileVersion version() const;
  size_t read(std::span<std::byte> bytes);                        // as many bytes as there are, at most bytes.size()
  size_t read_at(uint64_t at, std::span<std::byte> bytes) const;  // likewise, from byte `at`; several threads may
  void write(std::span<const std::byte> bytes);
  void write_at(uint64_t at, std::span<const std::byte> bytes);  // over bytes that were written
  void sync();
  int descriptor() const { return fd_; }

 private:
  struct stat status() const;

  std::filesystem::path path_;
  int fd_;
};

// A file or directory under a name that only this process uses, until it is renamed or removed. It is locked (flock) as long as
// its process lives: so what a killed process left behind can be told from what is being written, on other hosts too where the
// file system shares locks. The first one that a process makes in a directory sweeps away what others left there.
//
// Names are ".raffia-PID-N.tmp", or ".OWNER.raffia-PID-N.tmp" with `owner`.
class TemporaryEntry {
 public:
  enum class Kind : uint8_t { file, directory };

  // A file is readable by its owner alone, and open to write.
  TemporaryEntry(const std::filesystem::path& directory, Kind kind, std::string_view owner = "");
  ~TemporaryEntry();  // removes what was not moved
  TemporaryEntry(const TemporaryEntry&) = delete;
  TemporaryEntry& operator=(const TemporaryEntry&) = delete;

  const std::filesystem::path& path() const { return path_; }
  File& file() { return file_; }                      // of a directory: good for its lock and for sync()
  void move_to(const std::filesystem::path& target);  // throws IoError, and may be called again then

 private:
  explicit TemporaryEntry(std::pair<std::filesystem::path, File> made)
      : path_(std::move(made.first)), file_(std::move(made.second)) {}
  static std::pair<std::filesystem::path, File> make(const std::filesystem::path& directory, Kind kind, std::string_view owner);

  std::filesystem::path path_;
  File file_;
  bool moved_ = false;
};

// A file in the making: written aside in the directory of its target, and moved there when it is complete and on disk.
//
//   ReplacementFile file(path);
//   file.write(header);
//   file.write(payload);
//   file.commit();
//
// Without commit(), the target stays as it was and nothing is left beside it. Nobody but its owner can read it before commit();
// then it has the permissions of the file that it replaces, or those of any new file.
class ReplacementFile {
 public:
  explicit ReplacementFile(const std::filesystem::path& target);
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;

  void write(std::span<const std::byte> bytes) { aside_.file().write(bytes); }  // appends
  void write_at(uint64_t at, std::span<const std::byte> bytes) { aside_.file().write_at(at, bytes); }
  void commit();

 private:
  std::filesystem::path target_;
  TemporaryEntry aside_;
};

// New names in a directory are on disk only once this is done.
void sync_names(const std::filesystem::path& directory);

}  // namespace raffia

#endif  // RAFFIA_IO_FILE_H_
