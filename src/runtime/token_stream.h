// The tokens that a session reads for a text, which may arrive in parts: the one place that decides them.
#ifndef RAFFIA_RUNTIME_TOKEN_STREAM_H_
#define RAFFIA_RUNTIME_TOKEN_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "raffia/tokenizer.h"

namespace raffia::internal::runtime {

// With tokenizers trained by Raffia the ids are those of the whole text, however it is split, unless a line of words or pieces is
// longer than the limit and has no space to split it at. Imported vocabularies may have tokens that span lines: their text is
// kept up to the limit, and longer text is tokenised in parts that end at line ends.
//
// A text that begins starts with the begin token, if the vocabulary begins texts with it, and with the space that encode() puts
// before a text. It has at least one token: without any other, its opening.
class TokenStream {
 public:
  // Maximum length of a line that is kept, and of a text with an imported vocabulary.
  static constexpr size_t kLongestLine = size_t{1} << 20, kLongestText = size_t{1} << 24;

  // begins: false for text that continues what was read before, which gets neither of them.
  TokenStream(const Tokenizer& tokenizer, bool begins);
  TokenStream(const Tokenizer& tokenizer, bool begins, size_t limit);

  std::vector<int32_t> push(std::string_view text);  // ids that later text can no longer change
  std::vector<int32_t> finish();                     // of the rest
  size_t held() const { return rest_.size(); }       // bytes of that rest

  // Called with each part of the text as it is tokenised.
  std::function<void(std::string_view text, std::span<const int32_t> ids)> on_encoded;

 private:
  size_t certain() const;                  // bytes of rest_ that can be tokenised now
  std::vector<int32_t> take(size_t size);  // tokenises as many bytes of rest_

  const Tokenizer& tokenizer_;
  const std::string kind_;
  const bool learned_here_;
  const size_t limit_;
  bool wants_begin_;    // the begin token is still to come
  bool wants_space_;    // the first text is still to come
  bool wants_opening_;  // no token has come yet, and there must be one
  std::string rest_;
};

// Ids of the end of a line; empty if the vocabulary has none.
std::vector<int32_t> line_end_of(const Tokenizer& tokenizer);

// All tokens of a text.
std::vector<int32_t> tokens_of(const Tokenizer& tokenizer, std::string_view text, bool begins);

// The first id of a text without a prompt: begin(), or the end of a line.
std::vector<int32_t> opening_of(const Tokenizer& tokenizer);

}  // namespace raffia::internal::runtime

#endif  // RAFFIA_RUNTIME_TOKEN_STREAM_H_
