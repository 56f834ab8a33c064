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

#include "raffia/isa.h"

namespace raffia::internal {
namespace {

HWY_EXPORT(running_target);

Isa isa_of_running_target() {
  switch (chosen(HWY_DISPATCH_TABLE(running_target))()) {
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
  chosen(HWY_DISPATCH_TABLE(running_target))();
  EXPECT_EQ(hwy::GetChosenTarget().GetIndex(), before);
  set_max_isa(Isa::avx512);
}

}  // namespace
}  // namespace raffia::internal

#endif  // HWY_ONCE
