// Images of a window state, as docs/state-format.md describes them. Parts lie one after the other in them, without the padding
// that they have in memory.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>

#include "core/check.h"
#include "core/window_layout.h"
#include "io/formats/image.h"
#include "raffia/error.h"
#include "raffia/window_state.h"

namespace raffia {

using namespace internal;
namespace {

using Bytes = std::span<const std::byte>;
constexpr size_t kWindowHeaderSize = kWindowStateImage.header_size();

std::array<int64_t, kWindowStateImage.fields> to_fields(const WindowStateShape& shape) {
  return {static_cast<int64_t>(shape.kind),
          shape.batch,
          shape.query_heads,
          shape.heads,
          shape.dim,
          shape.far_dim,
          shape.value_dim,
          shape.window,
          shape.summaries,
          shape.proposals,
          shape.features,
          shape.chunk,
          std::bit_cast<int64_t>(shape.recipe)};
}

size_t payload_size(const detail::WindowLayout& layout, int64_t batch) {
  const size_t floats = std::accumulate(layout.sizes.begin(), layout.sizes.end(), size_t{0});
  return static_cast<size_t>(batch) * (sizeof(int64_t) + floats * sizeof(float));
}

// `total` counts the bytes there are, header included.
WindowStateShape parse_window_header(Bytes header, uint64_t total, std::string_view where) {
  const std::vector<int64_t> fields = read_fields(kWindowStateImage, header, where);
  if (fields[0] < 0 || fields[0] >= kWindowKinds) {
    throw FormatError(
        fmt::format("{}: kind {} at byte {}, expected 0 to {}", where, fields[0], ImageFormat::kFieldsAt, kWindowKinds - 1));
  }
  const WindowStateShape shape{.kind = static_cast<WindowKind>(fields[0]),
                               .batch = fields[1],
                               .query_heads = fields[2],
                               .heads = fields[3],
                               .dim = fields[4],
                               .far_dim = fields[5],
                               .value_dim = fields[6],
                               .window = fields[7],
                               .summaries = fields[8],
                               .proposals = fields[9],
                               .features = fields[10],
                               .chunk = fields[11],
                               .recipe = std::bit_cast<uint64_t>(fields[12])};
  std::string flaw = flaw_of(shape);
  const std::optional<detail::WindowLayout> layout = flaw.empty() ? layout_of(shape) : std::nullopt;
  if (!layout) {
    if (flaw.empty()) flaw = "does not fit in memory";
    throw FormatError(
        fmt::format("{}: the shape at byte {} is not that of a window state: {}", where, ImageFormat::kFieldsAt, flaw));
  }
  require_sizes(kWindowStateImage, header, payload_size(*layout, shape.batch), total, where);
  return shape;
}

template <typename Word>
size_t copy_out(std::span<const Word> from, std::span<std::byte> payload, size_t at) {
  const std::span<std::byte> to = payload.subspan(at, from.size_bytes());
  if (!to.empty()) std::memcpy(to.data(), from.data(), to.size());
  swap_if_big_endian<Word>(to);
  return at + to.size();
}

template <typename Word>
size_t copy_in(Bytes payload, size_t at, std::span<Word> to) {
  const Bytes from = payload.subspan(at, to.size_bytes());
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
  swap_if_big_endian<Word>(std::as_writable_bytes(to));
  return at + from.size();
}

bool is_possible_count(int64_t tokens) { return tokens >= 0 && tokens <= kMaxWindowTokens; }

// Of a payload whose size and checksum are right.
WindowState parse_payload(const WindowStateShape& shape, Bytes payload, std::string_view where) {
  WindowState state(shape);
  size_t at = 0;
  for (int64_t b = 0; b < shape.batch; ++b) {
    const size_t begin = at;
    at = copy_in(payload, at, std::span(&state.tokens(b), 1));
    if (!is_possible_count(state.tokens(b))) {
      throw FormatError(fmt::format("{}: {} tokens at byte {}, expected 0 to {}", where, state.tokens(b),
                                    kWindowHeaderSize + begin, kMaxWindowTokens));
    }
  }
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int i = 0; i < kWindowParts; ++i) at = copy_in(payload, at, state.part(static_cast<WindowPart>(i), b));
  }
  return state;
}

}  // namespace

std::vector<std::byte> WindowState::to_bytes() const {
  for (int64_t b = 0; b < shape_.batch; ++b) {
    require(is_possible_count(tokens(b)), "WindowState::to_bytes: tokens({}) is {}, expected 0 to {}", b, tokens(b),
            kMaxWindowTokens);
  }
  std::vector<std::byte> image(kWindowHeaderSize + payload_size(layout_, shape_.batch));
  const std::span payload = std::span(image).subspan(kWindowHeaderSize);
  size_t at = copy_out(std::span(tokens_), payload, 0);
  for (int64_t b = 0; b < shape_.batch; ++b) {
    for (int i = 0; i < kWindowParts; ++i) at = copy_out(part(static_cast<WindowPart>(i), b), payload, at);
  }
  put_header(kWindowStateImage, to_fields(shape_), image);
  return image;
}

WindowState WindowState::from_bytes(Bytes bytes) {
  constexpr std::string_view kWhere = "WindowState::from_bytes";
  const WindowStateShape shape =
      parse_window_header(bytes.first(std::min(bytes.size(), kWindowHeaderSize)), bytes.size(), kWhere);
  const Bytes payload = bytes.subspan(kWindowHeaderSize);
  require_checksum(kWindowStateImage, bytes.first(kWindowHeaderSize), payload, kWhere);
  return parse_payload(shape, payload, kWhere);
}

void WindowState::save(const std::filesystem::path& path) const { save_image(path, to_bytes()); }

WindowState WindowState::load(const std::filesystem::path& path) {
  File file = File::open_to_read(path);
  const uint64_t total = file.size();
  const std::string where = path.string();
  const std::vector<std::byte> header = load_header(kWindowStateImage, file);
  const WindowStateShape shape = parse_window_header(header, total, where);
  file.require_stored(fmt::format("a {}", kWindowStateImage.noun));
  std::vector<std::byte> payload(total - kWindowHeaderSize);
  load_payload(kWindowStateImage, file, payload, total, where);
  require_checksum(kWindowStateImage, header, payload, where);
  return parse_payload(shape, payload, where);
}

}  // namespace raffia
