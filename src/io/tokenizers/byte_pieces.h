// Pieces in the notation of SentencePiece: a mark for spaces, and "<0x00>" to "<0xFF>" for single bytes (byte fallback).
#ifndef RAFFIA_IO_TOKENIZERS_BYTE_PIECES_H_
#define RAFFIA_IO_TOKENIZERS_BYTE_PIECES_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace raffia::internal {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

std::optional<unsigned char> byte_of_piece(std::string_view piece);  // "<0x41>" -> 'A'; nullopt for other pieces

// By byte: the first id whose piece is that byte, or `missing`.
std::array<int32_t, 256> ids_of_bytes(std::span<const std::string> pieces, int32_t missing);

// Appends the id of the character's own piece, or those of its bytes.
void add_character(std::string_view character, const std::unordered_map<std::string_view, int32_t>& ids_of_pieces,
                   const std::array<int32_t, 256>& ids_of_bytes, std::vector<int32_t>& ids);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_TOKENIZERS_BYTE_PIECES_H_
