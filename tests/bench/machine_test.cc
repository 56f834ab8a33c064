#include "bench/machine.h"

#include <gtest/gtest.h>

#include <string>

namespace raffia::internal::bench {
namespace {

bool everywhere(int) { return true; }

//                          user nice system idle iowait irq softirq steal guest guest_nice
const std::string kBefore =
    "cpu  9 9 9 9 9 9 9 9 0 0\n"
    "cpu0 100 50 10 1000 5 0 1 2 0 0\n"
    "cpu1 200 50 10 1000 5 0 1 2 0 0\n"
    "cpu2 300 50 10 1000 5 0 1 2 0 0\n"
    "intr 1 2 3\n";

TEST(BusyCores, AreCountedByTheirShareOfTime) {
  const std::string after =
      "cpu  99 9 9 9 9 9 9 9 0 0\n"
      "cpu0 120 50 15 1000 5 1 2 5 0 0\n"   // 30 of 30 ticks busy
      "cpu1 210 50 15 1015 5 0 1 2 0 0\n"   // 15 of 30
      "cpu2 300 50 10 1010 25 0 1 2 0 0\n"  // 0 of 30: waiting for a disk is idle
      "intr 1 2 3\n";
  EXPECT_DOUBLE_EQ(busy_cores(kBefore, after, everywhere), 1.5);
  EXPECT_DOUBLE_EQ(busy_cores(kBefore, after, [](int cpu) { return cpu != 0; }), 0.5);
}

TEST(BusyCores, ProcessesOfLowPriorityDoNotCount) {
  const std::string after = "cpu0 100 80 10 1000 5 0 1 2 0 0\n";
  EXPECT_DOUBLE_EQ(busy_cores(kBefore, after, everywhere), 0.0);
}

TEST(BusyCores, AreNoneWhereTheSystemDoesNotTell) {
  EXPECT_DOUBLE_EQ(busy_cores("", "", everywhere), 0.0);
  EXPECT_DOUBLE_EQ(busy_cores(kBefore, kBefore, everywhere), 0.0);
  EXPECT_DOUBLE_EQ(busy_cores("cpu0 1 2\n", "cpu0 x\n", everywhere), 0.0);
}

}  // namespace
}  // namespace raffia::internal::bench
