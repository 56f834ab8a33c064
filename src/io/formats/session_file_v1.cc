#include "io/formats/session_file_v1.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/message.h"
#include "io/formats/elements.h"
#include "io/formats/image.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

// Lists in a payload begin with their number of entries, which is limited by the bytes that follow.
class PayloadReader {
 public:
  PayloadReader(std::span<const std::byte> bytes, size_t at, std::string_view where) : bytes_(bytes), at_(at), where_(where) {}

  uint64_t number(std::string_view what) {
    need(8, what);
    at_ += 8;
    return little_endian<uint64_t>(bytes_, at_ - 8);
  }
  int64_t count(std::string_view what, int64_t max) {
    const uint64_t value = number(what);
    if (value > static_cast<uint64_t>(max)) refuse("{} is {}, expected 0 to {}", what, value, max);
    return static_cast<int64_t>(value);
  }
  double real(std::string_view what) { return std::bit_cast<double>(number(what)); }
  std::span<const std::byte> block(std::string_view what, size_t element) {
    const uint64_t entries = number(what);
    if (entries > (bytes_.size() - at_) / element) {
      refuse("{} has {} entries of {} bytes, expected at most the {} bytes that follow", what, entries, element,
             bytes_.size() - at_);
    }
    at_ += entries * element;
    return bytes_.subspan(at_ - entries * element, entries * element);
  }
  template <class Word>
  std::vector<Word> words(std::string_view what) {
    const std::span<const std::byte> found = block(what, sizeof(Word));
    std::vector<Word> values(found.size() / sizeof(Word));
    if (!values.empty()) std::memcpy(values.data(), found.data(), found.size());
    swap_if_big_endian<Word>(std::as_writable_bytes(std::span(values)));
    return values;
  }
  void expect_end() const {
    if (at_ != bytes_.size()) refuse("{} bytes follow the last part, expected none", bytes_.size() - at_);
  }
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw FormatError(fmt::format("{}: session at byte {}: {}", where_, at_, fmt::format(format, std::forward<Args>(args)...)));
  }

 private:
  void need(size_t count, std::string_view what) const {
    if (bytes_.size() - at_ < count) refuse("{} is truncated", what);
  }

  std::span<const std::byte> bytes_;
  size_t at_;
  std::string_view where_;
};

enum class PartKind : uint8_t { state, window_state, keys };

constexpr int64_t kMaxHeads = 1 << 16;

KeyCache read_keys(PayloadReader& reader, int64_t position) {
  const int64_t rows = reader.count("number of keys", position);
  const int64_t heads = reader.count("heads of keys", kMaxHeads), dim = reader.count("size of keys", kMaxHeads);
  if (heads == 0 || dim == 0) reader.refuse("keys of {} heads x {}, expected 1 or more of each", heads, dim);
  const auto keys = reader.words<float>("keys"), values = reader.words<float>("values");
  // No overflow: heads and sizes are at most 2^16, and rows at most as many as floats were read.
  const auto floats = static_cast<int64_t>(keys.size());
  const int64_t width = heads * dim;
  if (keys.size() != values.size() || floats / width != rows || floats % width != 0) {
    reader.refuse("{} keys of {} x {} and {} values, expected {} rows", floats, heads, dim, values.size(), rows);
  }
  KeyCache cache({.batch = 1, .heads = heads, .dim = dim, .value_dim = dim});
  cache.assign(0, position, keys, values);
  return cache;
}

SessionImage::Part read_part(PayloadReader& reader, int64_t position) {
  const auto kind = static_cast<PartKind>(reader.count("kind of memory", 2));
  const auto past = [&]() -> Memory {
    if (kind == PartKind::keys) return read_keys(reader, position);
    const std::span<const std::byte> bytes = reader.block("memory", 1);
    try {
      if (kind == PartKind::state) return State::from_bytes(bytes);
      return WindowState::from_bytes(bytes);
    } catch (const FormatError& error) {
      reader.refuse("memory is damaged: {}", without_origin(error.what()));
    }
  };
  Memory memory = past();
  return {.past = std::move(memory), .tail = reader.words<float>("tail of the convolution")};
}

SamplingOptions read_sampling(PayloadReader& reader) {
  SamplingOptions sampling;
  sampling.repetition_penalty = reader.real("repetition_penalty");
  sampling.repetition_window = static_cast<int64_t>(reader.number("repetition_window"));
  sampling.temperature = reader.real("temperature");
  sampling.top_k = static_cast<int64_t>(reader.number("top_k"));
  sampling.top_p = reader.real("top_p");
  sampling.min_p = reader.real("min_p");
  sampling.seed = reader.number("seed");
  return sampling;
}

}  // namespace

void read_session_v1(std::span<const std::byte> bytes, int64_t parts, std::string_view where, SessionImage& image) {
  PayloadReader reader(bytes, kSessionImage.header_size(), where);
  if (parts < 0 || parts > kMaxSessionParts) reader.refuse("{} parts, expected 0 to {}", parts, kMaxSessionParts);
  image.draws = reader.number("draws");
  image.sampling = read_sampling(reader);
  image.recent = reader.words<int32_t>("recent tokens");
  image.logits = reader.words<float>("logits");
  for (int64_t i = 0; i < parts; ++i) image.parts.push_back(read_part(reader, image.position));
  reader.expect_end();
}

}  // namespace raffia::internal
