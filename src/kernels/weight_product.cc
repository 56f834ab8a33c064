#include "kernels/weight_product.h"

#include "core/check.h"
#include "core/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/weight_product.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off: foreach_target.h comes first
#include "kernels/weight_product-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {

void product_rows(const WeightProduct& product, int64_t begin, int64_t end, float* scratch) {
  switch (product.weights.type) {
    case WeightType::f32:
      return any_product<float>(product, begin, end, scratch);
    case WeightType::bf16:
      return any_product<BFloat16>(product, begin, end, scratch);
    case WeightType::int8:  // refused: integer_product.h
    case WeightType::int4:
      return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace raffia::internal {

HWY_EXPORT(product_rows);

size_t weight_product_scratch_floats(const WeightProduct& product) {
  if (product.tokens < kPackedFrom && !product.always_packed) return 0;
  if (!product.any_company || product.always_packed) return kGemmRows * (kGemmColumns + 1) + (2 * kChunk + 1) * kGemmColumns;
  constexpr size_t kMaxLanes = 16;
  const bool one_block = product.weights.columns <= static_cast<int64_t>(kBlockColumns);
  const size_t tokens = one_block ? 0 : round_up(std::min(product.tokens, kBlockTokens), 4);
  return kBlockRows * (kBlockColumns + tokens * kMaxLanes);
}

void weight_product(const WeightProduct& product, int64_t begin, int64_t end, float* scratch) {
  require(!product.weights.format().by_integers, "weight_product: weights is {}, expected f32 or bf16",
          name_of(product.weights.type));
  if (product.tokens == 0) return;
  chosen(KernelOp::product, HWY_DISPATCH_TABLE(product_rows))(product, begin, end, scratch);
}

}  // namespace raffia::internal
#endif  // HWY_ONCE
