// Compiled once per target, as kernels are.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/dispatch_test.cc"
#include "core/dispatch.h"

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace raffia::internal::HWY_NAMESPACE {

int64_t running_target() { return HWY_TARGET; }

}  // namespace raffia::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "raffia/error.h"
#include "raffia/isa.h"

namespace raffia::internal {
namespace {

HWY_EXPORT(running_target);

Isa isa_of_running_target(KernelOp op = KernelOp::probe) {
  switch (chosen(op, HWY_DISPATCH_TABLE(running_target))()) {
    case HWY_SSE4:
      return Isa::sse4;
    case HWY_AVX2:
      return Isa::avx2;
    case HWY_AVX3:
    case HWY_AVX3_DL:
      return Isa::avx512;
    case HWY_NEON:
      return Isa::neon;
    case HWY_EMU128:
    case HWY_SCALAR:
      return Isa::scalar;
    default:
      ADD_FAILURE() << "a target without a name";
      return Isa::scalar;
  }
}

TEST(Dispatch, EveryIsaRunsItsOwnVariant) {
  for (Isa isa : available_isas()) {
    set_max_isa(isa);
    EXPECT_EQ(isa_of_running_target(), isa) << name_of(isa);
  }
  set_max_isa(Isa::avx512);
  EXPECT_EQ(isa_of_running_target(), active_isa());
}

TEST(Dispatch, LeavesTheChoiceOfOtherUsersOfHighwayAlone) {
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  const size_t before = hwy::GetChosenTarget().GetIndex();
  set_max_isa(Isa::scalar);
  chosen(KernelOp::probe, HWY_DISPATCH_TABLE(running_target))();
  EXPECT_EQ(hwy::GetChosenTarget().GetIndex(), before);
  set_max_isa(Isa::avx512);
}

// RAFFIA_MAX_ISA is read once, so each of these runs in a process of its own.
class IsaExceptions : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(IsaExceptions, AreObeyedByTheirOpAlone) {
  EXPECT_EXIT(
      {
        setenv("RAFFIA_MAX_ISA", "linear_step=scalar", 1);
        bool right = isa_of_running_target(KernelOp::linear_step) == Isa::scalar && active_isa() == available_isas().back();
        for (const IsaLimit& limit : kIsaLimits) {
          const Isa expected = limit.op == KernelOp::linear_step ? Isa::scalar : std::min(limit.widest, active_isa());
          right = right && isa_of_running_target(limit.op) == expected;
        }
        std::exit(right ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(IsaExceptions, AreListed) {
  EXPECT_EXIT(
      {
        setenv("RAFFIA_MAX_ISA", "softmax=scalar,linear_step=scalar", 1);
        std::string listed;
        for (const IsaException& exception : isa_exceptions()) {
          if (exception.isa == Isa::scalar) listed.append(exception.op).append(" ");
        }
        const bool others = active_isa() != Isa::scalar;  // than scalar
        std::exit(listed == (others ? "linear_step softmax " : "") ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(IsaExceptions, DoNotApplyWhileTheyAreMeasured) {
  EXPECT_EXIT(
      {
        setenv("RAFFIA_MAX_ISA", "linear_step=scalar", 1);
        bool right = true;
        {
          const WithoutIsaLimits no_limits;
          for (Isa isa : available_isas()) {
            set_max_isa(isa);
            right = right && isa_of_running_target(KernelOp::linear_step) == isa && isa_exceptions().empty();
          }
        }
        std::exit(right && isa_of_running_target(KernelOp::linear_step) == Isa::scalar ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(IsaExceptions, AreStillCapped) {
  EXPECT_EXIT(
      {
        setenv("RAFFIA_MAX_ISA", "scalar,linear_step=avx512", 1);
        std::exit(isa_of_running_target(KernelOp::linear_step) == Isa::scalar && isa_exceptions().empty() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

// VNNI belongs to avx512: integer products that may not use the one do not use the other.
TEST_F(IsaExceptions, OfIntegerProductsIncludeVnni) {
  EXPECT_EXIT(
      {
        setenv("RAFFIA_MAX_ISA", "integer_product=avx2", 1);
        std::exit(vnni_is_active() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(IsaExceptions, OfUnknownOpsAreRefused) {
  EXPECT_EXIT(
      {
        setenv("RAFFIA_MAX_ISA", "stride=avx2", 1);
        try {
          active_isa();
        } catch (const InvalidArgument& error) {
          std::fputs(error.what(), stderr);
          std::exit(1);
        }
        std::exit(0);
      },
      testing::ExitedWithCode(1), "RAFFIA_MAX_ISA: \"stride\" is not a kernel, expected one of adamw, cross_entropy, features");
}

}  // namespace
}  // namespace raffia::internal

#endif  // HWY_ONCE
