// Weights stored as floats, read as fp32.

#if defined(RAFFIA_KERNELS_STORED_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_STORED_WEIGHTS_INL_H_
#undef RAFFIA_KERNELS_STORED_WEIGHTS_INL_H_
#else
#define RAFFIA_KERNELS_STORED_WEIGHTS_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"
#include "kernels/panel-inl.h"
#include "kernels/weight_product.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One vector of weights.
HWY_INLINE Vec load_weights(const float* w) { return hn::LoadU(Tag(), w); }
HWY_INLINE Vec load_weights(const BFloat16* w) {
  const hn::Rebind<hwy::bfloat16_t, Tag> narrow;
  return hn::PromoteTo(Tag(), hn::LoadU(narrow, reinterpret_cast<const hwy::bfloat16_t*>(w)));
}

// `count` weights that lie side by side.
template <class W>
HWY_INLINE void widen_weights(const W* w, size_t count, float* HWY_RESTRICT out) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(load_weights(w + i), Tag(), out + i);
  if (i < count) {
    HWY_ALIGN W tail[kLanes] = {};
    HWY_ALIGN float widened[kLanes];
    std::memcpy(tail, w + i, (count - i) * sizeof(W));
    hn::Store(load_weights(tail), Tag(), widened);
    std::copy_n(widened, count - i, out + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
