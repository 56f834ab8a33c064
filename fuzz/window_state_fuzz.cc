// WindowState::from_bytes on untrusted bytes: a FormatError, or a state that is saved as the same bytes.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "core/window_layout.h"
#include "io/formats/image.h"
#include "raffia/error.h"
#include "raffia/window_state.h"

using namespace raffia;
using namespace raffia::internal;

namespace {

using Bytes = std::span<const std::byte>;
using Fields = std::array<int64_t, kWindowStateImage.fields>;
constexpr size_t kHeaderSize = kWindowStateImage.header_size();

// Whether they were accepted as a state.
bool expect_refusal_or_round_trip(Bytes image) {
  try {
    const std::vector<std::byte> again = WindowState::from_bytes(image).to_bytes();
    if (again.size() != image.size() || std::memcmp(again.data(), image.data(), image.size()) != 0) std::abort();
    return true;
  } catch (const FormatError&) {
    return false;
  }
}

// At the offset that a valid file has them. Native byte order: it does not matter for a fuzzer.
Fields fields_of(Bytes bytes) {
  Fields fields = {};
  const Bytes found = bytes.subspan(std::min(bytes.size(), ImageFormat::kFieldsAt));
  if (!found.empty()) std::memcpy(fields.data(), found.data(), std::min(sizeof(fields), found.size()));
  return fields;
}

// Corrects magic, version, sizes and checksum, so that only the shape matters: a checksum is never found by chance.
std::vector<std::byte> with_sound_frame(Bytes bytes) {
  std::vector<std::byte> sound(bytes.begin(), bytes.end());
  sound.resize(std::max(sound.size(), kHeaderSize));
  put_header(kWindowStateImage, fields_of(bytes), sound);
  return sound;
}

// The bytes as the payload of the nearest valid small shape: this is a valid state unless its token counts are out of range.
void expect_a_small_shape_to_be_taken(Bytes bytes) {
  constexpr int64_t kMax = 6;  // of each extent
  Fields fields = fields_of(bytes);
  const auto fold = [](int64_t& field, int64_t min, int64_t max) {
    field = min + static_cast<int64_t>(static_cast<uint64_t>(field) % static_cast<uint64_t>(max - min + 1));
  };
  fold(fields[0], 0, kWindowKinds - 1);
  const auto kind = static_cast<WindowKind>(fields[0]);
  const bool hybrid = kind == WindowKind::hybrid, lara = kind == WindowKind::lara;
  WindowStateShape shape{.kind = kind};
  const auto extent = [&](size_t field, int64_t min, bool has = true) {
    fold(fields[field], has ? min : 0, has ? kMax : 0);
    return fields[field];
  };
  shape.batch = extent(1, 0);
  shape.heads = extent(3, 1);
  shape.query_heads = fields[2] = hybrid ? 1 : shape.heads * extent(2, 1);
  shape.dim = extent(4, 1);
  shape.far_dim = extent(5, 0, hybrid);
  shape.value_dim = extent(6, 1);
  shape.window = extent(7, 1);
  shape.summaries = extent(8, 1, !hybrid);
  shape.proposals = extent(9, 1, lara);
  shape.features = extent(10, 1, !lara);
  shape.chunk = fields[11] = hybrid ? 0 : std::gcd(extent(11, 1), shape.window);

  const std::optional<detail::WindowLayout> layout = layout_of(shape);
  if (!flaw_of(shape).empty() || !layout) std::abort();
  const size_t floats = std::accumulate(layout->sizes.begin(), layout->sizes.end(), size_t{0});
  const auto batch = static_cast<size_t>(shape.batch);
  std::vector<std::byte> image(kHeaderSize + batch * (sizeof(int64_t) + sizeof(float) * floats));
  const Bytes payload = bytes.subspan(std::min(bytes.size(), kHeaderSize));
  if (const size_t size = std::min(payload.size(), image.size() - kHeaderSize); size > 0) {
    std::memcpy(image.data() + kHeaderSize, payload.data(), size);
  }
  bool wild = false;
  for (size_t b = 0; b < batch; ++b) {
    int64_t tokens = 0;
    std::memcpy(&tokens, image.data() + kHeaderSize + sizeof(tokens) * b, sizeof(tokens));
    wild |= tokens < 0 || tokens > kMaxWindowTokens;
  }
  put_header(kWindowStateImage, fields, image);
  if (expect_refusal_or_round_trip(image) == wild) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Bytes bytes = std::as_bytes(std::span(data, size));
  expect_refusal_or_round_trip(bytes);
  expect_refusal_or_round_trip(with_sound_frame(bytes));
  expect_a_small_shape_to_be_taken(bytes);
  return 0;
}
