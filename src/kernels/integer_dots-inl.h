// Dot products of stored int8 and int4 weights with quantised activations, a few columns to each 32-bit lane.
//
// VNNI multiplies bytes without a sign by bytes with one. The weights are the former: int4 as stored (0 to 15), int8 plus 128.
// The sum of a block's activations times that offset is subtracted again.

#if defined(RAFFIA_KERNELS_INTEGER_DOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_INTEGER_DOTS_INL_H_
#undef RAFFIA_KERNELS_INTEGER_DOTS_INL_H_
#else
#define RAFFIA_KERNELS_INTEGER_DOTS_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/integer_product.h"
#include "kernels/panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// How rows of a type are read.
struct Int8Rows {
  static constexpr bool kGroupScales = false;
  static constexpr size_t kBlockBytes = 32;
};
struct Int4Rows {
  static constexpr bool kGroupScales = true;
  static constexpr size_t kBlockBytes = 16;
};

#if HWY_TARGET != HWY_SCALAR

using Ints = hn::RebindToSigned<Tag>;  // a panel row is kVecs of them
using IntVec = hn::Vec<Ints>;

// Each kind of dot products has
//   Element      what a 32-bit lane of a panel holds, unpacked
//   LongTag      the sums of a row along the columns
//   kLongBlocks  blocks of columns in a vector of them
//   kOffset      what was added to each element of the weights
//   kDirectTokens  up to which rows are multiplied in place
//   LongX        a token's elements in the order in which those of kLongBlocks blocks of weights are unpacked; dots(w): the
//   products add(sum, w, x)  sum + the products of weights and activations, a few adjacent ones in each lane
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
// AVX-512 with VNNI.
struct ByteDots {
  using Element = uint8_t;
  using LongTag = Ints;
  using LongVec = IntVec;
  using Bytes = hn::Repartition<uint8_t, Ints>;
  using SignedBytes = hn::Repartition<int8_t, Ints>;
  template <class W>
  static constexpr size_t kLongBlocks = W::kGroupScales ? 4 : 2;
  template <class W>
  static constexpr int kOffset = W::kGroupScales ? kNibbleZero : 128;
  static constexpr size_t kDirectTokens = 1;

  // Not an intrinsic: the only target of Highway 1.0.3 with newer instructions also lets the compiler use those of AVX-VNNI,
  // which CPUs with this one need not have.
  static HWY_INLINE IntVec add(IntVec sum, hn::Vec<Bytes> w, hn::Vec<SignedBytes> x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(w.raw), "v"(x.raw));
    return sum;
  }
  template <class V>
  static HWY_INLINE auto lower_nibbles(V both) {
    return hn::And(both, hn::Set(hn::DFromV<V>(), 15));
  }
  template <class V>
  static HWY_INLINE auto upper_nibbles(V both) {
    const hn::DFromV<V> d;
    const hn::Repartition<uint16_t, decltype(d)> d16;
    return lower_nibbles(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, both))));
  }

  template <class W>
  struct LongX;

  static HWY_INLINE void unpack_block(Int8Rows, const uint8_t* w, uint8_t* out) {
    const hn::CappedTag<uint8_t, kIntegerBlock> d;
    hn::StoreU(hn::Xor(hn::LoadU(d, w), hn::Set(d, 128)), d, out);
  }
  static HWY_INLINE void unpack_block(Int4Rows, const uint8_t* w, uint8_t* out) {
    const hn::Full128<uint8_t> d;
    const auto both = hn::LoadU(d, w);
    hn::StoreU(lower_nibbles(both), d, out);
    hn::StoreU(upper_nibbles(both), d, out + kIntegerBlock / 2);
  }
};
template <>
struct ByteDots::LongX<Int8Rows> {
  hn::Vec<SignedBytes> x;

  HWY_INLINE explicit LongX(const int8_t* from) : x(hn::LoadU(SignedBytes(), from)) {}
  HWY_INLINE LongVec dots(const uint8_t* w) const {
    return add(hn::Zero(LongTag()), hn::Xor(hn::LoadU(Bytes(), w), hn::Set(Bytes(), 128)), x);
  }
};
template <>
struct ByteDots::LongX<Int4Rows> {
  hn::Vec<SignedBytes> lower, upper;  // of each of four groups

  HWY_INLINE explicit LongX(const int8_t* from) {
    const auto a = hn::LoadU(SignedBytes(), from), b = hn::LoadU(SignedBytes(), from + 64);
    lower.raw = _mm512_shuffle_i32x4(a.raw, b.raw, 0x88);
    upper.raw = _mm512_shuffle_i32x4(a.raw, b.raw, 0xDD);
  }
  HWY_INLINE LongVec dots(const uint8_t* w) const {
    const auto both = hn::LoadU(Bytes(), w);
    return add(add(hn::Zero(LongTag()), lower_nibbles(both), lower), upper_nibbles(both), upper);
  }
};
#endif

// Any other CPU. LongTag has at most 256 bits, so that a vector of 16-bit integers never spans two blocks.
struct PairDots {
  using Element = int16_t;
  using LongTag = hn::CappedTag<int32_t, 8>;
  using LongVec = hn::Vec<LongTag>;
  using Short = hn::Repartition<int16_t, LongTag>;
  static constexpr size_t kShortLanes = hn::MaxLanes(Short());
  template <class W>
  static constexpr size_t kLongBlocks = 1;
  template <class W>
  static constexpr int kOffset = W::kGroupScales ? kNibbleZero : 0;
  static constexpr size_t kDirectTokens = 3;

  template <class V, class S>
  static HWY_INLINE V add(V sum, S w, S x) {
    // On NEON the last step adds neighbours, so it must not get sums of before.
    const hn::DFromV<V> d;
    V other = hn::Zero(d);
    const V products = hn::ReorderWidenMulAccumulate(d, w, x, hn::Zero(d), other);
    return hn::Add(sum, hn::RearrangeToOddPlusEven(products, other));
  }

  template <class W>
  struct LongX {
    const int8_t* x;

    HWY_INLINE explicit LongX(const int8_t* from) : x(from) {}
    HWY_INLINE LongVec dots(const uint8_t* w) const {
      const hn::Rebind<uint8_t, Short> bytes;
      const hn::Rebind<int8_t, Short> signed_bytes;
      const auto wide = [&](const int8_t* at) HWY_ATTR { return hn::PromoteTo(Short(), hn::LoadU(signed_bytes, at)); };
      LongVec sum = hn::Zero(LongTag());
      for (size_t i = 0; i < W::kBlockBytes; i += kShortLanes) {
        if constexpr (W::kGroupScales) {
          const auto both = hn::PromoteTo(Short(), hn::LoadU(bytes, w + i));
          sum = add(sum, hn::And(both, hn::Set(Short(), 15)), wide(x + i));
          sum = add(sum, hn::ShiftRight<4>(both), wide(x + kIntegerBlock / 2 + i));
        } else {
          sum = add(sum, wide(reinterpret_cast<const int8_t*>(w) + i), wide(x + i));
        }
      }
      return sum;
    }
  };

  static HWY_INLINE void unpack_block(Int8Rows, const uint8_t* w, int16_t* out) {
    const hn::CappedTag<int16_t, kIntegerBlock> d;
    const hn::Rebind<int8_t, decltype(d)> narrow;
    for (size_t i = 0; i < kIntegerBlock; i += hn::MaxLanes(d)) {
      hn::StoreU(hn::PromoteTo(d, hn::LoadU(narrow, reinterpret_cast<const int8_t*>(w) + i)), d, out + i);
    }
  }
  static HWY_INLINE void unpack_block(Int4Rows, const uint8_t* w, int16_t* out) {
    constexpr size_t kHalf = kIntegerBlock / 2;
    const hn::CappedTag<int16_t, kHalf> d;
    const hn::Rebind<uint8_t, decltype(d)> narrow;
    for (size_t i = 0; i < kHalf; i += hn::MaxLanes(d)) {
      const auto both = hn::PromoteTo(d, hn::LoadU(narrow, w + i));
      hn::StoreU(hn::And(both, hn::Set(d, 15)), d, out + i);
      hn::StoreU(hn::ShiftRight<4>(both), d, out + kHalf + i);
    }
  }
};

#endif

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
