#include "core/suggest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace raffia::internal {
namespace {

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
  EXPECT_EQ(suggestion(std::string(size_t{100} << 20, 'x'), known), "");  // at once
}

}  // namespace
}  // namespace raffia::internal
