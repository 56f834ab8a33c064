#include "io/formats/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <span>

#include "io/formats/compressed.h"
#include "io/formats/file.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

bool is_continuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

}  // namespace

// Table 3-7 of the Unicode standard: after some lead bytes the second one
// has a narrower range, which rules out overlong forms, surrogates and what is above U+10FFFF.
size_t valid_character_size(std::string_view bytes, size_t at) {
  const auto byte = [bytes](size_t i) { return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0U; };
  const unsigned lead = byte(at);
  if (lead < 0x80) return lead == 0 ? 0 : 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  const unsigned second = byte(at + 1);
  if (second < low || second > high) return 0;
  const size_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  for (size_t i = 2; i < size; ++i) {
    if (!is_continuation(static_cast<unsigned char>(byte(at + i)))) return 0;
  }
  return size;
}

Character character_at(std::string_view bytes, size_t at) {
  const size_t size = valid_character_size(bytes, at);
  if (size == 0) return {kNoCode, 1};
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i])); };
  constexpr uint32_t kLeadBits[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
  uint32_t code = byte(0) & kLeadBits[size];
  for (size_t i = 1; i < size; ++i) code = code << 6 | (byte(i) & 0x3F);
  return {code, size};
}

std::string read_file(const std::filesystem::path& path, uint64_t limit) {
  File file = File::open_to_read(path);
  const uint64_t size = file.size();
  if (size > limit) {
    throw FormatError(fmt::format("{}: has {} bytes, expected at most {}", path.string(), grouped(size), grouped(limit)));
  }
  file.require_stored("data");
  std::string bytes;
  try {
    bytes.resize(size);
  } catch (const std::exception&) {  // bad_alloc, or length_error
    throw IoError(fmt::format("{}: has {} bytes, for which there is not enough memory", path.string(), grouped(size)));
  }
  bytes.resize(file.read(std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  ReplacementFile file(path);
  file.write(std::as_bytes(std::span(bytes)));
  file.commit();
}

std::string read_data_file(const std::filesystem::path& path, uint64_t limit) {
  return decompressed(read_file(path, limit), path.string(), limit);
}

std::string read_text_bytes(const std::filesystem::path& path) {
  return decompressed(read_file(path), path.string(), kMaxBytesOfText);
}

std::string data_extension(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension == ".gz" || extension == ".xz" ? data_extension(path.stem()) : extension;
}

std::string read_text_file(const std::filesystem::path& path) {
  std::string text = read_text_bytes(path);
  if (text.empty()) throw FormatError(fmt::format("{}: is empty, expected text", path.string()));
  if (const auto why = why_not_text(text)) throw FormatError(fmt::format("{}: {}", path.string(), *why));
  return text;
}

std::optional<size_t> first_byte_not_text(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = valid_character_size(bytes, at);
    if (size == 0) return at;
    at += size;
  }
  return {};
}

std::optional<std::string> why_not_text(std::string_view bytes) {
  const auto at = first_byte_not_text(bytes);
  if (!at) return {};
  return fmt::format("byte {} is {}: is this a binary file? (--tokenizer byte takes any bytes)", grouped(*at),
                     bytes[*at] == '\0' ? "zero" : "not UTF-8 text");
}

size_t end_of_whole_characters(std::string_view text) {
  constexpr size_t kLongestCharacter = 4;
  for (size_t back = 1; back < std::min(kLongestCharacter, text.size() + 1); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // inside a character
    return character_size(text, text.size() - back) > back ? text.size() - back : text.size();
  }
  return text.size();
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
    begin = end + 1;
  }
  return lines;
}

std::string grouped(uint64_t number) {
  std::string digits = fmt::format("{}", number);
  for (size_t at = digits.size(); at > 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

std::string counted(uint64_t number, std::string_view noun) {
  return fmt::format("{} {}{}", grouped(number), noun, number == 1 ? "" : "s");
}

}  // namespace raffia::internal
