#include "io/tokenizers/byte_pieces.h"

#include <charconv>

namespace raffia::internal {

std::optional<unsigned char> byte_of_piece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return {};
  unsigned char byte = 0;
  const auto [stop, error] = std::from_chars(&piece[3], &piece[5], byte, 16);
  if (error != std::errc() || stop != &piece[5]) return {};
  return byte;
}

std::array<int32_t, 256> ids_of_bytes(std::span<const std::string> pieces, int32_t missing) {
  std::array<int32_t, 256> ids;
  ids.fill(missing);
  for (size_t i = pieces.size(); i-- > 0;) {
    if (const auto byte = byte_of_piece(pieces[i])) ids[*byte] = static_cast<int32_t>(i);
  }
  return ids;
}

void add_character(std::string_view character, const std::unordered_map<std::string_view, int32_t>& ids_of_pieces,
                   const std::array<int32_t, 256>& ids_of_bytes, std::vector<int32_t>& ids) {
  if (const auto found = ids_of_pieces.find(character); found != ids_of_pieces.end()) {
    ids.push_back(found->second);
  } else {
    for (const char byte : character) ids.push_back(ids_of_bytes[static_cast<unsigned char>(byte)]);
  }
}

}  // namespace raffia::internal
