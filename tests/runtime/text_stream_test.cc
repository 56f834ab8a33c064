// Text of tokens, as they come.
#include "raffia/text_stream.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/formats/text.h"
#include "io/tokenizers/tokenizer_scored.h"
#include "support/tiny_vocabulary.h"

namespace raffia::internal {
namespace {

std::vector<std::shared_ptr<const Tokenizer>> tokenizers() {
  const std::string text = "a band on the run: a long time, \u00e9t\u00e9 \u20ac\n and a band\n\tlong long time \U0001F600\n";
  const std::string_view texts[] = {text};
  std::vector<std::shared_ptr<const Tokenizer>> all;
  for (const char* spec : {"byte", "char", "word", "sp:300"}) all.push_back(train_tokenizer(parse_tokenizer_spec(spec), texts));
  const std::string pieces = tok_bin(scored_pieces({" ", "a", "b", "ab", " ab"}));
  all.push_back(make_scored_tokenizer(parse_scored_pieces(std::as_bytes(std::span(pieces)), "tok.bin")));
  return all;
}

constexpr std::string_view kText =
    "a band \u00e9t\u00e9 ab \u20ac ab\n long \U0001F600 time and a long, long time on the run ab ab\n";

TEST(TextStream, GivesTheTextOfAllTokensInWholeCharacters) {
  for (const auto& tokenizer : tokenizers()) {
    const std::vector<int32_t> ids = tokenizer->encode(kText);
    TextStream stream(*tokenizer);
    std::string text;
    for (const int32_t id : ids) {
      const std::string more = stream.add(id);
      EXPECT_EQ(end_of_whole_characters(more), more.size()) << tokenizer->kind();
      text += more;
    }
    EXPECT_EQ(stream.rest(), "") << tokenizer->kind();
    EXPECT_EQ(text, tokenizer->decode(ids)) << tokenizer->kind();
  }
}

TEST(TextStream, ContinuesTheTokensBeforeIt) {
  for (const auto& tokenizer : tokenizers()) {
    std::vector<int32_t> ids = tokenizer->encode(kText);
    if (tokenizer->begins_texts()) ids.insert(ids.begin(), tokenizer->begin());
    const std::string whole = tokenizer->decode(ids);
    for (size_t before = 0; before <= ids.size(); ++before) {
      const std::span<const int32_t> known = std::span(ids).first(before);
      TextStream stream(*tokenizer, known);
      std::string text = tokenizer->decode(known);
      for (const int32_t id : std::span(ids).subspan(before)) text += stream.add(id);
      EXPECT_EQ(text + stream.rest(), whole) << tokenizer->kind() << " after " << before << " tokens";
    }
  }
}

TEST(TextStream, TheRestIsAnIncompleteCharacter) {
  const std::string text = "a\xE2\x82";
  const std::string_view texts[] = {text};
  const auto tokenizer = train_tokenizer(parse_tokenizer_spec("byte"), texts);
  TextStream stream(*tokenizer);
  std::string told;
  for (const int32_t id : tokenizer->encode(text)) told += stream.add(id);
  EXPECT_EQ(told, "a");
  EXPECT_EQ(stream.rest(), "\xE2\x82");
}

}  // namespace
}  // namespace raffia::internal
