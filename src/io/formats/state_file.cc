// Images of a state, as docs/state-format.md describes them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "core/state_size.h"
#include "io/formats/image.h"
#include "raffia/error.h"
#include "raffia/state.h"

namespace raffia {

using namespace internal;
namespace {

constexpr size_t kHeaderSize = kStateImage.header_size();

// `total` counts the bytes there are, header included.
StateShape parse_header(std::span<const std::byte> header, uint64_t total, std::string_view where) {
  const std::vector<int64_t> fields = read_fields(kStateImage, header, where);
  const StateShape shape{.batch = fields[0], .heads = fields[1], .features = fields[2], .value_dim = fields[3]};
  const std::optional<int64_t> bytes = bytes_of(shape);
  if (!bytes) {
    throw FormatError(fmt::format("{}: batch {}, heads {}, features {}, value_dim {} at byte {} are not the shape of a state",
                                  where, shape.batch, shape.heads, shape.features, shape.value_dim, ImageFormat::kFieldsAt));
  }
  require_sizes(kStateImage, header, static_cast<uint64_t>(*bytes), total, where);
  return shape;
}

}  // namespace

std::vector<std::byte> State::to_bytes() const {
  std::vector<std::byte> image(kHeaderSize + size_bytes());
  const std::span payload = std::span(image).subspan(kHeaderSize);
  if (!payload.empty()) std::memcpy(payload.data(), data_.data(), payload.size());
  swap_if_big_endian<float>(payload);
  put_header(kStateImage, std::array{shape_.batch, shape_.heads, shape_.features, shape_.value_dim}, image);
  return image;
}

State State::from_bytes(std::span<const std::byte> bytes) {
  constexpr std::string_view kWhere = "State::from_bytes";
  const StateShape shape = parse_header(bytes.first(std::min(bytes.size(), kHeaderSize)), bytes.size(), kWhere);
  const std::span payload = bytes.subspan(kHeaderSize);
  require_checksum(kStateImage, bytes.first(kHeaderSize), payload, kWhere);
  State state(shape);
  if (!payload.empty()) std::memcpy(state.data_.data(), payload.data(), payload.size());
  swap_if_big_endian<float>(std::as_writable_bytes(std::span(state.data_)));
  return state;
}

void State::save(const std::filesystem::path& path) const { save_image(path, to_bytes()); }

State State::load(const std::filesystem::path& path) {
  File file = File::open_to_read(path);
  const uint64_t total = file.size();
  const std::string where = path.string();
  const std::vector<std::byte> header = load_header(kStateImage, file);
  const StateShape shape = parse_header(header, total, where);
  file.require_stored(fmt::format("a {}", kStateImage.noun));
  State state(shape);
  const std::span<std::byte> payload = std::as_writable_bytes(std::span(state.data_));
  load_payload(kStateImage, file, payload, total, where);
  require_checksum(kStateImage, header, payload, where);
  swap_if_big_endian<float>(payload);
  return state;
}

}  // namespace raffia
