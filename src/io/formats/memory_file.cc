// Memories as files: the images of State and WindowState, and of key caches, as docs/state-format.md describes them.
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <string>

#include "core/check.h"
#include "io/formats/elements.h"
#include "io/formats/image.h"
#include "raffia/error.h"
#include "raffia/memory.h"

namespace raffia {

using namespace internal;
namespace {

// Payload: per entry the number of tokens and of rows (64 bits each), the keys [rows, G, D] and the values [rows, G, V].
std::vector<std::byte> to_bytes(const KeyCache& cache) {
  const KeyCacheShape& shape = cache.shape();
  std::vector<std::byte> image(kKeyCacheImage.header_size());
  const auto put = [&image](const void* data, size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    image.insert(image.end(), bytes, bytes + size);
  };
  for (int64_t b = 0; b < shape.batch; ++b) {
    std::array counts = {cache.tokens(b), cache.rows(b)};
    swap_if_big_endian<int64_t>(std::as_writable_bytes(std::span(counts)));
    put(counts.data(), sizeof(counts));
    const size_t begin = image.size();
    put(cache.keys(b).data(), static_cast<size_t>(cache.rows(b) * shape.heads * shape.dim) * sizeof(float));
    put(cache.values(b).data(), static_cast<size_t>(cache.rows(b) * shape.heads * shape.value_dim) * sizeof(float));
    swap_if_big_endian<float>(std::span(image).subspan(begin));
  }
  put_header(kKeyCacheImage, std::array{shape.batch, shape.heads, shape.dim, shape.value_dim}, image);
  return image;
}

// Rows of an entry: two numbers, then floats. Throws if they do not fit the bytes that are left.
class EntryReader {
 public:
  EntryReader(std::span<const std::byte> payload, std::string_view where) : left_(payload), where_(where) {}

  int64_t number() {
    if (left_.size() < sizeof(int64_t)) refuse();
    const auto value = static_cast<int64_t>(little_endian<uint64_t>(left_, 0));
    left_ = left_.subspan(sizeof(int64_t));
    return value;
  }
  std::vector<float> floats(int64_t rows, int64_t width) {
    const std::optional<int64_t> bytes = checked_product({rows, width, static_cast<int64_t>(sizeof(float))});
    if (!bytes || *bytes < 0 || static_cast<uint64_t>(*bytes) > left_.size()) refuse();
    std::vector<float> values(static_cast<size_t>(*bytes) / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), left_.data(), static_cast<size_t>(*bytes));
    swap_if_big_endian<float>(std::as_writable_bytes(std::span(values)));
    left_ = left_.subspan(static_cast<size_t>(*bytes));
    return values;
  }
  void expect_end() const {
    if (!left_.empty()) throw FormatError(fmt::format("{}: {} bytes follow the last entry, expected none", where_, left_.size()));
  }
  [[noreturn]] void refuse() const {
    throw FormatError(
        fmt::format("{}: an entry of the key cache asks for more than the {} bytes that follow", where_, left_.size()));
  }

 private:
  std::span<const std::byte> left_;
  std::string_view where_;
};

KeyCache key_cache_from_bytes(std::span<const std::byte> bytes, std::string_view where) {
  const std::span<const std::byte> header = bytes.first(std::min(bytes.size(), kKeyCacheImage.header_size()));
  const std::vector<int64_t> fields = read_fields(kKeyCacheImage, header, where);
  require_sizes(kKeyCacheImage, header, little_endian<uint64_t>(header, kKeyCacheImage.payload_size_at()), bytes.size(), where);
  const std::span<const std::byte> payload = bytes.subspan(header.size());
  require_checksum(kKeyCacheImage, header, payload, where);
  const KeyCacheShape shape{.batch = fields[0], .heads = fields[1], .dim = fields[2], .value_dim = fields[3]};
  constexpr int64_t kMaxSize = 1 << 20, kCounts = 2 * sizeof(int64_t);
  const auto is_size = [](int64_t size) { return size >= 1 && size <= kMaxSize; };
  if (shape.batch < 0 || shape.batch > std::ssize(payload) / kCounts || !is_size(shape.heads) || !is_size(shape.dim) ||
      !is_size(shape.value_dim)) {
    throw FormatError(fmt::format("{}: batch {}, heads {}, dim {}, value_dim {} at byte {} are not the shape of a key cache",
                                  where, shape.batch, shape.heads, shape.dim, shape.value_dim, ImageFormat::kFieldsAt));
  }
  KeyCache cache(shape);
  EntryReader reader(payload, where);
  for (int64_t b = 0; b < shape.batch; ++b) {
    const int64_t tokens = reader.number(), rows = reader.number();
    if (rows < 0 || tokens < rows) {
      throw FormatError(fmt::format("{}: entry {} has {} rows after {} tokens, expected 0 to as many", where, b, rows, tokens));
    }
    const std::vector<float> keys = reader.floats(rows, shape.heads * shape.dim);
    const std::vector<float> values = reader.floats(rows, shape.heads * shape.value_dim);
    cache.assign(b, tokens, keys, values);
  }
  reader.expect_end();
  return cache;
}

bool begins_with(std::span<const std::byte> bytes, const ImageFormat& format) {
  return bytes.size() >= format.magic.size() && std::memcmp(bytes.data(), format.magic.data(), format.magic.size()) == 0;
}

}  // namespace

std::vector<std::byte> Memory::to_bytes() const {
  if (const State* one = state()) return one->to_bytes();
  if (const WindowState* one = window_state()) return one->to_bytes();
  return raffia::to_bytes(*key_cache());
}

Memory Memory::from_bytes(std::span<const std::byte> bytes) {
  if (begins_with(bytes, kWindowStateImage)) return WindowState::from_bytes(bytes);
  if (begins_with(bytes, kKeyCacheImage)) return key_cache_from_bytes(bytes, "Memory::from_bytes");
  return State::from_bytes(bytes);  // its error names what was expected
}

void Memory::save(const std::filesystem::path& path) const { save_image(path, to_bytes()); }

Memory Memory::load(const std::filesystem::path& path) {
  File file = File::open_to_read(path);
  const std::vector<std::byte> header = load_header(kKeyCacheImage, file);
  if (begins_with(header, kWindowStateImage)) return WindowState::load(path);
  if (!begins_with(header, kKeyCacheImage)) return State::load(path);
  const uint64_t total = file.size();
  require_sizes(kKeyCacheImage, header, little_endian<uint64_t>(header, kKeyCacheImage.payload_size_at()), total, path.string());
  file.require_stored(fmt::format("a {}", kKeyCacheImage.noun));
  std::vector<std::byte> bytes = header;
  bytes.resize(total);
  load_payload(kKeyCacheImage, file, std::span(bytes).subspan(header.size()), total, path.string());
  return key_cache_from_bytes(bytes, path.string());
}

}  // namespace raffia
