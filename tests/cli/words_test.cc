// Lines of progress bars.
#include <gtest/gtest.h>

#include <string>

#include "cli/shared/progress.h"

namespace raffia::internal::cli {
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

}  // namespace
}  // namespace raffia::internal::cli
