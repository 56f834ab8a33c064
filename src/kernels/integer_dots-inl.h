// Dot products of stored int8 and int4 weights with quantised activations, a few columns to each 32-bit lane.
//
// VNNI multiplies bytes without a sign by bytes with one. The weights are the former: int4 as stored (0 to 15), int8 plus 128.
// The sum of a block's activations times that offset is subtracted again. AVX2 and SSE4 have such products too, with sums of 16
// bits; there int8 gives its sign to the activations.

#if defined(RAFFIA_KERNELS_INTEGER_DOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAFFIA_KERNELS_INTEGER_DOTS_INL_H_
#undef RAFFIA_KERNELS_INTEGER_DOTS_INL_H_
#else
#define RAFFIA_KERNELS_INTEGER_DOTS_INL_H_
#endif

#include <cstring>

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

template <class V>
HWY_INLINE V lower_nibbles(V both) {
  return hn::And(both, hn::Set(hn::DFromV<V>(), 15));
}
template <class V>
HWY_INLINE V upper_nibbles(V both) {
  const hn::DFromV<V> d;
  const hn::Repartition<uint16_t, decltype(d)> d16;
  return lower_nibbles(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, both))));
}

// A block of int4 as bytes.
HWY_INLINE void unpack_nibbles(const uint8_t* w, uint8_t* out) {
  const hn::Full128<uint8_t> d;
  const auto both = hn::LoadU(d, w);
  hn::StoreU(lower_nibbles(both), d, out);
  hn::StoreU(upper_nibbles(both), d, out + kIntegerBlock / 2);
}

// Each kind of dot products has
//   Element      what a 32-bit lane of a panel holds, unpacked
//   LongTag      the sums of a row along the columns
//   kLongBlocks  blocks of columns in a vector of them
//   kOffset      what was added to each element of the weights
//   kDirectTokens  up to which rows are multiplied in place
//   kInPlace     whether the bytes of a row are elements of a panel as they are
//   LongX        a token's elements in the order in which those of kLongBlocks blocks of weights are unpacked; dots(w): the
//   products
//   start(x_sum), add(sum, w, x), total(sum, x_sum)  sums of a block of a panel: `x_sum` is that of the token's elements
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
  template <class W>
  static constexpr size_t kDirectTokens = 1;
  template <class W>
  static constexpr bool kInPlace = false;

  // Not an intrinsic: the only target of Highway 1.0.3 with newer instructions also lets the compiler use those of AVX-VNNI,
  // which CPUs with this one need not have.
  static HWY_INLINE IntVec add(IntVec sum, hn::Vec<Bytes> w, hn::Vec<SignedBytes> x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(w.raw), "v"(x.raw));
    return sum;
  }
  template <class W>
  static HWY_INLINE IntVec add(IntVec sum, hn::Vec<Bytes> w, hn::Vec<SignedBytes> x) {
    return add(sum, w, x);
  }
  template <class W>
  static HWY_INLINE IntVec start(int32_t x_sum) {
    return hn::Set(Ints(), -kOffset<W> * x_sum);
  }
  template <class W>
  static HWY_INLINE IntVec total(IntVec sum, int32_t) {
    return sum;
  }

  template <class W>
  struct LongX;

  static HWY_INLINE void unpack_block(Int8Rows, const uint8_t* w, uint8_t* out) {
    const hn::CappedTag<uint8_t, kIntegerBlock> d;
    hn::StoreU(hn::Xor(hn::LoadU(d, w), hn::Set(d, 128)), d, out);
  }
  static HWY_INLINE void unpack_block(Int4Rows, const uint8_t* w, uint8_t* out) { unpack_nibbles(w, out); }
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

#if HWY_ARCH_X86 && (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4)
// Bytes without a sign by bytes with one, added in pairs to 16 bits (vpmaddubsw). That saturates, but no sum can reach it:
//   int8  |w| by x with the sign of w: two products of at most 128 by 127 are 32,512
//   int4  nibbles of at most 15: 16 products, as many as a lane of a panel gets in a block, are at most 16 x 15 x 127 = 30,480
struct SmallByteDots {
  using Element = uint8_t;
  using LongTag = Ints;
  using LongVec = IntVec;
  using Bytes = hn::Repartition<uint8_t, Ints>;
  using SignedBytes = hn::Repartition<int8_t, Ints>;
  using Shorts = hn::Repartition<int16_t, Ints>;
  using ShortVec = hn::Vec<Shorts>;
  static constexpr size_t kVecBytes = hn::MaxLanes(Bytes());
  template <class W>
  static constexpr size_t kLongBlocks = W::kBlockBytes < kVecBytes ? kVecBytes / W::kBlockBytes : 1;
  template <class W>
  static constexpr int kOffset = W::kGroupScales ? kNibbleZero : 0;
  // From the next number on a panel is faster (512 x 512, Zen 5).
  template <class W>
  static constexpr size_t kDirectTokens = kVecBytes == 16 && !W::kGroupScales ? 6 : 3;
  template <class W>
  static constexpr bool kInPlace = !W::kGroupScales;

#if HWY_TARGET == HWY_AVX2
  static HWY_INLINE ShortVec pairs(hn::Vec<Bytes> w, hn::Vec<SignedBytes> x) {
    return ShortVec{_mm256_maddubs_epi16(w.raw, x.raw)};
  }
  static HWY_INLINE IntVec sum_pairs(ShortVec v) { return IntVec{_mm256_madd_epi16(v.raw, hn::Set(Shorts(), 1).raw)}; }
  static HWY_INLINE hn::Vec<SignedBytes> with_sign(hn::Vec<SignedBytes> x, hn::Vec<SignedBytes> w) {
    return hn::Vec<SignedBytes>{_mm256_sign_epi8(x.raw, w.raw)};
  }
#else
  static HWY_INLINE ShortVec pairs(hn::Vec<Bytes> w, hn::Vec<SignedBytes> x) { return ShortVec{_mm_maddubs_epi16(w.raw, x.raw)}; }
  static HWY_INLINE IntVec sum_pairs(ShortVec v) { return IntVec{_mm_madd_epi16(v.raw, hn::Set(Shorts(), 1).raw)}; }
  static HWY_INLINE hn::Vec<SignedBytes> with_sign(hn::Vec<SignedBytes> x, hn::Vec<SignedBytes> w) {
    return hn::Vec<SignedBytes>{_mm_sign_epi8(x.raw, w.raw)};
  }
#endif
  static HWY_INLINE IntVec signed_products(hn::Vec<Bytes> w, hn::Vec<SignedBytes> x) {
    const auto own = hn::BitCast(SignedBytes(), w);
    return sum_pairs(pairs(hn::BitCast(Bytes(), hn::Abs(own)), with_sign(x, own)));
  }

  // Sums of int4 have 16 bits until the block ends.
  template <class W>
  static HWY_INLINE IntVec start(int32_t) {
    return hn::Zero(Ints());
  }
  template <class W>
  static HWY_INLINE IntVec add(IntVec sum, hn::Vec<Bytes> w, hn::Vec<SignedBytes> x) {
    if constexpr (W::kGroupScales) return hn::BitCast(Ints(), hn::Add(hn::BitCast(Shorts(), sum), pairs(w, x)));
    return hn::Add(sum, signed_products(w, x));
  }
  template <class W>
  static HWY_INLINE IntVec total(IntVec sum, int32_t x_sum) {
    if constexpr (!W::kGroupScales) return sum;
    return hn::Sub(sum_pairs(hn::BitCast(Shorts(), sum)), hn::Set(Ints(), kOffset<W> * x_sum));
  }

  template <class W>
  struct LongX;

  static HWY_INLINE void unpack_block(Int8Rows, const uint8_t* w, uint8_t* out) { std::memcpy(out, w, kIntegerBlock); }
  static HWY_INLINE void unpack_block(Int4Rows, const uint8_t* w, uint8_t* out) { unpack_nibbles(w, out); }
};
template <>
struct SmallByteDots::LongX<Int8Rows> {
  const int8_t* x;

  HWY_INLINE explicit LongX(const int8_t* from) : x(from) {}
  HWY_INLINE LongVec dots(const uint8_t* w) const {
    LongVec sum = signed_products(hn::LoadU(Bytes(), w), hn::LoadU(SignedBytes(), x));
    if constexpr (kVecBytes < kIntegerBlock) {
      sum = hn::Add(sum, signed_products(hn::LoadU(Bytes(), w + kVecBytes), hn::LoadU(SignedBytes(), x + kVecBytes)));
    }
    return sum;
  }
};
template <>
struct SmallByteDots::LongX<Int4Rows> {
  hn::Vec<SignedBytes> lower, upper;  // of each of one or two groups

  HWY_INLINE explicit LongX(const int8_t* from) {
    const auto a = hn::LoadU(SignedBytes(), from), b = hn::LoadU(SignedBytes(), from + kVecBytes);
    lower = kVecBytes == 16 ? a : hn::ConcatLowerLower(SignedBytes(), b, a);
    upper = kVecBytes == 16 ? b : hn::ConcatUpperUpper(SignedBytes(), b, a);
  }
  HWY_INLINE LongVec dots(const uint8_t* w) const {
    const auto both = hn::LoadU(Bytes(), w);
    return sum_pairs(hn::Add(pairs(lower_nibbles(both), lower), pairs(upper_nibbles(both), upper)));
  }
};
using OtherDots = SmallByteDots;
#else
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
  template <class W>
  static constexpr size_t kDirectTokens = 3;
  template <class W>
  static constexpr bool kInPlace = false;

  template <class W>
  static HWY_INLINE IntVec start(int32_t x_sum) {
    return hn::Set(Ints(), -kOffset<W> * x_sum);
  }
  template <class W>
  static HWY_INLINE IntVec total(IntVec sum, int32_t) {
    return sum;
  }
  template <class W, class V, class S>
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
          sum = add<W>(sum, hn::And(both, hn::Set(Short(), 15)), wide(x + i));
          sum = add<W>(sum, hn::ShiftRight<4>(both), wide(x + kIntegerBlock / 2 + i));
        } else {
          sum = add<W>(sum, wide(reinterpret_cast<const int8_t*>(w) + i), wide(x + i));
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
using OtherDots = PairDots;
#endif

#endif

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#endif
