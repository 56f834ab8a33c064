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

using namespace raffia;
using namespace raffia::internal;

namespace {

using Bytes = std::span<const std::byte>;
constexpr size_t kHeaderSize = kSessionImage.header_size();

void expect_refusal_or_round_trip(Bytes image) {
  try {
    const std::vector<std::byte> saved = to_bytes(session_from_bytes(image, "fuzz"));
    if (to_bytes(session_from_bytes(saved, "again")) != saved) std::abort();
  } catch (const FormatError&) {
  }
}

// Corrects magic, version, sizes and checksum, so that only the payload matters: a checksum is never found by chance.
std::vector<std::byte> with_sound_frame(Bytes bytes, uint32_t version) {
  std::vector<std::byte> sound(bytes.begin(), bytes.end());
  sound.resize(std::max(sound.size(), kHeaderSize));
  std::array<int64_t, kSessionImage.fields> fields = {};
  std::memcpy(fields.data(), sound.data() + ImageFormat::kFieldsAt, sizeof(fields));
  ImageFormat format = kSessionImage;
  format.version = version;
  put_header(format, fields, sound);
  return sound;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Bytes bytes = std::as_bytes(std::span(data, size));
  expect_refusal_or_round_trip(bytes);
  for (const uint32_t version : {1, 2}) expect_refusal_or_round_trip(with_sound_frame(bytes, version));
  return 0;
}
