// parse_picture on bytes from anywhere: it refuses with FormatError or gives as many values from 0 to 1 as the shape says.
// Checksums of PNG chunks are mended first: random bytes would not come past them.
#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "io/formats/picture.h"
#include "raffia/error.h"

using namespace raffia;
using namespace raffia::internal;

namespace {

std::string with_checksums(std::string bytes) {
  if (!bytes.starts_with("\x89PNG")) return bytes;
  for (size_t at = 8; at + 12 <= bytes.size();) {
    auto* chunk = reinterpret_cast<unsigned char*>(bytes.data() + at);
    const size_t size = size_t{chunk[0]} << 24 | size_t{chunk[1]} << 16 | size_t{chunk[2]} << 8 | chunk[3];
    if (size > bytes.size() - at - 12) return bytes;
    const auto sum = ::crc32(0, chunk + 4, static_cast<uInt>(size + 4));
    for (size_t i = 0; i < 4; ++i) chunk[8 + size + i] = static_cast<unsigned char>(sum >> (24 - 8 * i));
    at += 12 + size;
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string bytes = with_checksums({reinterpret_cast<const char*>(data), size});
    const FloatArray image = parse_picture(bytes, "fuzz.png");
    const auto count = element_count(image.shape);
    if (!count || static_cast<size_t>(*count) != image.values.size()) std::abort();
    if (!std::ranges::all_of(image.values, [](float value) { return value >= 0 && value <= 1; })) std::abort();
  } catch (const FormatError&) {
    return 0;
  }
  return 0;
}
