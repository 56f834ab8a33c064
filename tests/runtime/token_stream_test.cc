// Text in parts gives the ids of the whole.
#include "runtime/token_stream.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace raffia::internal::runtime {
namespace {

std::string text_of(size_t size) {
  std::mt19937 random(7);
  constexpr std::string_view kParts[] = {"a",      "band ",      " ",     "\n",   "\t",   "\u00e9",
                                         "\u20ac", "\U0001F600", "long ", "time", "\r\n", "\xE2"};
  std::string text;
  while (text.size() < size) text += kParts[random() % std::size(kParts)];
  return text;
}

std::unique_ptr<Tokenizer> learned(const std::string& spec) {
  const std::string text = "a band on the run: a long time, \u00e9t\u00e9 \u20ac\n and a band\n\tlong long time \U0001F600\n";
  const std::string_view texts[] = {text};
  return train_tokenizer(parse_tokenizer_spec(spec), texts);
}

TEST(TokenStream, PartsOfAnySizeGiveTheIdsOfTheWhole) {
  const std::string text = text_of(5000);
  for (const std::string spec : {"byte", "char", "word", "sp:300"}) {
    const auto tokenizer = learned(spec);
    const std::vector<int32_t> whole = tokenizer->encode(text);
    for (const size_t part : {1, 2, 3, 17, 1000, 5000}) {
      for (const size_t limit : {size_t{100}, TokenStream::kLongestLine}) {  // lines longer than 100 bytes have spaces
        TokenStream stream(*tokenizer, true, limit);
        std::vector<int32_t> ids;
        for (size_t at = 0; at < text.size(); at += part) {
          const auto more = stream.push(std::string_view(text).substr(at, part));
          ids.insert(ids.end(), more.begin(), more.end());
        }
        const auto rest = stream.finish();
        ids.insert(ids.end(), rest.begin(), rest.end());
        EXPECT_EQ(ids, whole) << spec << " in parts of " << part << ", limit " << limit;
      }
    }
  }
}

TEST(TokenStream, WhatItHoldsIsBounded) {
  constexpr size_t kLimit = 1000, kPart = 64;
  const std::string endless(kPart, 'a');  // one word without end
  for (const std::string spec : {"byte", "char", "word", "sp:300"}) {
    const auto tokenizer = learned(spec);
    TokenStream stream(*tokenizer, true, kLimit);
    for (int i = 0; i < 200; ++i) {
      stream.push(endless);
      EXPECT_LE(stream.held(), kLimit + kPart) << spec;
    }
  }
}

// A vocabulary from elsewhere, in which the second of two line ends means something else than the first.
class SpanningTokenizer : public Tokenizer {
 public:
  std::string kind() const override { return "spanning"; }
  int64_t vocabulary() const override { return 3; }
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < text.size(); ++i) ids.push_back(i > 0 && text[i] == '\n' && text[i - 1] == '\n' ? 2 : 1);
    return ids;
  }
  std::string decode(std::span<const int32_t>) const override { return ""; }
  void save(const std::filesystem::path&) const override {}
  uint64_t fingerprint() const override { return 0; }
};

TEST(TokenStream, TextOfOtherVocabulariesIsWholeUpToTheLimit) {
  const SpanningTokenizer tokenizer;
  TokenStream stream(tokenizer, true, 10);
  EXPECT_TRUE(stream.push("a\n").empty());
  EXPECT_TRUE(stream.push("\nb").empty());
  EXPECT_EQ(stream.finish(), (std::vector<int32_t>{1, 1, 2, 1}));
  EXPECT_EQ(stream.push("0123\n56789ab"), (std::vector<int32_t>{1, 1, 1, 1, 1}));  // past the limit: to the end of a line
  EXPECT_EQ(stream.held(), 7U);
}

TEST(TokenStream, ATextBeginsWithWhatTheVocabularyHas) {
  EXPECT_EQ(opening_of(*learned("byte")), (std::vector<int32_t>{4 + '\n'}));
  const std::string no_lines = "abc";
  const std::string_view texts[] = {no_lines};
  const auto tokenizer = train_tokenizer(parse_tokenizer_spec("char"), texts);
  EXPECT_TRUE(line_end_of(*tokenizer).empty());
  EXPECT_EQ(opening_of(*tokenizer), (std::vector<int32_t>{Tokenizer::kBegin}));
}

TEST(TokenStream, OnlyATextThatBeginsHasAnOpening) {
  const auto tokenizer = learned("byte");
  EXPECT_EQ(tokens_of(*tokenizer, "", true), opening_of(*tokenizer));
  EXPECT_TRUE(tokens_of(*tokenizer, "", false).empty());
  EXPECT_EQ(tokens_of(*tokenizer, "ab", true), tokenizer->encode("ab"));
  TokenStream stream(*tokenizer, true);
  EXPECT_EQ(stream.push("ab"), tokenizer->encode("ab"));
  EXPECT_TRUE(stream.finish().empty());
}

}  // namespace
}  // namespace raffia::internal::runtime
