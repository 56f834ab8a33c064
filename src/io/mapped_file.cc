#include "io/mapped_file.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "io/file.h"
#include "raffia/error.h"

namespace raffia {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const File file = File::open_to_read(path);
  const uint64_t size = file.size();
  if (size == 0) return;  // there is no such mapping
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (memory == MAP_FAILED) throw IoError(fmt::format("{}: cannot map: {}", path.string(), std::strerror(errno)));
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());  // NOLINT: as munmap is declared
}

}  // namespace raffia
