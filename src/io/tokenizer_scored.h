// Pieces with scores, as llama2.c keeps them: text is cut into characters, and the pair of neighbours whose union is the piece of
// the highest score becomes that piece, until none is left.
#ifndef RAFFIA_IO_TOKENIZER_SCORED_H_
#define RAFFIA_IO_TOKENIZER_SCORED_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "raffia/tokenizer.h"

namespace raffia {

// By id. Ids 0, 1 and 2 are unknown, begin and end. A piece "<0xNN>" stands for one byte: what no piece covers is spelled so.
struct ScoredPieces {
  std::vector<std::string> pieces;
  std::vector<float> scores;  // finite
};

// A tok.bin: int32 longest piece, then per piece float32 score, int32 size, bytes. Throws FormatError that names `where`.
ScoredPieces parse_scored_pieces(std::span<const std::byte> bytes, std::string_view where);

// Pieces of valid UTF-8 (as parse_scored_pieces leaves them). A text begins with a space that is not its own; decode() takes it
// away after begin().
std::unique_ptr<Tokenizer> make_scored_tokenizer(ScoredPieces pieces);

}  // namespace raffia

#endif  // RAFFIA_IO_TOKENIZER_SCORED_H_
