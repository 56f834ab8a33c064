// Checks a SentencePiece model before its library reads it. Input is not trusted.
#ifndef RAFFIA_IO_TOKENIZERS_SENTENCEPIECE_MODEL_H_
#define RAFFIA_IO_TOKENIZERS_SENTENCEPIECE_MODEL_H_

#include <string_view>

namespace raffia::internal {

// Rejects features that models trained here never have, and which SentencePiece 0.1.97 does not check: a compiled table of
// character replacements (precompiled_charsmap), which it reads beyond its end. Throws FormatError, which begins with `where`.
void check_sentencepiece_model(std::string_view bytes, std::string_view where);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_TOKENIZERS_SENTENCEPIECE_MODEL_H_
