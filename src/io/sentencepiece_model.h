// What a SentencePiece model asks its library to do, known before the library sees it. Bytes that come in are not trusted.
#ifndef RAFFIA_IO_SENTENCEPIECE_MODEL_H_
#define RAFFIA_IO_SENTENCEPIECE_MODEL_H_

#include <string_view>

namespace raffia {

// Refuses what the models that are trained here never have, and what SentencePiece 0.1.97 does not check: a compiled table of
// characters to replace (precompiled_charsmap), which it reads beyond its end. Throws FormatError, which begins with `where`.
void check_sentencepiece_model(std::string_view bytes, std::string_view where);

}  // namespace raffia

#endif  // RAFFIA_IO_SENTENCEPIECE_MODEL_H_
