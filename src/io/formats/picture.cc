#include "io/formats/picture.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <string>

#include "io/formats/compressed.h"
#include "io/formats/picture_decoder.h"
#include "io/formats/pnm.h"
#include "io/formats/text.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kPngBegin = "\x89PNG\r\n\x1A\n"sv, kJpegBegin = "\xFF\xD8\xFF"sv, kJpegEnd = "\xFF\xD9"sv;
constexpr uint64_t kMaxBytesOfFile = uint64_t{1} << 26;

[[noreturn]] void refuse(std::string_view where, std::string_view what) { throw FormatError(fmt::format("{}: {}", where, what)); }

uint32_t big_endian(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

// Checks all chunks and their checksums, which the decoder does not check.
void require_whole_png(std::string_view bytes, std::string_view where) {
  constexpr size_t kAround = 12;  // of a chunk: length, name, checksum
  for (size_t at = kPngBegin.size();;) {
    const size_t left = bytes.size() - at;
    const uint64_t size = left >= kAround ? big_endian(bytes, at) : 0;
    if (left < kAround || size > left - kAround) {
      refuse(where, fmt::format("byte {}: a chunk is cut off: the file is truncated", grouped(at)));
    }
    const std::string_view name_and_data = bytes.substr(at + 4, 4 + size);
    const auto found = ::crc32(0, reinterpret_cast<const Bytef*>(name_and_data.data()), static_cast<uInt>(name_and_data.size()));
    if (found != big_endian(bytes, at + 8 + size)) {
      refuse(where, fmt::format("byte {}: the checksum of a chunk differs: the file is damaged", grouped(at)));
    }
    if (name_and_data.starts_with("IEND")) return;
    at += kAround + size;
  }
}

void require_opaque(const DecodedPicture& picture, std::string_view where) {
  const auto channels = static_cast<size_t>(picture.channels);
  for (size_t i = channels - 1; i < picture.pixels.size(); i += channels) {
    if (picture.pixels[i] != 255) refuse(where, "has transparent pixels, expected an image without them");
  }
}

}  // namespace

FloatArray parse_picture(std::string_view bytes, std::string_view where) {
  if (bytes.starts_with(kPngBegin)) {
    require_whole_png(bytes, where);
  } else if (!bytes.starts_with(kJpegBegin)) {
    refuse(where, "is not an image, expected the first bytes of a PNG or JPEG file");
  } else if (bytes.rfind(kJpegEnd) == std::string_view::npos) {
    refuse(where, "has no end marker: the file is truncated");
  }
  const DecodedPicture picture = decode_picture(bytes, static_cast<int>(kMaxPixelsOfSide));
  if (!picture.error.empty()) refuse(where, fmt::format("cannot be decoded: {}", picture.error));
  const bool has_alpha = picture.channels == 2 || picture.channels == 4;
  if (has_alpha) require_opaque(picture, where);

  const auto stored = static_cast<size_t>(picture.channels), channels = stored - (has_alpha ? 1 : 0);
  const size_t pixels = static_cast<size_t>(picture.width) * static_cast<size_t>(picture.height);
  FloatArray image{.shape = {static_cast<int64_t>(channels), picture.height, picture.width},
                   .values = std::vector<float>(channels * pixels)};
  for (size_t pixel = 0; pixel < pixels; ++pixel) {
    for (size_t channel = 0; channel < channels; ++channel) {
      image.values[channel * pixels + pixel] = static_cast<float>(picture.pixels[pixel * stored + channel]) / 255;
    }
  }
  return image;
}

bool is_picture(const std::filesystem::path& path) {
  static constexpr std::string_view kEndings[] = {".png", ".jpg", ".jpeg", ".pgm", ".ppm"};
  return std::ranges::find(kEndings, data_extension(path)) != std::end(kEndings);
}

FloatArray read_picture(const std::filesystem::path& path) {
  const std::string ending = data_extension(path);
  if (ending == ".pgm" || ending == ".ppm") return read_pnm(path);
  return parse_picture(decompressed(read_file(path, kMaxBytesOfFile), path.string(), kMaxBytesOfFile), path.string());
}

}  // namespace raffia::internal
