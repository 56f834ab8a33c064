// tokenizer.json of Hugging Face: byte pair encoding over bytes, or over characters with byte fallback. Other settings of such a
// file are errors that name the setting.
#ifndef RAFFIA_IO_IMPORTS_HF_TOKENIZER_H_
#define RAFFIA_IO_IMPORTS_HF_TOKENIZER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "io/tokenizers/tokenizer_bpe.h"

namespace raffia::internal {

struct HfTokenizerFiles {
  std::string_view tokenizer;         // text of tokenizer.json
  std::string_view tokenizer_config;  // of tokenizer_config.json; empty: there is none
  std::string_view where;             // names tokenizer.json in messages
  std::string_view where_config;      // likewise
};

// Ids up to `vocabulary`, which may be more than the file has: models pad their embedding. 0: as many as the file has.
// Throws FormatError.
BpeModel bpe_from_hf(const HfTokenizerFiles& files, int64_t vocabulary);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_IMPORTS_HF_TOKENIZER_H_
