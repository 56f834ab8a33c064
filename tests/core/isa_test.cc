#include "raffia/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "raffia/error.h"

namespace raffia::internal {
namespace {

constexpr Isa kAll[] = {Isa::scalar, Isa::neon, Isa::sse4, Isa::avx2, Isa::avx512};

class IsaTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  void TearDown() override { set_max_isa(Isa::avx512); }
};

TEST_F(IsaTest, NamesAreParsedBack) {
  for (Isa isa : kAll) EXPECT_EQ(parse_isa(name_of(isa)), isa);
}

TEST_F(IsaTest, AnUnknownNameListsTheKnownOnes) {
  try {
    parse_isa("sse9");
    FAIL() << "sse9 was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "parse_isa: \"sse9\" is not an instruction set, expected one of scalar, neon, sse4, avx2, avx512");
  }
}

TEST_F(IsaTest, ScalarIsAlwaysThereAndTheBestIsActive) {
  const std::vector<Isa> isas = available_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::scalar);
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
  EXPECT_EQ(active_isa(), isas.back());
}

TEST_F(IsaTest, ACapPicksTheBestWithinIt) {
  for (Isa cap : kAll) {
    set_max_isa(cap);
    Isa best = Isa::scalar;
    for (Isa isa : available_isas()) {
      if (isa <= cap) best = isa;
    }
    EXPECT_EQ(active_isa(), best) << name_of(cap);
  }
}

TEST_F(IsaTest, TheEnvironmentCapsWhateverTheProgramAsks) {
  EXPECT_EXIT(
      {
        setenv("RAFFIA_MAX_ISA", "scalar", 1);
        set_max_isa(Isa::avx512);
        std::exit(active_isa() == Isa::scalar && available_isas() == std::vector<Isa>{Isa::scalar} ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(IsaTest, ABadEnvironmentIsAnErrorAtEveryUse) {
  EXPECT_EXIT(
      {
        setenv("RAFFIA_MAX_ISA", "fast", 1);
        int errors = 0;
        for (int use = 0; use < 2; ++use) {
          try {
            active_isa();
          } catch (const InvalidArgument& error) {
            std::fputs(error.what(), stderr);
            ++errors;
          }
        }
        std::exit(errors);
      },
      testing::ExitedWithCode(2), "RAFFIA_MAX_ISA: \"fast\" is not an instruction set, expected one of scalar, neon, sse4");
}

}  // namespace
}  // namespace raffia::internal
