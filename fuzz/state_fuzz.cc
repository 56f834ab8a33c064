// State::from_bytes on untrusted bytes: a FormatError, or a state that is saved as the same bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "raffia/error.h"
#include "raffia/state.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace {

constexpr size_t kHeaderSize = 64;
constexpr size_t kPayloadSizeAt = 48;
constexpr size_t kChecksumAt = 56;

void put_u64(std::span<std::byte> image, size_t at, uint64_t word) {
  for (size_t i = 0; i < 8; ++i) image[at + i] = static_cast<std::byte>(word >> (8 * i));
}

void expect_refusal_or_round_trip(std::span<const std::byte> image) {
  try {
    const std::vector<std::byte> again = raffia::State::from_bytes(image).to_bytes();
    if (again.size() != image.size() || std::memcmp(again.data(), image.data(), image.size()) != 0) std::abort();
  } catch (const raffia::FormatError&) {
    return;
  }
}

// Corrects magic, version, sizes and checksum, so that only the shape matters: a checksum is never found by chance.
std::vector<std::byte> with_sound_frame(std::span<const std::byte> image) {
  std::vector<std::byte> sound(image.begin(), image.end());
  if (sound.size() < kHeaderSize) sound.resize(kHeaderSize);
  constexpr unsigned char kFrame[] = {'R', 'A', 'F', 'S', 'T', 'A', 'T', 'E', 1, 0, 0, 0, kHeaderSize, 0, 0, 0};
  std::memcpy(sound.data(), kFrame, sizeof(kFrame));
  put_u64(sound, kPayloadSizeAt, sound.size() - kHeaderSize);

  XXH3_state_t hash;
  XXH3_64bits_reset(&hash);
  XXH3_64bits_update(&hash, sound.data(), kChecksumAt);
  XXH3_64bits_update(&hash, sound.data() + kHeaderSize, sound.size() - kHeaderSize);
  put_u64(sound, kChecksumAt, XXH3_64bits_digest(&hash));
  return sound;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> image = std::as_bytes(std::span(data, size));
  expect_refusal_or_round_trip(image);
  expect_refusal_or_round_trip(with_sound_frame(image));
  return 0;
}
