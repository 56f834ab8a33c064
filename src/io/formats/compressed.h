// Compressed data, recognised by their first bytes: gzip and xz are decompressed, others are refused by name.
#ifndef RAFFIA_IO_FORMATS_COMPRESSED_H_
#define RAFFIA_IO_FORMATS_COMPRESSED_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace raffia::internal {

enum class Compression : uint8_t { none, gzip, xz, bzip2, zip, zstd };

// From the first bytes of the data. Nullopt: more bytes are needed; never at the end of the data (`at_end`).
std::optional<Compression> compression_of(std::string_view first_bytes, bool at_end);
constexpr size_t kBytesThatTellCompression = 10;  // are enough

// Decompresses in constant memory. Several compressed streams in a row are concatenated.
// Throws FormatError, which begins with `where`, for damaged or truncated data.
class Decompressor {
 public:
  // Throws FormatError for formats other than gzip and xz: models of bytes would learn them as they are.
  Decompressor(Compression compression, std::string where);
  ~Decompressor();
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  // Consumes bytes from the front of `input` and appends at most `max` bytes to `output`. `at_end`: `input` is the last part.
  // True: everything was decompressed. False without output: more input is needed.
  bool run(std::string_view& input, bool at_end, std::string& output, size_t max);

 private:
  class Stream;
  class Gzip;
  class Xz;
  std::unique_ptr<Stream> stream_;
};

// The decompressed bytes; bytes that are not compressed are returned unchanged. Throws FormatError for formats other than gzip
// and xz, and for data that are damaged, truncated, or larger than `limit` bytes when decompressed. IoError: too little memory.
std::string decompressed(std::string bytes, std::string_view where, uint64_t limit);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_FORMATS_COMPRESSED_H_
