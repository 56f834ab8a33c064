#include "io/formats/session_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/message.h"
#include "io/formats/elements.h"
#include "io/formats/file.h"
#include "io/formats/image.h"
#include "io/formats/text.h"
#include "raffia/error.h"

namespace raffia {
namespace {

// Lists in a payload begin with their number of entries, which is limited by the bytes that follow.
class Writer {
 public:
  explicit Writer(std::vector<std::byte>& bytes) : bytes_(bytes) {}

  void number(uint64_t value) {
    for (int i = 0; i < 8; ++i) bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
  }
  void number(double value) { number(std::bit_cast<uint64_t>(value)); }
  void number(int64_t value) { number(static_cast<uint64_t>(value)); }
  template <class Word>
  void words(std::span<const Word> values) {
    number(static_cast<uint64_t>(values.size()));
    const size_t at = bytes_.size();
    bytes_.resize(at + values.size_bytes());
    if (values.empty()) return;
    std::memcpy(bytes_.data() + at, values.data(), values.size_bytes());
    swap_if_big_endian<Word>(std::span(bytes_).subspan(at));
  }

 private:
  std::vector<std::byte>& bytes_;
};

class PayloadReader {
 public:
  PayloadReader(std::span<const std::byte> bytes, size_t at, std::string_view where) : bytes_(bytes), at_(at), where_(where) {}

  uint64_t number(std::string_view what) {
    need(8, what);
    at_ += 8;
    return little_endian<uint64_t>(bytes_, at_ - 8);
  }
  int64_t count(std::string_view what, int64_t most) {
    const uint64_t value = number(what);
    if (value > static_cast<uint64_t>(most)) refuse("{} is {}, expected 0 to {}", what, value, most);
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

constexpr int64_t kMostPositions = int64_t{1} << 60, kMostHeads = 1 << 16, kMostParts = 1 << 12;

KeyCache read_keys(PayloadReader& reader, int64_t position) {
  const int64_t rows = reader.count("number of keys", position);
  const int64_t heads = reader.count("heads of keys", kMostHeads), dim = reader.count("size of keys", kMostHeads);
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

std::span<const float> floats_of(const View4& rows) {
  return {static_cast<const float*>(rows.data()), static_cast<size_t>(rows.size())};
}

void write_part(Writer& writer, const SessionImage::Part& part) {
  if (const KeyCache* cache = part.past.key_cache()) {
    writer.number(static_cast<uint64_t>(PartKind::keys));
    writer.number(cache->rows(0));
    writer.number(cache->shape().heads);
    writer.number(cache->shape().dim);
    writer.words<float>(floats_of(cache->keys(0)));
    writer.words<float>(floats_of(cache->values(0)));
  } else {
    writer.number(static_cast<uint64_t>(part.past.state() != nullptr ? PartKind::state : PartKind::window_state));
    writer.words<std::byte>(part.past.to_bytes());
  }
  writer.words<float>(part.tail);
}

enum class Numbers : uint8_t {
  finite,
  logarithms,  // -inf too: no weight
  all_but_nan,
};

// Throws if a number is impossible in a session. Otherwise it would be found in the logits of the next token only, and the
// weights of the model would be suspected.
void require_numbers(std::span<const float> values, Numbers allowed, std::string_view what, std::string_view where) {
  const auto is_possible = [allowed](float value) {
    return std::isfinite(value) || (allowed == Numbers::logarithms && value == -std::numeric_limits<float>::infinity()) ||
           (allowed == Numbers::all_but_nan && !std::isnan(value));
  };
  const auto bad = std::ranges::find_if_not(values, is_possible);
  if (bad == values.end()) return;
  throw FormatError(
      fmt::format("{}: {} contain {}, expected finite numbers: the session is damaged", where, what, not_finite_text(*bad)));
}

Numbers numbers_of(WindowPart part) {
  switch (part) {
    case WindowPart::gates:  // of an open or closed gate, before the sigmoid
      return Numbers::all_but_nan;
    case WindowPart::log_decay:
    case WindowPart::summary_weights:
    case WindowPart::folded_weights:
    case WindowPart::mixtures:
      return Numbers::logarithms;
    default:
      return Numbers::finite;
  }
}

void require_numbers(const SessionImage::Part& part, size_t index, std::string_view where) {
  const std::string what = fmt::format("the numbers of memory {}", index);
  if (const KeyCache* cache = part.past.key_cache()) {
    require_numbers(floats_of(cache->keys(0)), Numbers::finite, fmt::format("the keys of memory {}", index), where);
    require_numbers(floats_of(cache->values(0)), Numbers::finite, fmt::format("the values of memory {}", index), where);
  } else if (const State* state = part.past.state()) {
    const std::span<const float> all = state->data();
    const auto decays = static_cast<size_t>(state->shape().batch * state->shape().heads);  // the last part
    require_numbers(all.first(all.size() - decays), Numbers::finite, what, where);
    require_numbers(all.last(decays), Numbers::logarithms, what, where);
  } else {
    const WindowState& window = *part.past.window_state();
    for (int64_t b = 0; b < window.shape().batch; ++b) {
      for (int i = 0; i < kWindowParts; ++i) {
        const auto each = static_cast<WindowPart>(i);
        require_numbers(window.part(each, b), numbers_of(each), what, where);
      }
    }
  }
  require_numbers(part.tail, Numbers::finite, fmt::format("the tail of memory {}", index), where);
}

// The fields of a header. The payload says itself how it is made; the file must be as long as the header claims.
std::vector<int64_t> require_header(std::span<const std::byte> header, uint64_t total, std::string_view where) {
  std::vector<int64_t> fields = read_fields(kSessionImage, header, where);
  require_sizes(kSessionImage, header, little_endian<uint64_t>(header, kSessionImage.payload_size_at()), total, where);
  return fields;
}

}  // namespace

std::vector<std::byte> to_bytes(const SessionImage& image) {
  std::vector<std::byte> bytes(kSessionImage.header_size());
  Writer writer(bytes);
  writer.number(image.draws);
  writer.number(image.sampling.repetition_penalty);
  writer.number(image.sampling.repetition_window);
  writer.number(image.sampling.temperature);
  writer.number(image.sampling.top_k);
  writer.number(image.sampling.top_p);
  writer.number(image.sampling.min_p);
  writer.number(image.sampling.seed);
  writer.words<int32_t>(image.recent);
  writer.words<float>(image.logits);
  for (const SessionImage::Part& part : image.parts) write_part(writer, part);
  const std::array fields = {std::bit_cast<int64_t>(image.fingerprint), image.position, static_cast<int64_t>(image.parts.size())};
  put_header(kSessionImage, fields, bytes);
  return bytes;
}

SessionImage session_from_bytes(std::span<const std::byte> bytes, std::string_view where) {
  const size_t header = kSessionImage.header_size();
  const std::span<const std::byte> head = bytes.first(std::min(bytes.size(), header));
  const std::vector<int64_t> fields = require_header(head, bytes.size(), where);
  require_checksum(kSessionImage, head, bytes.subspan(header), where);

  SessionImage image;
  image.fingerprint = std::bit_cast<uint64_t>(fields[0]);
  image.position = fields[1];
  PayloadReader reader(bytes, header, where);
  if (fields[1] < 0 || fields[1] > kMostPositions) reader.refuse("position is {}, expected 0 to {}", fields[1], kMostPositions);
  if (fields[2] < 0 || fields[2] > kMostParts) reader.refuse("{} parts, expected 0 to {}", fields[2], kMostParts);
  image.draws = reader.number("draws");
  SamplingOptions& sampling = image.sampling;
  sampling.repetition_penalty = reader.real("repetition_penalty");
  sampling.repetition_window = static_cast<int64_t>(reader.number("repetition_window"));
  sampling.temperature = reader.real("temperature");
  sampling.top_k = static_cast<int64_t>(reader.number("top_k"));
  sampling.top_p = reader.real("top_p");
  sampling.min_p = reader.real("min_p");
  sampling.seed = reader.number("seed");
  try {
    sampling.check(where);
  } catch (const InvalidArgument& error) {
    throw FormatError(error.what());
  }
  image.recent = reader.words<int32_t>("recent tokens");
  image.logits = reader.words<float>("logits");
  for (int64_t i = 0; i < fields[2]; ++i) image.parts.push_back(read_part(reader, image.position));
  reader.expect_end();
  require_numbers(image.logits, Numbers::finite, "the logits", where);
  for (size_t i = 0; i < image.parts.size(); ++i) require_numbers(image.parts[i], i, where);
  return image;
}

std::vector<std::byte> read_session_file(const std::filesystem::path& path,
                                         const std::function<uint64_t(const SessionHeader&)>& most_bytes) {
  File file = File::open_to_read(path);
  const uint64_t total = file.size();
  std::vector<std::byte> bytes(std::min<uint64_t>(total, kSessionImage.header_size()));
  bytes.resize(file.read(bytes));
  const std::vector<int64_t> fields = require_header(bytes, total, path.string());
  const SessionHeader header{.fingerprint = std::bit_cast<uint64_t>(fields[0]), .position = fields[1]};
  if (header.position < 0 || header.position > kMostPositions) {
    throw FormatError(fmt::format("{}: position is {}, expected 0 to {}", path.string(), header.position, kMostPositions));
  }
  if (const uint64_t most = most_bytes ? most_bytes(header) : UINT64_MAX; total > most) {
    throw FormatError(fmt::format("{}: has {} bytes, expected at most {}, the size of a session of this model at position {}",
                                  path.string(), grouped(total), grouped(most), grouped(static_cast<uint64_t>(header.position))));
  }
  file.require_stored(fmt::format("a {}", kSessionImage.noun));
  const size_t begin = bytes.size();
  bytes.resize(total);
  bytes.resize(begin + file.read(std::span(bytes).subspan(begin)));
  return bytes;
}

}  // namespace raffia
