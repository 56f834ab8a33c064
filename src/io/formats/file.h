// Reads files, and replaces them so that a crash or a full disk never leaves a partial file. All throw IoError, which names the
// path and the reason given by the system.
#ifndef RAFFIA_IO_FORMATS_FILE_H_
#define RAFFIA_IO_FORMATS_FILE_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include "core/sibling_api.h"

struct stat;

namespace raffia::internal {

// Detects changes of a file: its size, and the time of its last modification in nanoseconds.
struct FileVersion {
  uint64_t size = 0;
  int64_t seconds = 0, nanoseconds = 0;
  bool operator==(const FileVersion&) const = default;
};

// An open file, closed by the destructor.
class RAFFIA_SIBLING_API File {
 public:
  // Only regular files: others, such as a pipe without a writer, are an error instead of blocking.
  static File open_to_read(const std::filesystem::path& path);

  // `flags` of open(2); `action` names what failed: "cannot <action>".
  File(std::filesystem::path path, int flags, std::string_view action);
  File(std::filesystem::path path, int descriptor) : path_(std::move(path)), fd_(descriptor) {}  // takes ownership
  File(File&& other) noexcept;
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  uint64_t size() const;          // of a regular file; others are refused
  uint64_t size_on_disk() const;  // less than size() if it has holes or is compressed
  // Throws FormatError for a large file hardly any of which is on disk: reading the hole would take memory for all of it.
  void require_stored(std::string_view expected) const;  // "..., not {expected}"
  FileVersion version() const;
  size_t read(std::span<std::byte> bytes);                        // returns the number of bytes read, at most bytes.size()
  size_t read_at(uint64_t at, std::span<std::byte> bytes) const;  // likewise, from byte `at`; several threads may
  void write(std::span<const std::byte> bytes);
  void write_at(uint64_t at, std::span<const std::byte> bytes);  // overwrites bytes that were written
  void sync();
  int descriptor() const { return fd_; }

 private:
  struct stat status() const;

  std::filesystem::path path_;
  int fd_;
};

// A temporary file or directory with a name that only this process uses, until it is renamed or removed. It is locked (flock) as
// long as its process runs. So leftovers of killed processes can be distinguished from files in use, also on other hosts if the
// file system shares locks. The first entry that a process makes in a directory removes such leftovers there.
//
// Names are ".raffia-PID-N.tmp", or ".OWNER.raffia-PID-N.tmp" with `owner`.
class RAFFIA_SIBLING_API TemporaryEntry {
 public:
  enum class Kind : uint8_t { file, directory };

  // A file is readable by its owner only, and open for writing.
  TemporaryEntry(const std::filesystem::path& directory, Kind kind, std::string_view owner = "");
  ~TemporaryEntry();  // removes what was not moved
  TemporaryEntry(const TemporaryEntry&) = delete;
  TemporaryEntry& operator=(const TemporaryEntry&) = delete;

  const std::filesystem::path& path() const { return path_; }
  File& file() { return file_; }                      // of a directory: only for its lock and sync()
  void move_to(const std::filesystem::path& target);  // throws IoError; may then be called again

 private:
  explicit TemporaryEntry(std::pair<std::filesystem::path, File> made)
      : path_(std::move(made.first)), file_(std::move(made.second)) {}
  static std::pair<std::filesystem::path, File> make(const std::filesystem::path& directory, Kind kind, std::string_view owner);

  std::filesystem::path path_;
  File file_;
  bool moved_ = false;
};

// Replaces a file atomically: writes a temporary file in the directory of the target, syncs it and renames it.
//
//   ReplacementFile file(path);
//   file.write(header);
//   file.write(payload);
//   file.commit();
//
// Without commit(), the target is not changed and the temporary file is removed. Only its owner can read it before
// commit(); then it has the permissions of the file that it replaces, or those of a new file.
class RAFFIA_SIBLING_API ReplacementFile {
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

// Syncs a directory: without this, new names in it may be lost in a crash.
RAFFIA_SIBLING_API void sync_names(const std::filesystem::path& directory);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_FORMATS_FILE_H_
