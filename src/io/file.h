// Files: reading them, and replacing them so that a crash or a full disk never leaves half of one. All throw IoError that names
// the path and the system's reason.
#ifndef RAFFIA_IO_FILE_H_
#define RAFFIA_IO_FILE_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace raffia {

// An open file, closed at the end of its life.
class File {
 public:
  // Only regular files: a pipe without a writer does not block, it is refused.
  static File open_to_read(const std::filesystem::path& path);

  // `flags` of open(2); `action` names what failed: "cannot <action>".
  File(std::filesystem::path path, int flags, std::string_view action);
  File(File&& other) noexcept;
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  uint64_t size() const;                                          // of a regular file; others are refused
  size_t read(std::span<std::byte> bytes);                        // as many bytes as there are, at most bytes.size()
  size_t read_at(uint64_t at, std::span<std::byte> bytes) const;  // likewise, from byte `at`; several threads may
  void write(std::span<const std::byte> bytes);
  void write_at(uint64_t at, std::span<const std::byte> bytes);  // over bytes that were written
  void sync();
  void close();  // for those who want to hear of errors
  int descriptor() const { return fd_; }

 private:
  std::filesystem::path path_;
  int fd_;
};

// A file in the making: written aside in the directory of its target, and moved there when it is complete and on disk.
//
//   ReplacementFile file(path);
//   file.write(header);
//   file.write(payload);
//   file.commit();
//
// Without commit(), the target stays as it was and nothing is left beside it.
class ReplacementFile {
 public:
  explicit ReplacementFile(const std::filesystem::path& target);
  ~ReplacementFile();
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;

  void write(std::span<const std::byte> bytes) { file_.write(bytes); }  // appends
  void write_at(uint64_t at, std::span<const std::byte> bytes) { file_.write_at(at, bytes); }
  void commit();

 private:
  std::filesystem::path target_, aside_;
  File file_;
  bool moved_ = false;
};

}  // namespace raffia

#endif  // RAFFIA_IO_FILE_H_
