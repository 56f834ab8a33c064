// Compressed data, as files come: gzip and xz, known by their first bytes.
#ifndef RAFFIA_IO_COMPRESSED_H_
#define RAFFIA_IO_COMPRESSED_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace raffia {

enum class Compression : uint8_t { none, gzip, xz };

// By the first bytes of the data. Nothing: too few bytes to tell; once there are no more (`at_end`), it is always told.
std::optional<Compression> compression_of(std::string_view first_bytes, bool at_end);
constexpr size_t kBytesThatTellCompression = 6;  // are enough

// Compressed bytes in, what they were before out, in memory of constant size. Several compressed streams in a row are one.
// Throws FormatError, which begins with `where`, for what is damaged or cut off.
class Decompressor {
 public:
  Decompressor(Compression compression, std::string where);  // gzip or xz
  ~Decompressor();
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  // Takes bytes from the front of `input` and appends at most `most` bytes to `output`. `at_end`: nothing comes after `input`.
  // True: that was all. False without output: more input is needed.
  bool run(std::string_view& input, bool at_end, std::string& output, size_t most);

 private:
  class Stream;
  class Gzip;
  class Xz;
  std::unique_ptr<Stream> stream_;
};

// What the bytes were before they were compressed; bytes of neither format as they are. Throws FormatError for what is damaged,
// cut off, or larger than `limit` bytes when decompressed.
std::string decompressed(std::string bytes, std::string_view where, uint64_t limit);

}  // namespace raffia

#endif  // RAFFIA_IO_COMPRESSED_H_
