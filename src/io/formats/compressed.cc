#include "io/formats/compressed.h"

#include <fmt/format.h>
#include <lzma.h>
#include <zlib.h>

#include <algorithm>
#include <new>
#include <span>
#include <utility>

#include "core/check.h"
#include "io/formats/text.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

struct Format {
  Compression compression;
  std::string_view name;
  std::string_view magic;
};

// bzip2: its size of blocks (1 to 9) and the first bytes of a block are part of what is compared, since "BZh" may begin a text.
constexpr Format kFormats[] = {
    {Compression::gzip, "gzip", "\x1F\x8B"},         {Compression::xz, "xz", std::string_view("\xFD\x37zXZ\0", 6)},
    {Compression::zstd, "zstd", "\x28\xB5\x2F\xFD"}, {Compression::zip, "zip", "PK\x03\x04"},
    {Compression::bzip2, "bzip2", "BZh11AY&SY"},     {Compression::bzip2, "bzip2", "BZh21AY&SY"},
    {Compression::bzip2, "bzip2", "BZh31AY&SY"},     {Compression::bzip2, "bzip2", "BZh41AY&SY"},
    {Compression::bzip2, "bzip2", "BZh51AY&SY"},     {Compression::bzip2, "bzip2", "BZh61AY&SY"},
    {Compression::bzip2, "bzip2", "BZh71AY&SY"},     {Compression::bzip2, "bzip2", "BZh81AY&SY"},
    {Compression::bzip2, "bzip2", "BZh91AY&SY"},
};
constexpr size_t kPiece = size_t{1} << 20;

}  // namespace

std::optional<Compression> compression_of(std::string_view first_bytes, bool at_end) {
  for (const Format& format : kFormats) {
    if (first_bytes.starts_with(format.magic)) return format.compression;
    if (!at_end && format.magic.starts_with(first_bytes)) return {};
  }
  return Compression::none;
}

class Decompressor::Stream {
 public:
  Stream(std::string where, std::string_view format) : where_(std::move(where)), format_(format) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  bool run(std::string_view& input, bool at_end, std::string& output, size_t max) {
    const size_t before = output.size(), given = input.size();
    output.resize(before + max);
    size_t made = 0;
    const bool ended = decode(input, at_end, std::span(output).subspan(before), made);
    output.resize(before + made);
    taken_ += given - input.size();
    if (!ended && at_end && input.empty() && made == 0) refuse("it is truncated");
    return ended;
  }

 protected:
  // As Decompressor::run; `made`: bytes of `output` that were written.
  virtual bool decode(std::string_view& input, bool at_end, std::span<char> output, size_t& made) = 0;

  [[noreturn]] void refuse(std::string_view why) const {
    throw FormatError(fmt::format("{}: is not valid {} at byte {}: {}", where_, format_, grouped(taken_), why));
  }

 private:
  std::string where_;
  std::string_view format_;
  uint64_t taken_ = 0;
};

class Decompressor::Gzip : public Stream {
 public:
  explicit Gzip(std::string where) : Stream(std::move(where), "gzip") {
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) throw Error("zlib: cannot start");  // 16: gzip, not zlib
  }
  ~Gzip() override { inflateEnd(&stream_); }

 private:
  bool decode(std::string_view& input, bool at_end, std::span<char> output, size_t& made) override {
    while (made < output.size() && !(between_members_ && input.empty())) {
      if (between_members_ && inflateReset(&stream_) != Z_OK) throw Error("zlib: cannot start again");
      // zlib counts in 32 bits.
      const size_t in = std::min(input.size(), kPiece), out = std::min(output.size() - made, kPiece);
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.data()));  // NOLINT: as zlib declares it
      stream_.avail_in = static_cast<uInt>(in);
      stream_.next_out = reinterpret_cast<Bytef*>(output.data() + made);
      stream_.avail_out = static_cast<uInt>(out);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      const size_t taken = in - stream_.avail_in, given = out - stream_.avail_out;
      input.remove_prefix(taken);
      made += given;
      if (result == Z_MEM_ERROR) throw std::bad_alloc();
      between_members_ = result == Z_STREAM_END;
      if (!between_members_ && result != Z_OK && result != Z_BUF_ERROR) {
        refuse(stream_.msg != nullptr ? stream_.msg : "damaged");
      }
      if (taken == 0 && given == 0) break;
    }
    return at_end && between_members_ && input.empty();
  }

  z_stream stream_ = {};
  bool between_members_ = false;
};

class Decompressor::Xz : public Stream {
 public:
  explicit Xz(std::string where) : Stream(std::move(where), "xz") {
    constexpr uint64_t kMemory = uint64_t{1} << 27;  // the largest preset of xz takes 65 MB
    if (lzma_stream_decoder(&stream_, kMemory, LZMA_CONCATENATED) != LZMA_OK) throw Error("liblzma: cannot start");
  }
  ~Xz() override { lzma_end(&stream_); }

 private:
  bool decode(std::string_view& input, bool at_end, std::span<char> output, size_t& made) override {
    stream_.next_in = reinterpret_cast<const uint8_t*>(input.data());
    stream_.avail_in = input.size();
    stream_.next_out = reinterpret_cast<uint8_t*>(output.data());
    stream_.avail_out = output.size();
    const lzma_ret result = lzma_code(&stream_, at_end ? LZMA_FINISH : LZMA_RUN);
    input.remove_prefix(input.size() - stream_.avail_in);
    made = output.size() - stream_.avail_out;
    if (result == LZMA_STREAM_END) return true;
    if (result == LZMA_MEM_ERROR) throw std::bad_alloc();
    if (result == LZMA_MEMLIMIT_ERROR) refuse("it needs more than 128 MiB of memory to decompress");
    if (result != LZMA_OK && result != LZMA_BUF_ERROR) refuse("damaged");  // BUF_ERROR: no progress
    return false;
  }

  lzma_stream stream_ = LZMA_STREAM_INIT;
};

Decompressor::Decompressor(Compression compression, std::string where) {
  require(compression != Compression::none, "Decompressor: {} is not compressed", where);
  if (compression == Compression::gzip) {
    stream_ = std::make_unique<Gzip>(std::move(where));
  } else if (compression == Compression::xz) {
    stream_ = std::make_unique<Xz>(std::move(where));
  } else {
    const auto* format = std::ranges::find(kFormats, compression, &Format::compression);
    throw FormatError(
        fmt::format("{}: is compressed with {}, expected gzip (.gz), xz (.xz) or no compression", where, format->name));
  }
}

Decompressor::~Decompressor() = default;

bool Decompressor::run(std::string_view& input, bool at_end, std::string& output, size_t max) {
  return stream_->run(input, at_end, output, max);
}

std::string decompressed(std::string bytes, std::string_view where, uint64_t limit) {
  const Compression compression = *compression_of(bytes, true);
  if (compression == Compression::none) return bytes;
  Decompressor decompressor(compression, std::string(where));
  std::string output;
  std::string_view left = bytes;
  try {
    while (!decompressor.run(left, true, output, kPiece)) {
      if (output.size() > limit) break;
    }
  } catch (const std::bad_alloc&) {
    const size_t size = output.size();
    output = std::string();  // the message needs memory, too
    throw IoError(
        fmt::format("{}: is more than {} bytes when decompressed, for which there is not enough memory", where, grouped(size)));
  }
  if (output.size() > limit) {
    throw FormatError(fmt::format("{}: is more than {} bytes when decompressed", where, grouped(limit)));
  }
  return output;
}

}  // namespace raffia::internal
