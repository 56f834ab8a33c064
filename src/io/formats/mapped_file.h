// A memory-mapped file: the system reads pages on demand, and processes that map the same file share them.
#ifndef RAFFIA_IO_FORMATS_MAPPED_FILE_H_
#define RAFFIA_IO_FORMATS_MAPPED_FILE_H_

#include <cstddef>
#include <filesystem>
#include <span>

#include "core/sibling_api.h"
#include "io/formats/file.h"

namespace raffia::internal {

class RAFFIA_SIBLING_API MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);  // a regular file; throws IoError
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Valid as long as this object exists and the file is not truncated: replace files by renaming, never in place.
  std::span<const std::byte> bytes() const { return bytes_; }

  // Whether the file is unchanged since it was mapped: its size and modification time. Replacing it by renaming another file does
  // not matter.
  bool has_its_size() const { return file_.size() == version_.size; }
  bool is_untouched() const { return file_.version() == version_; }

 private:
  File file_;
  FileVersion version_;
  std::span<const std::byte> bytes_;
  size_t slot_;  // in the list that the handler of SIGBUS reads
};

// From now on, reading a missing page of a truncated mapped file ends the process with exit code 1 and one line on stderr that
// begins with `program` and names the file, instead of SIGBUS. Other faults are not changed. For commands only; a library leaves
// signals to its user. `program` must live as long as the process.
void exit_where_mapped_files_are_cut(const char* program);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_FORMATS_MAPPED_FILE_H_
