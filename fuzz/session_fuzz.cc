// session_from_bytes on untrusted bytes, of both format versions: a FormatError, or a session that is saved and read again
// without a change.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "io/formats/image.h"
#include "io/formats/session_file.h"
#include "raffia/error.h"

namespace {

using Bytes = std::span<const std::byte>;
constexpr size_t kHeaderSize = raffia::kSessionImage.header_size();

void expect_refusal_or_round_trip(Bytes image) {
  try {
    const std::vector<std::byte> saved = raffia::to_bytes(raffia::session_from_bytes(image, "fuzz"));
    if (raffia::to_bytes(raffia::session_from_bytes(saved, "again")) != saved) std::abort();
  } catch (const raffia::FormatError&) {
  }
}

// Corrects magic, version, sizes and checksum, so that only the payload matters: a checksum is never found by chance.
std::vector<std::byte> with_sound_frame(Bytes bytes, uint32_t version) {
  std::vector<std::byte> sound(bytes.begin(), bytes.end());
  sound.resize(std::max(sound.size(), kHeaderSize));
  std::array<int64_t, raffia::kSessionImage.fields> fields = {};
  std::memcpy(fields.data(), sound.data() + raffia::ImageFormat::kFieldsAt, sizeof(fields));
  raffia::ImageFormat format = raffia::kSessionImage;
  format.version = version;
  raffia::put_header(format, fields, sound);
  return sound;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Bytes bytes = std::as_bytes(std::span(data, size));
  expect_refusal_or_round_trip(bytes);
  for (const uint32_t version : {1, 2}) expect_refusal_or_round_trip(with_sound_frame(bytes, version));
  return 0;
}
