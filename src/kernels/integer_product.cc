#include "kernels/integer_product.h"

#include <bit>
#include <limits>

#include "core/check.h"
#include "core/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/integer_product.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off: foreach_target.h comes first
#include "kernels/integer_product-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {

void product_of_integers(const IntegerProduct& product, int64_t begin, int64_t end, float* scratch) {
  if (product.weights.type == WeightType::int4) {
    integer_rows<Int4Rows>(product, begin, end, scratch);
  } else {
    integer_rows<Int8Rows>(product, begin, end, scratch);
  }
}

// A block of at most 32 elements; the rest of q is 0.
HWY_INLINE void quantize_block(const float* x, size_t count, int8_t* q, float& scale, int32_t& sum) {
  const hn::RebindToSigned<Tag> ints;
  const hn::Rebind<int8_t, decltype(ints)> narrow;
  HWY_ALIGN float copy[kIntegerBlock];
  if (count < kIntegerBlock) {
    std::fill(std::copy_n(x, count, copy), copy + kIntegerBlock, 0.0f);
    x = copy;
  }
  // The bits of magnitudes are in the order of the magnitudes, NaN above all.
  auto bits = hn::Zero(ints);
  for (size_t i = 0; i < kIntegerBlock; i += kLanes) {
    bits = hn::Max(bits, hn::BitCast(ints, hn::Abs(hn::LoadU(Tag(), x + i))));
  }
  const float max = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(ints, bits)));
  const bool finite = max <= std::numeric_limits<float>::max();
  sum = 0;
  if (!finite || max < QuantizedTokens::kTiny) {
    scale = finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    std::fill_n(q, kIntegerBlock, int8_t{0});
    return;
  }
  scale = max / 127.0f;
  const Vec inverse = hn::Set(Tag(), 127.0f / max);
  auto sums = hn::Zero(ints);
  for (size_t i = 0; i < kIntegerBlock; i += kLanes) {
    const auto element = hn::NearestInt(hn::Mul(hn::LoadU(Tag(), x + i), inverse));
    sums = hn::Add(sums, element);
    hn::StoreU(hn::DemoteTo(narrow, element), narrow, q + i);
  }
  sum = hn::GetLane(hn::SumOfLanes(ints, sums));
}

void quantize_rows_of_tokens(const float* x, int64_t stride, size_t columns, size_t begin, size_t end,
                             const QuantizedTokens& out) {
  for (size_t t = begin; t < end; ++t) {
    const float* row = x + static_cast<int64_t>(t) * stride;
    for (size_t b = 0; b < out.blocks(); ++b) {
      const size_t first = b * kIntegerBlock, count = first < columns ? HWY_MIN(kIntegerBlock, columns - first) : 0;
      quantize_block(row + HWY_MIN(first, columns), count, out.values(t) + first, out.scales(t)[b], out.sums(t)[b]);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace raffia::internal {

HWY_EXPORT(product_of_integers);
HWY_EXPORT(quantize_rows_of_tokens);

QuantizedTokens::QuantizedTokens(size_t tokens, size_t columns, float* memory) : padded_(round_up(columns, kIntegerPad)) {
  scales_ = memory;
  sums_ = reinterpret_cast<int32_t*>(scales_ + tokens * blocks());
  values_ = reinterpret_cast<int8_t*>(sums_ + tokens * blocks());
}

size_t QuantizedTokens::floats(size_t tokens, size_t columns) {
  const size_t padded = round_up(columns, kIntegerPad);
  return tokens * (2 * (padded / kIntegerBlock) + padded / sizeof(float));
}

void quantize_tokens(View2 x, int64_t begin, int64_t end, const QuantizedTokens& out) {
  chosen(KernelOp::integer_product, HWY_DISPATCH_TABLE(quantize_rows_of_tokens))(
      static_cast<const float*>(x.data()), x.stride(0), static_cast<size_t>(x.extent(1)), static_cast<size_t>(begin),
      static_cast<size_t>(end), out);
}

void integer_product(const IntegerProduct& product, int64_t begin, int64_t end, float* scratch) {
  require(product.weights.format().by_integers, "integer_product: weights is {}, expected int8 or int4",
          name_of(product.weights.type));
  if (product.weights.columns > 0) {
    chosen(KernelOp::integer_product, HWY_DISPATCH_TABLE(product_of_integers))(product, begin, end, scratch);
    return;
  }
  for (size_t t = 0; t < product.tokens; ++t) {
    for (int64_t r = begin; r < end; ++r) {
      product.y[static_cast<int64_t>(t) * product.y_stride + r] = product.bias == nullptr ? 0.0f : product.bias[r];
    }
  }
}

}  // namespace raffia::internal
#endif  // HWY_ONCE
