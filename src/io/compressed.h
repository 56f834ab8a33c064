// Compressed files, as data come: gzip and xz, known by their first bytes.
#ifndef RAFFIA_IO_COMPRESSED_H_
#define RAFFIA_IO_COMPRESSED_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace raffia {

// What the bytes were before they were compressed; bytes of neither format as they are. Several compressed streams in a row are
// one. Throws FormatError for what is damaged, cut off, or larger than `limit` bytes.
std::string decompressed(std::string bytes, std::string_view where, uint64_t limit = uint64_t{1} << 36);

}  // namespace raffia

#endif  // RAFFIA_IO_COMPRESSED_H_
