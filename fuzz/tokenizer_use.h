// Properties that every tokenizer must have.
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
  if (kind == "bpe" || !known) return;  // a text may contain marks for spaces and special pieces, which are not decoded exactly
  // Decoded text encodes to the same ids; without unknown tokens it is the original text, except for spaces between words.
  if (kind == "scored") {
    ids.insert(ids.begin(), tokenizer.begin());
    if (tokenizer.decode(ids) != text) std::abort();
    return;
  }
  if (tokenizer.encode(decoded) != ids) std::abort();
  if (kind != "word" && decoded != text) std::abort();
}

#endif  // RAFFIA_FUZZ_TOKENIZER_USE_H_
