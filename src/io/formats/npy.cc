// magic, version (2 bytes), header size (2 bytes in version 1, else 4), header (a Python dictionary as text), elements.
#include "io/formats/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "io/formats/byte_source.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kVersionAt = 6;
constexpr size_t kHeaderSizeAt = 8;
constexpr size_t kShortestPrefix = 10;
constexpr size_t kLongestNpyHeader = 1 << 20;  // what an array needs fits in 128 bytes; names of fields are refused anyway
constexpr size_t kNpyRanks = 64;               // NumPy's own limit

struct Header {
  std::optional<ElementType> type;
  std::optional<bool> is_fortran;
  std::optional<std::vector<int64_t>> shape;
};

// The literal that NumPy writes: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }. Not Python: nothing else is read.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, size_t begin, std::string_view where) : text_(text), begin_(begin), where_(where) {}

  Header parse() {
    Header header;
    expect('{');
    while (!accept('}')) {
      const size_t key_at = at_;
      const std::string_view key = string();
      expect(':');
      if (key == "descr") {
        put(header.type, key, key_at, &HeaderParser::type);
      } else if (key == "fortran_order") {
        put(header.is_fortran, key, key_at, &HeaderParser::boolean);
      } else if (key == "shape") {
        put(header.shape, key, key_at, &HeaderParser::tuple);
      } else {
        fail(key_at, fmt::format("key '{}'", key), "descr, fortran_order or shape");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_spaces();
    if (at_ != text_.size()) fail(at_, "text after the dictionary", "its end");
    if (!header.type || !header.is_fortran || !header.shape) {
      fail(0, "a header without one of its keys", "descr, fortran_order and shape");
    }
    return header;
  }

 private:
  [[noreturn]] void fail(size_t at, std::string_view found, std::string_view expected) const {
    throw FormatError(fmt::format("{}: {} at byte {}, expected {}", where_, found, begin_ + at, expected));
  }

  std::string found_here() const {
    if (at_ == text_.size()) return "the end of the header";
    const auto c = static_cast<unsigned char>(text_[at_]);
    return c >= 0x20 && c < 0x7f ? fmt::format("'{}'", text_[at_]) : fmt::format("byte 0x{:02x}", c);
  }

  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
  }

  bool accept(char c) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!accept(c)) fail(at_, found_here(), fmt::format("'{}'", c));
  }

  template <typename Value>
  void put(std::optional<Value>& target, std::string_view key, size_t key_at, Value (HeaderParser::*read)()) {
    if (target) fail(key_at, fmt::format("a second key '{}'", key), "each key once");
    target = (this->*read)();
  }

  std::string_view string() {
    skip_spaces();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') fail(at_, found_here(), "a string in quotes");
    const size_t first = at_ + 1;
    const size_t last = text_.find(quote, first);
    if (last == std::string_view::npos) fail(at_, "a string without an end", "its closing quote");
    at_ = last + 1;
    return text_.substr(first, last - first);
  }

  ElementType type() {
    skip_spaces();
    const size_t at = at_;
    if (at_ < text_.size() && text_[at_] == '[') fail(at, "a record type", "'<f2', '<f4' or '<f8'");
    const std::string_view name = string();
    if (name == "<f2") return ElementType::f16;
    if (name == "<f4") return ElementType::f32;
    if (name == "<f8") return ElementType::f64;
    fail(at, fmt::format("element type '{}'", name), "'<f2', '<f4' or '<f8'");
  }

  bool boolean() {
    skip_spaces();
    for (const auto& [word, value] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}}) {
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      return value;
    }
    fail(at_, found_here(), "True or False");
  }

  std::vector<int64_t> tuple() {
    std::vector<int64_t> extents;
    expect('(');
    bool is_closed = accept(')');
    while (!is_closed) {
      skip_spaces();
      int64_t extent = -1;
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), extent);
      if (error != std::errc() || extent < 0) fail(at_, found_here(), "an extent of 0 or more that fits 63 bits");
      at_ = static_cast<size_t>(end - text_.data());
      extents.push_back(extent);
      if (extents.size() > kNpyRanks) fail(at_, "a shape of too many axes", fmt::format("at most {}", kNpyRanks));
      const bool has_comma = accept(',');
      is_closed = accept(')');
      if (!is_closed && !has_comma) fail(at_, found_here(), "',' or ')'");
    }
    return extents;
  }

  std::string_view text_;
  size_t begin_;  // of the header in the file
  std::string_view where_;
  size_t at_ = 0;
};

struct Contents {
  ElementType type;
  bool is_fortran;
  std::vector<int64_t> shape;
  int64_t count;
  uint64_t begin;  // of the elements
};

Contents read_header(const ByteSource& source) {
  const std::string& where = source.name();
  std::vector<std::byte> prefix(std::min<uint64_t>(source.size(), kShortestPrefix + 2));
  source.read(0, prefix);
  if (prefix.size() < kMagic.size() || std::memcmp(prefix.data(), kMagic.data(), kMagic.size()) != 0) {
    throw FormatError(fmt::format("{}: does not begin with \\x93NUMPY: not an npy file", where));
  }
  if (prefix.size() < kShortestPrefix) {
    throw FormatError(fmt::format("{}: {} bytes, expected at least {}: truncated", where, prefix.size(), kShortestPrefix));
  }
  const int major = std::to_integer<int>(prefix[kVersionAt]), minor = std::to_integer<int>(prefix[kVersionAt + 1]);
  if (major < 1 || major > 3 || minor != 0) {
    throw FormatError(fmt::format("{}: npy version {}.{} at byte {}, expected 1.0, 2.0 or 3.0", where, major, minor, kVersionAt));
  }
  const size_t begin = major == 1 ? kShortestPrefix : kShortestPrefix + 2;
  if (prefix.size() < begin) {
    throw FormatError(fmt::format("{}: {} bytes, expected at least {}: truncated", where, prefix.size(), begin));
  }
  const uint64_t header_size =
      major == 1 ? little_endian<uint16_t>(prefix, kHeaderSizeAt) : little_endian<uint32_t>(prefix, kHeaderSizeAt);
  if (header_size > source.size() - begin) {
    throw FormatError(fmt::format("{}: header of {} bytes at byte {}, expected at most {} (what follows it): truncated", where,
                                  header_size, kHeaderSizeAt, source.size() - begin));
  }
  if (header_size > kLongestNpyHeader) {
    throw FormatError(fmt::format("{}: header of {} bytes at byte {}, expected at most {}", where, header_size, kHeaderSizeAt,
                                  kLongestNpyHeader));
  }
  std::string text(header_size, '\0');
  source.read(begin, std::as_writable_bytes(std::span(text)));
  Header header = HeaderParser(text, begin, where).parse();

  const std::optional<int64_t> count = element_count(*header.shape);
  if (!count || *count > INT64_MAX / 8) {
    throw FormatError(fmt::format("{}: shape {}, expected one whose elements fit in memory", where, to_string(*header.shape)));
  }
  const uint64_t data_begin = begin + header_size;
  const uint64_t found = source.size() - data_begin;
  const uint64_t expected = static_cast<uint64_t>(*count) * size_of(*header.type);
  if (found != expected) {
    throw FormatError(fmt::format("{}: {} bytes of elements from byte {}, expected {} (shape {}, {} bytes each): {}", where,
                                  found, data_begin, expected, to_string(*header.shape), size_of(*header.type),
                                  found < expected ? "truncated" : "bytes follow the array"));
  }
  return {*header.type, *header.is_fortran, std::move(*header.shape), *count, data_begin};
}

// Element i of a Fortran-ordered array has its first index run fastest.
std::vector<float> row_major(const std::vector<float>& fortran, const std::vector<int64_t>& shape) {
  std::vector<float> values(fortran.size());
  if (values.empty()) return values;  // its other extents may be anything
  std::vector<int64_t> strides(shape.size()), index(shape.size());
  int64_t step = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = step;
    step *= shape[axis];
  }
  int64_t offset = 0;
  for (const float value : fortran) {
    values[static_cast<size_t>(offset)] = value;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      offset += strides[axis];
      if (++index[axis] < shape[axis]) break;
      offset -= strides[axis] * shape[axis];
      index[axis] = 0;
    }
  }
  return values;
}

FloatArray read_array(const ByteSource& source) {
  Contents contents = read_header(source);
  FloatArray array{std::move(contents.shape), std::vector<float>(static_cast<size_t>(contents.count))};
  read_floats(source, contents.begin, contents.type, array.values);
  if (contents.is_fortran) array.values = row_major(array.values, array.shape);
  return array;
}

}  // namespace

FloatArray parse_npy(std::span<const std::byte> bytes, std::string_view where) {
  return read_array(MemorySource(std::string(where), bytes));
}

FloatArray read_npy(const std::filesystem::path& path) { return read_array(FileSource(path)); }

}  // namespace raffia::internal
