// A file as memory: read by the system page by page when it is used, and shared between the processes that map it.
#ifndef RAFFIA_IO_MAPPED_FILE_H_
#define RAFFIA_IO_MAPPED_FILE_H_

#include <cstddef>
#include <filesystem>
#include <span>

#include "io/file.h"

namespace raffia {

class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);  // a regular file; throws IoError
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Valid as long as this lives, and as long as nobody shortens the file: replace files by renaming, never in place.
  std::span<const std::byte> bytes() const { return bytes_; }

  // Whether the file is as it was when it was mapped: its size, and whether somebody wrote to it (or touched it). Another file
  // that was renamed over it does not matter.
  bool has_its_size() const { return file_.size() == version_.size; }
  bool is_untouched() const { return file_.version() == version_; }

 private:
  File file_;
  FileVersion version_;
  std::span<const std::byte> bytes_;
  size_t slot_;  // in the list that the handler of SIGBUS reads
};

// From now on, reading a page of a mapped file that was cut short ends the process with exit code 1 and one line on stderr that
// begins with `program` and names the file, instead of SIGBUS. Other faults stay what they were. For commands; a library leaves
// signals to its user. `program` must live as long as the process.
void exit_where_mapped_files_are_cut(const char* program);

}  // namespace raffia

#endif  // RAFFIA_IO_MAPPED_FILE_H_
