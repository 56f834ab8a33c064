#include "core/scratch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "raffia/error.h"

namespace raffia::internal {
namespace {

TEST(Scratch, ArenasAreAlignedAndApart) {
  for (size_t floats : {size_t{0}, size_t{1}, size_t{16}, size_t{31}, size_t{32}, size_t{1000}}) {
    const Scratch scratch(3, floats);
    for (int worker = 0; worker < 3; ++worker) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(scratch.of(worker)) % 64, 0U);
      std::fill_n(scratch.of(worker), floats, static_cast<float>(worker));
    }
    for (int worker = 0; worker < 3; ++worker) {
      EXPECT_EQ(std::count(scratch.of(worker), scratch.of(worker) + floats, static_cast<float>(worker)),
                static_cast<std::ptrdiff_t>(floats));
    }
    // No line, nor the line that is fetched with it, holds floats of two workers.
    EXPECT_GE((scratch.of(1) - scratch.of(0) - static_cast<std::ptrdiff_t>(floats)) * 4, 128 - 64);
  }
}

TEST(Scratch, RefusesSizesThatCannotBe) {
  EXPECT_THROW(Scratch(0, 10), InvalidArgument);
  EXPECT_THROW(Scratch(4, SIZE_MAX / 8), InvalidArgument);
}

TEST(Scratch, IsPoisonedOnRequest) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("RAFFIA_POISON", "1", 1);
        const Scratch scratch(2, 100);
        const auto is_nan = [](float x) { return std::isnan(x); };
        std::exit(std::all_of(scratch.of(0), scratch.of(1) + 100, is_nan) ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace raffia::internal
