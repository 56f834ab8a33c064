// The words of the command: lines of progress bars, and what a misspelled name was meant to be.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/shared/progress.h"
#include "cli/shared/suggest.h"

namespace raffia::cli {
namespace {

const std::string kWords = "step 120/12000, loss 4.1234, lr 1.00e-03, 12345 tokens/s";
const std::string kLeft = ", 12 min left";

TEST(BarLine, IsNarrowerThanTheTerminal) {
  for (size_t columns = 1; columns < 200; ++columns) {
    for (const double fraction : {0.0, 0.45, 1.0}) {
      EXPECT_LT(bar_line(fraction, kWords, kLeft, columns).size(), columns) << columns;
      EXPECT_LT(bar_line(fraction, "a single part without any comma that is quite long", "", columns).size(), columns) << columns;
    }
  }
}

TEST(BarLine, LosesWordsBeforeItLosesShareAndTimeLeft) {
  EXPECT_EQ(bar_line(0.5, kWords, kLeft, 120), "[###############...............]  50% " + kWords + kLeft);
  EXPECT_EQ(bar_line(0.5, kWords, kLeft, 80), "[#########.........]  50% step 120/12000, loss 4.1234, lr 1.00e-03, 12 min left");
  EXPECT_EQ(bar_line(0.5, kWords, kLeft, 40), " 50% step 120/12000, 12 min left");
}

TEST(BarLine, CharactersOfSeveralBytesAreOneColumn) { EXPECT_EQ(bar_line(1, "\u00e9\u00e9\u00e9", "", 8), "100% \u00e9\u00e9"); }

TEST(EditDistance, CountsSwapsOfNeighboursOnce) {
  EXPECT_EQ(edit_distance("train", "train"), 0U);
  EXPECT_EQ(edit_distance("trian", "train"), 1U);
  EXPECT_EQ(edit_distance("tran", "train"), 1U);
  EXPECT_EQ(edit_distance("traain", "train"), 1U);
  EXPECT_EQ(edit_distance("brain", "train"), 1U);
  EXPECT_EQ(edit_distance("", "train"), 5U);
  EXPECT_EQ(edit_distance("generate", "info"), 7U);
}

TEST(Suggestion, NamesWhatIsCloseAndNothingElse) {
  const std::vector<std::string> known = {"generate", "translate", "train", "info"};
  EXPECT_EQ(suggestion("trian", known), ": did you mean 'train'?");
  EXPECT_EQ(suggestion("gen", known), ": did you mean 'generate'?");
  EXPECT_EQ(suggestion("transalte", known), ": did you mean 'translate'?");
  EXPECT_EQ(suggestion("frobnicate", known), "");
  EXPECT_EQ(suggestion("x", known), "");
  EXPECT_EQ(suggestion("train", {}), "");
}

}  // namespace
}  // namespace raffia::cli
