#include "io/formats/image.h"

#include <fmt/format.h>

#include <cstring>

#include "io/formats/elements.h"
#include "raffia/error.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace raffia::internal {
namespace {

using Bytes = std::span<const std::byte>;

template <typename Word>
void put(std::span<std::byte> bytes, size_t at, Word word) {
  for (size_t i = 0; i < sizeof(Word); ++i) bytes[at + i] = static_cast<std::byte>(word >> (8 * i));
}

bool begins_with(Bytes bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

// Of all bytes but the checksum's own.
uint64_t checksum_of(const ImageFormat& format, Bytes header, Bytes payload) {
  XXH3_state_t hash;
  XXH3_64bits_reset(&hash);
  XXH3_64bits_update(&hash, header.data(), format.checksum_at());
  XXH3_64bits_update(&hash, payload.data(), payload.size());
  return XXH3_64bits_digest(&hash);
}

}  // namespace

void put_header(const ImageFormat& format, std::span<const int64_t> fields, std::span<std::byte> image) {
  const Bytes payload = image.subspan(format.header_size());
  std::memcpy(image.data(), format.magic.data(), format.magic.size());
  put(image, ImageFormat::kVersionAt, format.version);
  put(image, ImageFormat::kHeaderSizeAt, static_cast<uint32_t>(format.header_size()));
  for (size_t i = 0; i < format.fields; ++i) put(image, ImageFormat::kFieldsAt + 8 * i, static_cast<uint64_t>(fields[i]));
  put(image, format.payload_size_at(), static_cast<uint64_t>(payload.size()));
  put(image, format.checksum_at(), checksum_of(format, image, payload));
}

std::vector<int64_t> read_fields(const ImageFormat& format, Bytes header, std::string_view where) {
  for (const ImageFormat& other : {kStateImage, kWindowStateImage, kKeyCacheImage, kSessionImage}) {
    if (other.magic != format.magic && begins_with(header, other.magic)) {
      throw FormatError(fmt::format("{}: begins with {}, expected {}: a {}, not a {}", where, other.magic, format.magic,
                                    other.noun, format.noun));
    }
  }
  if (header.size() < format.header_size()) {
    throw FormatError(fmt::format("{}: {} bytes, expected a {} header of {}: truncated, or not a {}", where, header.size(),
                                  format.noun, format.header_size(), format.noun));
  }
  if (!begins_with(header, format.magic)) {
    throw FormatError(fmt::format("{}: does not begin with {}: not a {}", where, format.magic, format.noun));
  }
  if (const auto version = little_endian<uint32_t>(header, ImageFormat::kVersionAt);
      version < format.oldest || version > format.version) {
    throw FormatError(fmt::format("{}: {} format version {} at byte {}, expected {}", where, format.noun, version,
                                  ImageFormat::kVersionAt,
                                  format.oldest == format.version ? fmt::to_string(format.version)
                                                                  : fmt::format("{} to {}", format.oldest, format.version)));
  }
  if (const auto size = little_endian<uint32_t>(header, ImageFormat::kHeaderSizeAt); size != format.header_size()) {
    throw FormatError(
        fmt::format("{}: header size {} at byte {}, expected {}", where, size, ImageFormat::kHeaderSizeAt, format.header_size()));
  }
  std::vector<int64_t> fields(format.fields);
  for (size_t i = 0; i < fields.size(); ++i) {
    fields[i] = static_cast<int64_t>(little_endian<uint64_t>(header, ImageFormat::kFieldsAt + 8 * i));
  }
  return fields;
}

void require_sizes(const ImageFormat& format, Bytes header, uint64_t expected, uint64_t total, std::string_view where) {
  if (const auto payload = little_endian<uint64_t>(header, format.payload_size_at()); payload != expected) {
    throw FormatError(fmt::format("{}: payload of {} bytes at byte {}, expected {} (from the shape)", where, payload,
                                  format.payload_size_at(), expected));
  }
  if (const uint64_t whole = format.header_size() + expected; total != whole) {
    throw FormatError(fmt::format("{}: {} bytes, expected {} (header and payload): {}", where, total, whole,
                                  total < whole ? "truncated" : fmt::format("bytes follow the {}", format.noun)));
  }
}

void require_checksum(const ImageFormat& format, Bytes header, Bytes payload, std::string_view where) {
  const uint64_t expected = little_endian<uint64_t>(header, format.checksum_at());
  if (const uint64_t found = checksum_of(format, header, payload); found != expected) {
    throw FormatError(fmt::format("{}: checksum {:016x}, expected {:016x} (at byte {}): the {} is corrupt", where, found,
                                  expected, format.checksum_at(), format.noun));
  }
}

std::vector<std::byte> load_header(const ImageFormat& format, File& file) {
  std::vector<std::byte> header(format.header_size());
  header.resize(file.read(header));
  return header;
}

void load_payload(const ImageFormat& format, File& file, std::span<std::byte> payload, uint64_t total, std::string_view where) {
  if (const size_t found = file.read(payload); found != payload.size()) {
    throw FormatError(
        fmt::format("{}: ends at byte {}, expected {}: it shrank while it was read", where, format.header_size() + found, total));
  }
}

void save_image(const std::filesystem::path& path, Bytes image) {
  ReplacementFile file(path);
  file.write(image);
  file.commit();
}

}  // namespace raffia::internal
