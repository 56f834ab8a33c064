// A file as memory: read by the system page by page when it is used, and shared between the processes that map it.
#ifndef RAFFIA_IO_MAPPED_FILE_H_
#define RAFFIA_IO_MAPPED_FILE_H_

#include <cstddef>
#include <filesystem>
#include <span>

namespace raffia {

class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);  // a regular file; throws IoError
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Valid as long as this lives, and as long as nobody shortens the file: replace files by renaming, never in place.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace raffia

#endif  // RAFFIA_IO_MAPPED_FILE_H_
