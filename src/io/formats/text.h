// Reads files as text, and checks that they are text.
#ifndef RAFFIA_IO_FORMATS_TEXT_H_
#define RAFFIA_IO_FORMATS_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace raffia::internal {

// The whole file, any bytes. Throws IoError, and FormatError for a file of more than `limit` bytes, or one that is nearly all
// hole.
std::string read_file(const std::filesystem::path& path, uint64_t limit = UINT64_MAX);

// Replaces the file atomically.
void write_file(const std::filesystem::path& path, std::string_view bytes);

// Maximum sizes, also when decompressed: a small file can need any amount of memory.
// Of decompressed text; other texts need as much memory as they have bytes on disk.
constexpr uint64_t kMaxBytesOfText = uint64_t{1} << 33;
constexpr uint64_t kMaxBytesOfDataset = uint64_t{1} << 32;  // of images, all in one file
constexpr uint64_t kMaxBytesOfImage = uint64_t{1} << 26;    // a single image

// The whole file as bytes, decompressed if it is gzip or xz. Neither the file nor what it decompresses to may have more than
// `limit` bytes. All data are read by this function, by read_text_bytes or, from pipes and in constant memory, by cli::Input.
// Throws IoError and FormatError.
std::string read_data_file(const std::filesystem::path& path, uint64_t limit);

// Likewise for a text of any size, or of kMaxBytesOfText if it is compressed. Any bytes.
std::string read_text_bytes(const std::filesystem::path& path);

// The file name extension, in lower case. Of a compressed file it is the one before .gz or .xz: ".pgm" of "grey.PGM.xz".
std::string data_extension(const std::filesystem::path& path);

// read_text_bytes, and checks that it is not empty and UTF-8 without zero bytes. Throws FormatError, which names the first wrong
// byte.
std::string read_text_file(const std::filesystem::path& path);

// The offset of the first byte that is not part of valid UTF-8 (no surrogates, nothing overlong, at most U+10FFFF), or that is
// zero; nullopt for text.
std::optional<size_t> first_byte_not_text(std::string_view bytes);

// Why these bytes are not text, to be put after the name of the file: "byte 1,024 is not UTF-8 text: ..."; nullopt for text.
std::optional<std::string> why_not_text(std::string_view bytes);

// Bytes of the valid UTF-8 character, other than zero, that begins at bytes[at]; 0: there is none.
size_t valid_character_size(std::string_view bytes, size_t at);

// The code point of the character at bytes[at], and its size. Each byte that is not text counts as one character.
struct Character {
  uint32_t code;
  size_t size;
};
constexpr uint32_t kNoCode = 0x110000;  // of a byte that is not text
Character character_at(std::string_view bytes, size_t at);

// The same size for text that is known to be valid.
constexpr size_t character_size(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

// Where the last character begins if it is incomplete, else the end.
size_t end_of_whole_characters(std::string_view text);

// Lines without their ends (\n or \r\n). The last line need not have an end; there is no empty line after the last end.
std::vector<std::string_view> lines_of(std::string_view text);

// 1234567 -> "1,234,567".
std::string grouped(uint64_t number);

// 1, "token" -> "1 token"; 1234, "token" -> "1,234 tokens".
std::string counted(uint64_t number, std::string_view noun);
inline std::string counted(int64_t number, std::string_view noun) { return counted(static_cast<uint64_t>(number), noun); }

}  // namespace raffia::internal

#endif  // RAFFIA_IO_FORMATS_TEXT_H_
