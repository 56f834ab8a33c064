// What every tokenizer has to hold, whatever file it came from.
#ifndef RAFFIA_FUZZ_TOKENIZER_USE_H_
#define RAFFIA_FUZZ_TOKENIZER_USE_H_

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "raffia/tokenizer.h"

inline void use(const raffia::Tokenizer& tokenizer, std::string_view text) {
  const std::string kind = tokenizer.kind();
  const int32_t unknown = tokenizer.unknown();
  std::vector<int32_t> ids = tokenizer.encode(text);
  bool known = true;
  for (const int32_t id : ids) {
    if (id < 0 || id >= tokenizer.vocabulary()) std::abort();
    known = known && id != unknown;
  }
  const std::string decoded = tokenizer.decode(ids);
  if (kind == "bpe" || !known) return;  // a text may hold marks for spaces and special pieces, which do not come back
  // What was decoded says the same again; without unknowns it is the text, but for the spacing of words.
  if (kind == "scored") {
    ids.insert(ids.begin(), tokenizer.begin());
    if (tokenizer.decode(ids) != text) std::abort();
    return;
  }
  if (tokenizer.encode(decoded) != ids) std::abort();
  if (kind != "word" && decoded != text) std::abort();
}

#endif  // RAFFIA_FUZZ_TOKENIZER_USE_H_
