#include "core/trace.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "raffia/isa.h"

namespace raffia::internal {
namespace {

int run_op(int64_t chunk) {
  float data[6] = {};
  { const Trace trace("fold_keys", "k", View2(data, {2, 3}), chunk); }
  return 0;
}

class TraceTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(TraceTest, PrintsOpShapeIsaChunkAndTime) {
  const auto verbose_op = [] {
    setenv("RAFFIA_VERBOSE", "1", 1);
    set_max_isa(Isa::scalar);
    std::exit(run_op(16));
  };
  EXPECT_EXIT(verbose_op(), testing::ExitedWithCode(0), "^raffia: fold_keys k\\[2, 3\\] isa scalar chunk 16 [0-9.e-]+ ms\n$");
}

TEST_F(TraceTest, OpsWithoutChunksDoNotMentionThem) {
  const auto verbose_op = [] {
    setenv("RAFFIA_VERBOSE", "1", 1);
    set_max_isa(Isa::scalar);
    std::exit(run_op(0));
  };
  EXPECT_EXIT(verbose_op(), testing::ExitedWithCode(0), "^raffia: fold_keys k\\[2, 3\\] isa scalar [0-9.e-]+ ms\n$");
}

TEST_F(TraceTest, IsSilentByDefault) {
  const auto quiet_op = [] {
    unsetenv("RAFFIA_VERBOSE");
    std::exit(run_op(16));
  };
  EXPECT_EXIT(quiet_op(), testing::ExitedWithCode(0), "^$");
}

}  // namespace
}  // namespace raffia::internal
