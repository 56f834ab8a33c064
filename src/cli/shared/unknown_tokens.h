// Collects text that is not in a vocabulary, for one message.
#ifndef RAFFIA_CLI_SHARED_UNKNOWN_TOKENS_H_
#define RAFFIA_CLI_SHARED_UNKNOWN_TOKENS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "raffia/tokenizer.h"

namespace raffia::internal::cli {

class UnknownTokens {
 public:
  explicit UnknownTokens(const Tokenizer& tokenizer) : tokenizer_(tokenizer), words_(tokenizer.kind() == "word") {}

  void add(std::string_view text, std::span<const int32_t> ids);  // a text and its ids

  // "3 characters are not in the vocabulary and were read as unknown tokens: "x", "y""; empty if all are.
  std::string summary() const;

 private:
  void find_examples(std::string_view text);

  const Tokenizer& tokenizer_;
  const bool words_;  // an unknown token is a word, else a character
  int64_t count_ = 0;
  std::unordered_set<std::string> tried_;
  std::vector<std::string> examples_;  // distinct, the first few
};

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_UNKNOWN_TOKENS_H_
