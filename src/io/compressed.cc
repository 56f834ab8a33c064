#include "io/compressed.h"

#include <fmt/format.h>
#include <lzma.h>
#include <zlib.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "io/text.h"
#include "raffia/error.h"

namespace raffia {
namespace {

constexpr std::string_view kGzipMagic = "\x1F\x8B";
constexpr std::string_view kXzMagic(
    "\xFD"
    "7zXZ\0",
    6);
constexpr size_t kPiece = size_t{1} << 20;

// Output that grows piece by piece, up to a limit.
class Output {
 public:
  Output(std::string_view where, uint64_t limit) : where_(where), limit_(limit), piece_(kPiece) {}

  unsigned char* piece() { return piece_.data(); }

  void add(size_t size) {
    if (size > limit_ - bytes_.size()) {
      throw FormatError(fmt::format("{}: is more than {} bytes when decompressed", where_, grouped(limit_)));
    }
    bytes_.append(reinterpret_cast<const char*>(piece_.data()), size);
  }

  std::string take() { return std::move(bytes_); }

 private:
  std::string_view where_;
  uint64_t limit_;
  std::vector<unsigned char> piece_;
  std::string bytes_;
};

[[noreturn]] void refuse(std::string_view where, std::string_view format, size_t at, std::string_view why) {
  throw FormatError(fmt::format("{}: is not sound {} at byte {}: {}", where, format, grouped(at), why));
}

std::string from_gzip(std::string_view bytes, std::string_view where, uint64_t limit) {
  struct Inflater {
    z_stream stream = {};
    Inflater() {
      if (inflateInit2(&stream, 15 + 16) != Z_OK) throw Error("zlib: cannot start");  // 16: gzip, not zlib
    }
    ~Inflater() { inflateEnd(&stream); }
  } inflater;
  z_stream& stream = inflater.stream;
  Output output(where, limit);
  size_t at = 0;
  bool ended = false;
  while (true) {
    if (stream.avail_in == 0 && at < bytes.size()) {  // zlib counts in 32 bits
      const size_t count = std::min(bytes.size() - at, kPiece);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + at));
      stream.avail_in = static_cast<uInt>(count);
      at += count;
    }
    const size_t place = at - stream.avail_in;
    if (ended) {
      if (stream.avail_in == 0) return output.take();
      if (inflateReset(&stream) != Z_OK) throw Error("zlib: cannot start again");
    }
    stream.next_out = output.piece();
    stream.avail_out = static_cast<uInt>(kPiece);
    const int result = inflate(&stream, Z_NO_FLUSH);
    output.add(kPiece - stream.avail_out);
    ended = result == Z_STREAM_END;
    if (result == Z_BUF_ERROR && stream.avail_in == 0 && at == bytes.size()) refuse(where, "gzip", at, "it is cut off");
    if (!ended && result != Z_OK && result != Z_BUF_ERROR) refuse(where, "gzip", place, stream.msg ? stream.msg : "damaged");
  }
}

std::string from_xz(std::string_view bytes, std::string_view where, uint64_t limit) {
  struct Decoder {
    lzma_stream stream = LZMA_STREAM_INIT;
    Decoder() {
      constexpr uint64_t kMemory = uint64_t{1} << 30;  // the largest preset of xz takes 65 MB
      if (lzma_stream_decoder(&stream, kMemory, LZMA_CONCATENATED) != LZMA_OK) throw Error("liblzma: cannot start");
    }
    ~Decoder() { lzma_end(&stream); }
  } decoder;
  lzma_stream& stream = decoder.stream;
  Output output(where, limit);
  stream.next_in = reinterpret_cast<const uint8_t*>(bytes.data());
  stream.avail_in = bytes.size();
  while (true) {
    stream.next_out = output.piece();
    stream.avail_out = kPiece;
    const lzma_ret result = lzma_code(&stream, LZMA_FINISH);
    output.add(kPiece - stream.avail_out);
    if (result == LZMA_STREAM_END) return output.take();
    const size_t place = bytes.size() - stream.avail_in;
    if (result == LZMA_BUF_ERROR) refuse(where, "xz", place, "it is cut off");
    if (result == LZMA_MEMLIMIT_ERROR) refuse(where, "xz", place, "it needs more than 1 GB of memory");
    if (result != LZMA_OK) refuse(where, "xz", place, "damaged");
  }
}

}  // namespace

std::string decompressed(std::string bytes, std::string_view where, uint64_t limit) {
  if (bytes.starts_with(kGzipMagic)) return from_gzip(bytes, where, limit);
  if (bytes.starts_with(kXzMagic)) return from_xz(bytes, where, limit);
  return bytes;
}

}  // namespace raffia
