#include "io/data/bleu.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "raffia/error.h"

namespace raffia::internal {
namespace {

using Texts = std::vector<std::string>;

// Expected values here are from a script that applies the published regular expressions of mteval-v13a with Python's re, counts
// n-grams as tuples in a Counter, and smooths as sacreBLEU documents "exp".
TEST(Bleu, TokensAreThoseOf13a) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"1,000.50", "1,000.50"},
      {"it's", "it's"},
      {"-", "-"},
      {"&quot;Hi&quot;", "\" Hi \""},
      {"10-20", "10 - 20"},
      {"a.b..c,d", "a . b . . c , d"},
      {"end.", "end ."},
      {"no. 5, 6.", "no . 5 , 6 ."},
      {"<skipped>x-\ny", "xy"},
      {"caf\xC3\xA9.", "caf\xC3\xA9 ."},
      {"U.S.A.", "U . S . A ."},
      {"3.", "3 ."},
      {"$5/kg (net)", "$ 5 / kg ( net )"},
      {"a&amp;b &lt;c&gt;", "a & b < c >"},
      {"&amp;lt;", "<"},
      {"x\xC2\xA0y\xE3\x80\x80z\xE2\x80\xA8w \xC2\xA0", "x y z w"},
      {"...", ". . ."},
      {"5.-6", "5 . -6"},
      {"well-known [sic] {x|y} ~50%", "well-known [ sic ] { x | y } ~ 50 %"},
      {"", ""},
  };
  for (const auto& [sentence, tokens] : cases) EXPECT_EQ(tokens_13a(sentence), tokens);
}

struct Expected {
  Texts hypotheses, references;
  double score;
  std::array<double, 4> precisions;
  double brevity_penalty;
  int64_t hypothesis_length, reference_length;
};

TEST(Bleu, ScoresAreThoseOfTheDefinition) {
  const std::vector<Expected> cases = {
      {{"The cat sat on the mat."}, {"The cat sat on the mat."}, 100, {100, 100, 100, 100}, 1, 7, 7},
      {{"The cat is on the mat.", "There was \"no\" price of $1,000.50!"},
       {"The cat sat on the mat.", "There's a price of $1,000.50, no?"},
       36.051731136821424,
       {1100.0 / 17, 700.0 / 15, 400.0 / 13, 200.0 / 11},
       1,
       17,
       16},
      // No match of 2-, 3- and 4-grams: 1/2, 1/4 and 1/8 of one.
      {{"one two three four five six"},
       {"one three five two four seven eight"},
       10.27399780837539,
       {500.0 / 6, 50.0 / 5, 25.0 / 4, 12.5 / 3},
       0.846481724890614,
       6,
       7},
      // A word counts as often as it is in the reference.
      {{"the the the the the the the"}, {"the cat is on the mat"}, 7.809849842300637, {200.0 / 7, 50.0 / 6, 5, 3.125}, 1, 7, 6},
      // An empty translation makes the whole shorter.
      {{"", "a man in a blue shirt is standing on a ladder cleaning a window"},
       {"two men are at the stove", "a man in a blue shirt is standing on a ladder cleaning windows"},
       58.672907271490864,
       {1200.0 / 14, 1100.0 / 13, 1000.0 / 12, 900.0 / 11},
       0.6996725373751302,
       14,
       19},
      // No 4-gram at all, no match at all, nothing at all.
      {{"a b c"}, {"a b c"}, 0, {100, 100, 100, 0}, 1, 3, 3},
      {{"x y z"}, {"a b c d"}, 0, {0, 0, 0, 0}, 0.7165313105737893, 3, 4},
      {{""}, {"a"}, 0, {0, 0, 0, 0}, 0, 0, 1},
  };
  for (const Expected& expected : cases) {
    const Bleu bleu = corpus_bleu(expected.hypotheses, expected.references);
    const std::string& name = expected.hypotheses.back();
    EXPECT_NEAR(bleu.score, expected.score, 1e-10) << name;
    for (size_t n = 0; n < 4; ++n) EXPECT_NEAR(bleu.precisions[n], expected.precisions[n], 1e-10) << name << ", order " << n + 1;
    EXPECT_NEAR(bleu.brevity_penalty, expected.brevity_penalty, 1e-12) << name;
    EXPECT_EQ(bleu.hypothesis_length, expected.hypothesis_length) << name;
    EXPECT_EQ(bleu.reference_length, expected.reference_length) << name;
  }
}

TEST(Bleu, CorpusIsMoreThanTheMeanOfSentences) {
  const Texts hypotheses = {"a b c d e", "x"}, references = {"a b c d e", "x"};
  EXPECT_NEAR(corpus_bleu(hypotheses, references).score, 100, 1e-10);  // the second alone has no 4-gram
}

TEST(Bleu, UnequalNumbersOfSentencesAreRefused) {
  EXPECT_THROW((void)corpus_bleu(Texts{"a"}, Texts{"a", "b"}), InvalidArgument);
  EXPECT_EQ(bleu_signature().rfind("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:raffia-", 0), 0U);
}

}  // namespace
}  // namespace raffia::internal
