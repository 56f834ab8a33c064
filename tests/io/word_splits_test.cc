#include "io/tokenizers/word_splits.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "io/tokenizers/unicode_classes.h"
#include "raffia/random.h"

namespace raffia::internal {
namespace {

using Words = std::vector<std::string_view>;

TEST(UnicodeClasses, TellLettersNumbersAndSpaces) {
  for (const uint32_t letter : {0x41U, 0x7AU, 0xAAU, 0xDFU, 0x3B1U, 0x4E00U, 0x9FFFU, 0xAC00U, 0x1D400U, 0x20000U}) {
    EXPECT_TRUE(is_unicode_letter(letter)) << letter;
    EXPECT_FALSE(is_unicode_number(letter) || is_unicode_space(letter)) << letter;
  }
  for (const uint32_t number : {0x30U, 0xB2U, 0xBDU, 0x661U, 0x2167U, 0x1D7CEU}) {
    EXPECT_TRUE(is_unicode_number(number)) << number;
    EXPECT_FALSE(is_unicode_letter(number) || is_unicode_space(number)) << number;
  }
  for (const uint32_t space : {0x09U, 0x0DU, 0x20U, 0x85U, 0xA0U, 0x2003U, 0x3000U}) {
    EXPECT_TRUE(is_unicode_space(space)) << space;
    EXPECT_FALSE(is_unicode_letter(space) || is_unicode_number(space)) << space;
  }
  for (const uint32_t other : {0x00U, 0x1CU, 0x5FU, 0xD7U, 0x300U, 0x200BU, 0xFEFFU, 0x1F331U, 0x110000U}) {
    EXPECT_FALSE(is_unicode_letter(other) || is_unicode_number(other) || is_unicode_space(other)) << other;
  }
}

// What the regular expressions give, found with Perl: perl -CSDA -ne 'print "[$&]" while /.../g'.
TEST(WordSplits, Gpt2CutsAsItsExpressionDoes) {
  EXPECT_EQ(words_of("Hello world, it's 2024!", WordSplit::gpt2), (Words{"Hello", " world", ",", " it", "'s", " 2024", "!"}));
  EXPECT_EQ(words_of("we'll   go\n\n  on ", WordSplit::gpt2), (Words{"we", "'ll", "  ", " go", "\n\n ", " on", " "}));
  EXPECT_EQ(words_of("I'M 'tis\tx", WordSplit::gpt2), (Words{"I", "'", "M", " '", "tis", "\t", "x"}));
  EXPECT_EQ(words_of("na\xC3\xAFve\xC2\xA0 \xE4\xBD\xA0\xE5\xA5\xBD\xC2\xBD_", WordSplit::gpt2),
            (Words{"na\xC3\xAFve", "\xC2\xA0", " \xE4\xBD\xA0\xE5\xA5\xBD", "\xC2\xBD", "_"}));
  EXPECT_EQ(words_of("a\xFF\xFE b", WordSplit::gpt2), (Words{"a", "\xFF\xFE", " b"}));
}

// A run of white space that ends in one of several bytes: only its last character is left to what follows.
TEST(WordSplits, RunsThatEndInAMultiByteSpaceAreCutBeforeIt) {
  for (const std::string space : {"\xC2\xA0", "\xE2\x80\x83", "\xE3\x80\x80"}) {
    const std::string text = " " + space + "x", longer = "a  " + space + "1";
    for (const WordSplit split : {WordSplit::gpt2, WordSplit::gpt2_digits}) {
      EXPECT_EQ(words_of(text, split), (Words{" ", space, "x"}));
    }
    EXPECT_EQ(words_of(text, WordSplit::llama3), (Words{" ", std::string_view(text).substr(1)}));
    EXPECT_EQ(words_of(longer, WordSplit::gpt2), (Words{"a", "  ", space, "1"}));
    EXPECT_EQ(words_of(longer, WordSplit::llama3), (Words{"a", "  ", space, "1"}));
  }
}

TEST(WordSplits, DigitsStandAlone) {
  EXPECT_EQ(words_of("in 2024, 3rd", WordSplit::gpt2_digits), (Words{"in", " ", "2", "0", "2", "4", ",", " ", "3", "rd"}));
}

TEST(WordSplits, Llama3CutsAsItsExpressionDoes) {
  EXPECT_EQ(words_of("Hello world, IT'S 12345!\n\n", WordSplit::llama3),
            (Words{"Hello", " world", ",", " IT", "'S", " ", "123", "45", "!\n\n"}));
  EXPECT_EQ(words_of("(a) \n \n  b\t\tc  ", WordSplit::llama3), (Words{"(a", ")", " \n \n", " ", " b", "\t", "\tc", "  "}));
  EXPECT_EQ(words_of("\r\nx\n y ...", WordSplit::llama3), (Words{"\r\n", "x", "\n", " y", " ..."}));
}

TEST(WordSplits, WordsSideBySideAreTheText) {
  RandomStream random({.seed = 11});
  const std::vector<std::string> parts = {" ",
                                          "  ",
                                          "\n",
                                          "\r\n",
                                          "\t",
                                          "'",
                                          "'re",
                                          "'LL",
                                          "a",
                                          "Ab",
                                          "7",
                                          "42",
                                          "-",
                                          "...",
                                          "\xC3\xA9",
                                          "\xE4\xBD\xA0",
                                          "\xC2\xA0",
                                          "\xE3\x80\x80",
                                          "\xF0\x9F\x8C\xB1",
                                          "\xFF",
                                          std::string(1, '\0')};
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (uint32_t i = random.next_u32() % 40; i > 0; --i) text += parts[random.next_u32() % parts.size()];
    for (const WordSplit split : {WordSplit::none, WordSplit::gpt2, WordSplit::gpt2_digits, WordSplit::llama3}) {
      std::string joined;
      for (const std::string_view word : words_of(text, split)) {
        EXPECT_FALSE(word.empty());
        joined += word;
      }
      EXPECT_EQ(joined, text);
    }
  }
}

}  // namespace
}  // namespace raffia::internal
