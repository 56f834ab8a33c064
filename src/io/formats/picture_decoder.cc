#include "io/formats/picture_decoder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <numeric>
#include <span>

namespace {

// One buffer of stb_image. Its PNG decoder allocates as much as the compressed data claim, which may be far more than the pixels
// need: more than the largest image with its filter bytes is an error.
constexpr size_t kMaxBytesAtOnce = size_t{1} << 27;

// Filled with zeros: a truncated JPEG file leaves pixels unset.
void* allocate(size_t size) { return size > kMaxBytesAtOnce ? nullptr : std::calloc(size, 1); }
void* reallocate(void* memory, size_t size) { return size > kMaxBytesAtOnce ? nullptr : std::realloc(memory, size); }

}  // namespace

#define STBI_MALLOC(size) allocate(size)
#define STBI_REALLOC(memory, size) reallocate(memory, size)
#define STBI_FREE(memory) std::free(memory)
#define STBI_ONLY_PNG
#define STBI_ONLY_JPEG
#define STBI_NO_STDIO
#define STBI_NO_HDR
#define STBI_NO_LINEAR
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#include <stb/stb_image.h>

namespace raffia::internal {
namespace {

// Whether every Huffman table of a JPEG file has at most 256 codes. stb_image (Debian 12) writes past its own tables otherwise.
// A table can follow any marker FF C4, wherever the decoder finds one, so all of them are looked at.
bool has_sound_huffman_tables(std::span<const unsigned char> bytes) {
  constexpr size_t kLengths = 16, kMaxCodes = 256;
  for (size_t marker = 0; marker + 4 <= bytes.size(); ++marker) {
    if (bytes[marker] != 0xFF || bytes[marker + 1] != 0xC4) continue;
    auto left = static_cast<int64_t>(bytes[marker + 2] * 256 + bytes[marker + 3]) - 2;
    // A table: a byte for its kind, how many codes of each length there are, a byte for each code.
    // Past the end of the file the decoder reads zeros.
    for (size_t table = marker + 4; left > 0 && table + 1 < bytes.size();) {
      const auto counts = bytes.subspan(table + 1, std::min(kLengths, bytes.size() - table - 1));
      const size_t codes = std::accumulate(counts.begin(), counts.end(), size_t{0});
      if (codes > kMaxCodes) return false;
      table += 1 + kLengths + codes;
      left -= static_cast<int64_t>(1 + kLengths + codes);
    }
  }
  return true;
}

}  // namespace

DecodedPicture decode_picture(std::string_view bytes, int max_pixels) {
  DecodedPicture picture;
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max())) return {.error = "the file is too large"};
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  const int size = static_cast<int>(bytes.size());
  if (bytes.starts_with("\xFF\xD8") && !has_sound_huffman_tables({data, bytes.size()})) {
    return {.error = "a Huffman table has more than 256 codes"};
  }
  const auto reason = [] {
    const char* said = stbi_failure_reason();
    return std::string(said == nullptr ? "unknown" : said);
  };
  if (stbi_info_from_memory(data, size, &picture.width, &picture.height, &picture.channels) == 0) return {.error = reason()};
  if (picture.width > max_pixels || picture.height > max_pixels) {
    return {.error = std::to_string(picture.width) + " x " + std::to_string(picture.height) + " pixels, expected at most " +
                     std::to_string(max_pixels) + " a side"};
  }
  const std::unique_ptr<stbi_uc, void (*)(void*)> pixels(
      stbi_load_from_memory(data, size, &picture.width, &picture.height, &picture.channels, 0), stbi_image_free);
  if (pixels == nullptr) return {.error = reason()};
  const size_t count =
      static_cast<size_t>(picture.width) * static_cast<size_t>(picture.height) * static_cast<size_t>(picture.channels);
  picture.pixels.assign(pixels.get(), pixels.get() + count);
  return picture;
}

}  // namespace raffia::internal
