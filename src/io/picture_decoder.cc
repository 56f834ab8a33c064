#include "io/picture_decoder.h"

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <memory>

namespace {

// One buffer of stb_image. Its PNG decoder allocates as much as the compressed data claim, which may be far more than the pixels
// need: more than the largest image with its filter bytes is an error.
constexpr size_t kMostBytesAtOnce = size_t{1} << 27;

// Filled with zeros: a truncated JPEG file leaves pixels unset.
void* allocate(size_t size) { return size > kMostBytesAtOnce ? nullptr : std::calloc(size, 1); }
void* reallocate(void* memory, size_t size) { return size > kMostBytesAtOnce ? nullptr : std::realloc(memory, size); }

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

namespace raffia {

DecodedPicture decode_picture(std::string_view bytes, int most_pixels) {
  DecodedPicture picture;
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max())) return {.error = "the file is too large"};
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  const int size = static_cast<int>(bytes.size());
  const auto reason = [] {
    const char* said = stbi_failure_reason();
    return std::string(said == nullptr ? "unknown" : said);
  };
  if (stbi_info_from_memory(data, size, &picture.width, &picture.height, &picture.channels) == 0) return {.error = reason()};
  if (picture.width > most_pixels || picture.height > most_pixels) {
    return {.error = std::to_string(picture.width) + " x " + std::to_string(picture.height) + " pixels, expected at most " +
                     std::to_string(most_pixels) + " a side"};
  }
  const std::unique_ptr<stbi_uc, void (*)(void*)> pixels(
      stbi_load_from_memory(data, size, &picture.width, &picture.height, &picture.channels, 0), stbi_image_free);
  if (pixels == nullptr) return {.error = reason()};
  const size_t count =
      static_cast<size_t>(picture.width) * static_cast<size_t>(picture.height) * static_cast<size_t>(picture.channels);
  picture.pixels.assign(pixels.get(), pixels.get() + count);
  return picture;
}

}  // namespace raffia
