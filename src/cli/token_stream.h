// Text that comes in parts, as token ids.
#ifndef RAFFIA_CLI_TOKEN_STREAM_H_
#define RAFFIA_CLI_TOKEN_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "raffia/tokenizer.h"

namespace raffia::cli {

// With the tokenizers that are learned here the ids are those of the whole text, however it is cut, unless a line of words or
// pieces is longer than the limit and has no space to cut it at. Vocabularies from elsewhere may have tokens that span lines:
// their text is kept until the limit, and what is longer is tokenised in parts that end where lines do.
class TokenStream {
 public:
  // What it keeps of a line, and of a text with a vocabulary from elsewhere.
  static constexpr size_t kLongestLine = size_t{1} << 20, kLongestText = size_t{1} << 24;

  // begins: false for text that goes on from what was read before.
  TokenStream(const Tokenizer& tokenizer, bool begins);
  TokenStream(const Tokenizer& tokenizer, bool begins, size_t limit);

  std::vector<int32_t> push(std::string_view text);  // ids of all that is certain by now
  std::vector<int32_t> finish();                     // of the rest
  size_t held() const { return rest_.size(); }       // bytes of that rest

  // Sees each part of the text as it is tokenised.
  std::function<void(std::string_view text, std::span<const int32_t> ids)> on_encoded;

 private:
  size_t certain() const;  // bytes of rest_ that can be tokenised now
  std::vector<int32_t> encode(std::string_view text);

  const Tokenizer& tokenizer_;
  const std::string kind_;
  const bool learned_here_;
  const size_t limit_;
  bool begins_;
  std::string rest_;
};

// Ids of the end of a line; none where the vocabulary does not know it.
std::vector<int32_t> line_end_of(const Tokenizer& tokenizer);

// What a text begins with that has nothing else: begin(), or the end of a line before it.
std::vector<int32_t> opening_of(const Tokenizer& tokenizer);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_TOKEN_STREAM_H_
