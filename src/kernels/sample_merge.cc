#include "kernels/sample_merge.h"

#include <algorithm>
#include <limits>

#include "core/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sample_merge.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off: foreach_target.h comes first
#include "kernels/math-inl.h"
#include "kernels/panel-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// out = p a + q b
HWY_INLINE void mix_rows(const float* HWY_RESTRICT added, float p, float q, size_t count, float* HWY_RESTRICT values) {
  const Tag d;
  const Vec kept = hn::Set(d, p), share = hn::Set(d, q);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(hn::MulAdd(share, hn::LoadU(d, added + i), hn::Mul(kept, hn::LoadU(d, values + i))), d, values + i);
  }
  for (; i < count; ++i) values[i] = p * values[i] + q * added[i];
}

// Sixteen samples at a time, the last ones in buffers filled up with samples that have no weight.
void merge_all(const SampleMerge& merge) {
  const Tag d;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const size_t apart = merge.value_stride == 0 ? merge.value_dim : merge.value_stride;
  const Vec none = hn::Set(d, kNone), zero = hn::Zero(d), decay = hn::Set(d, merge.log_decay);
  for (size_t first = 0; first < merge.count; first += kPanel) {
    const size_t count = HWY_MIN(kPanel, merge.count - first);
    alignas(64) float before[kPanel], added[kPanel], mixture[kPanel], kept[kPanel], share[kPanel];
    for (size_t t = 0; t < kPanel; ++t) before[t] = t < count ? merge.log_weights[(first + t) * merge.weight_stride] : kNone;
    std::fill(std::copy_n(merge.added + first, count, added), added + kPanel, kNone);
    std::fill_n(mixture, kPanel, 0.0f);
    if (merge.mixture != nullptr) std::copy_n(merge.mixture + first, count, mixture);
    for (size_t i = 0; i < kPanel; i += kLanes) {
      const Vec a = hn::Add(hn::Load(d, before + i), decay), b = hn::Sub(hn::Load(d, added + i), hn::Load(d, mixture + i));
      const Vec most = hn::Max(a, b), safe = hn::IfThenElse(hn::Eq(most, none), zero, most);
      const Vec finite = hn::Add(most, hn::Log1p(d, exp_of_nonpositive(d, hn::Sub(hn::Min(a, b), safe))));
      // Which one of two operands Max and Min return if one is NaN depends on the CPU.
      const Vec sum = hn::IfThenElse(hn::IsNaN(hn::Add(a, b)), hn::Add(a, b), finite);
      const Vec reference = hn::IfThenElse(hn::Eq(sum, none), zero, sum);
      hn::Store(sum, d, before + i);
      hn::Store(exp_of_nonpositive(d, at_most(d, zero, hn::Sub(a, reference))), d, kept + i);
      hn::Store(exp_of_nonpositive(d, at_most(d, zero, hn::Sub(b, reference))), d, share + i);
    }
    for (size_t t = 0; t < count; ++t) {
      const size_t sample = first + t;
      merge.log_weights[sample * merge.weight_stride] = before[t];
      mix_rows(merge.added_values + sample * merge.value_dim, kept[t], share[t], merge.value_dim, merge.values + sample * apart);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace raffia::internal {

HWY_EXPORT(merge_all);

void merge_samples(const SampleMerge& merge) { chosen(KernelOp::sample_merge, HWY_DISPATCH_TABLE(merge_all))(merge); }

}  // namespace raffia::internal
#endif
