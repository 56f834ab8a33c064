// Token ids to text, as they come: for programs that sample tokens themselves and show them at once.
//
//   raffia::TextStream text(model->tokenizer(), session.recent());
//   for (int i = 0; i < 100; ++i) {
//     const int32_t id = session.sample();
//     session.step(id);
//     std::cout << text.add(id) << std::flush;
//   }
//   std::cout << text.rest();
#ifndef RAFFIA_TEXT_STREAM_H_
#define RAFFIA_TEXT_STREAM_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "raffia/api.h"
#include "raffia/tokenizer.h"

namespace raffia {

// All that add() returns, and rest() after it, is the text of the ids after those `before` them. The text that a token adds
// depends on the tokens before it: a space before a word, the rest of a character.
class RAFFIA_API TextStream {
 public:
  // The tokenizer must outlive the stream. `before`: tokens that the text continues; the last few are enough.
  explicit TextStream(const Tokenizer& tokenizer, std::span<const int32_t> before = {});

  std::string add(int32_t id);  // the new text, up to the last whole UTF-8 character: it may be empty
  std::string rest() const;     // what was held back so far: an incomplete character

 private:
  const Tokenizer* tokenizer_;
  std::vector<int32_t> ids_;  // the last few
  std::string told_;          // of their text
};

}  // namespace raffia

#endif  // RAFFIA_TEXT_STREAM_H_
