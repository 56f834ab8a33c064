// Pieces with scores, as in llama2.c: text is split into characters, and the adjacent pair whose union is the piece with the
// highest score is merged, until no pair is a piece.
#ifndef RAFFIA_IO_TOKENIZERS_TOKENIZER_SCORED_H_
#define RAFFIA_IO_TOKENIZERS_TOKENIZER_SCORED_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "raffia/tokenizer.h"

namespace raffia::internal {

// By id. Ids 0, 1 and 2 are unknown, begin and end. A piece "<0xNN>" is one byte, for characters without a piece.
struct ScoredPieces {
  std::vector<std::string> pieces;
  std::vector<float> scores;  // finite
};

// A tok.bin: int32 longest piece, then per piece float32 score, int32 size, bytes. Throws FormatError that names `where`.
ScoredPieces parse_scored_pieces(std::span<const std::byte> bytes, std::string_view where);

// Pieces of valid UTF-8 (as parse_scored_pieces returns them). encode() puts a space before a text; decode() removes it after
// begin().
std::unique_ptr<Tokenizer> make_scored_tokenizer(ScoredPieces pieces);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_TOKENIZERS_TOKENIZER_SCORED_H_
