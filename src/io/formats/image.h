// The common frame of state files (docs/state-format.md): magic, version, header size, the shape as 64-bit fields, payload size
// and checksum, then the payload. Little-endian. Input is not trusted.
//
// A reader calls read_fields, computes from them how large the payload must be, calls require_sizes before it allocates, and
// require_checksum before it uses the payload. `where` names the bytes in messages.
#ifndef RAFFIA_IO_FORMATS_IMAGE_H_
#define RAFFIA_IO_FORMATS_IMAGE_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "core/sibling_api.h"
#include "io/formats/file.h"

namespace raffia::internal {

struct ImageFormat {
  std::string_view magic;     // 8 bytes
  std::string_view noun;      // in messages: "a <noun>"
  uint32_t version;           // that is written
  size_t fields;              // of the shape
  uint32_t oldest = version;  // that is read; its header has the same fields

  static constexpr size_t kVersionAt = 8, kHeaderSizeAt = 12, kFieldsAt = 16;
  constexpr size_t payload_size_at() const { return kFieldsAt + 8 * fields; }
  constexpr size_t checksum_at() const { return payload_size_at() + 8; }
  constexpr size_t header_size() const { return checksum_at() + 8; }
};

inline constexpr ImageFormat kStateImage{.magic = "RAFSTATE", .noun = "state", .version = 1, .fields = 4};
inline constexpr ImageFormat kWindowStateImage{.magic = "RAFWINST", .noun = "window state", .version = 1, .fields = 13};
inline constexpr ImageFormat kKeyCacheImage{.magic = "RAFKEYCA", .noun = "key cache", .version = 1, .fields = 4};
// Fingerprint of the model, position, and the size of the description; in version 1: the number of parts.
inline constexpr ImageFormat kSessionImage{.magic = "RAFSESSN", .noun = "session", .version = 2, .fields = 3, .oldest = 1};

// Fills the header of an image whose payload is already written.
RAFFIA_SIBLING_API void put_header(const ImageFormat& format, std::span<const int64_t> fields, std::span<std::byte> image);

// `header`: the first header_size() bytes, or all there are.
RAFFIA_SIBLING_API std::vector<int64_t> read_fields(const ImageFormat& format, std::span<const std::byte> header,
                                                    std::string_view where);

// Checks that the payload has `expected` bytes, in the header and actually; `total` is the number of bytes, header included.
RAFFIA_SIBLING_API void require_sizes(const ImageFormat& format, std::span<const std::byte> header, uint64_t expected,
                                      uint64_t total, std::string_view where);

RAFFIA_SIBLING_API void require_checksum(const ImageFormat& format, std::span<const std::byte> header,
                                         std::span<const std::byte> payload, std::string_view where);

// The first header_size() bytes, or all there are.
std::vector<std::byte> load_header(const ImageFormat& format, File& file);

// The rest of a file of `total` bytes.
void load_payload(const ImageFormat& format, File& file, std::span<std::byte> payload, uint64_t total, std::string_view where);

// Converts words between memory and little-endian; its own inverse.
template <typename Word>
void swap_if_big_endian(std::span<std::byte> bytes) {
  if constexpr (std::endian::native == std::endian::big) {
    for (size_t i = 0; i < bytes.size(); i += sizeof(Word)) std::ranges::reverse(bytes.subspan(i, sizeof(Word)));
  }
}

// Atomic: writes a temporary file, syncs it and renames it.
RAFFIA_SIBLING_API void save_image(const std::filesystem::path& path, std::span<const std::byte> image);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_FORMATS_IMAGE_H_
