// Pieces "<0x00>" to "<0xFF>" of vocabularies that spell what they do not cover byte by byte.
#ifndef RAFFIA_IO_BYTE_PIECES_H_
#define RAFFIA_IO_BYTE_PIECES_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace raffia {

std::optional<unsigned char> byte_of_piece(std::string_view piece);  // "<0x41>" -> 'A'; nothing for other pieces

// By byte: the first id whose piece stands for it, or `missing`.
std::array<int32_t, 256> ids_of_bytes(std::span<const std::string> pieces, int32_t missing);

}  // namespace raffia

#endif  // RAFFIA_IO_BYTE_PIECES_H_
