// session_from_bytes on untrusted bytes: a FormatError, or a session that is saved as the same bytes.
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
    const std::vector<std::byte> again = raffia::to_bytes(raffia::session_from_bytes(image, "fuzz"));
    if (again.size() != image.size() || std::memcmp(again.data(), image.data(), image.size()) != 0) std::abort();
  } catch (const raffia::FormatError&) {
  }
}

// Corrects magic, version, sizes and checksum, so that only the payload matters: a checksum is never found by chance.
std::vector<std::byte> with_sound_frame(Bytes bytes) {
  std::vector<std::byte> sound(bytes.begin(), bytes.end());
  sound.resize(std::max(sound.size(), kHeaderSize));
  std::array<int64_t, raffia::kSessionImage.fields> fields = {};
  std::memcpy(fields.data(), sound.data() + raffia::ImageFormat::kFieldsAt, sizeof(fields));
  raffia::put_header(raffia::kSessionImage, fields, sound);
  return sound;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Bytes bytes = std::as_bytes(std::span(data, size));
  expect_refusal_or_round_trip(bytes);
  expect_refusal_or_round_trip(with_sound_frame(bytes));
  return 0;
}
