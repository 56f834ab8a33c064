// Philox and Box-Muller with a block of the stream per lane of 64 bits.
//
// The numbers must be those of the C library in double, rounded to float: they are the same for every ISA and version. Vectors
// compute them with an error far below half a unit of a float, and round them moved by that error both ways. If the two differ,
// a boundary between floats is so near that the C library has to decide; that happens to about one vector in 10,000.
#include "kernels/noise.h"

#include <algorithm>
#include <numbers>

#include "core/dispatch.h"
#include "core/random_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/noise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off: foreach_target.h comes first
#include "kernels/math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The two normals of a block, as the C library has them.
HWY_INLINE void put_pair(double first, double second, float* HWY_RESTRICT out) {
  const auto [normal, spare] = normals_of(first, second);
  out[0] = static_cast<float>(normal);
  out[1] = static_cast<float>(spare);
}

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

constexpr size_t kBlocksAtOnce = 1;

void put_normals(const StreamKey& key, uint64_t block, float* HWY_RESTRICT out) {
  const auto words = block_of(key, block);
  put_pair(uniform_of(words[0], words[1]), uniform_of(words[2], words[3]), out);
}

#else

using Reals = hn::CappedTag<double, 8>;
using Words = hn::RebindToUnsigned<Reals>;  // 32 bits each; what is above them is arbitrary
using Real = hn::Vec<Reals>;
using Word = hn::Vec<Words>;

constexpr size_t kBlocksAtOnce = hn::MaxLanes(Reals());

// The relative error of the logarithm is at most 4 ulp, that of the radius half of it and an ulp for the root. Angles are off by
// 2^-50, because the C library is given a rounded one, and sine and cosine by another 2^-51: together less than 2^-48 of the
// radius.
constexpr double kError = 0x1p-46;

// The 64-bit products of 32-bit words.
HWY_INLINE Word product(Word a, uint32_t b) {
  const hn::Repartition<uint32_t, Words> d;
  return hn::MulEven(hn::BitCast(d, a), hn::Set(d, b));
}

HWY_INLINE void philox(const StreamKey& key, Word (&counter)[4]) {
  const Words d;
  uint32_t low = static_cast<uint32_t>(key.seed), high = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < Philox::kRounds; ++round) {
    const Word p0 = product(counter[0], Philox::kMultipliers[0]), p1 = product(counter[2], Philox::kMultipliers[1]);
    counter[0] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), counter[1]), hn::Set(d, uint64_t{low}));
    counter[1] = p1;
    counter[2] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), counter[3]), hn::Set(d, uint64_t{high}));
    counter[3] = p0;
    low += Philox::kKeySteps[0];
    high += Philox::kKeySteps[1];
  }
}

// uniform_of(), exactly: 52 bits n as the number 1 + n 2^-52, less 1, plus 2^-53.
HWY_INLINE Real uniforms(Word low, Word high) {
  const Reals d;
  const Words du;
  const Word bits = hn::Or(hn::ShiftLeft<32>(high), hn::And(low, hn::Set(du, uint64_t{0xFFFFFFFFU})));
  const Real one = hn::Set(d, 1.0);
  const Real shifted = hn::BitCast(d, hn::Or(hn::ShiftRight<12>(bits), hn::BitCast(du, one)));
  return hn::Add(hn::Sub(shifted, one), hn::Set(d, 0x1p-53));
}

// sin and cos of 2 pi u, 0 < u < 1, to 2^-51.
//   4 u = j + r, |r| <= 1/2, both exact;  x = r pi / 2: the Taylor series of sin to x^15 and of cos to x^16
HWY_INLINE void sin_cos_of_turns(Real u, Real& sines, Real& cosines) {
  const Reals d;
  const Words du;
  const Real magic = hn::Set(d, 0x1.8p52);  // a sum with it is rounded to an integer, which its last bits hold
  const Real scaled = hn::Mul(u, hn::Set(d, 4.0)), sum = hn::Add(scaled, magic);
  const Real x = hn::Mul(hn::Sub(scaled, hn::Sub(sum, magic)), hn::Set(d, std::numbers::pi / 2));
  const Real z = hn::Mul(x, x);
  Real p = hn::Set(d, -1.0 / 1307674368000.0);  // 15!
  for (double term : {1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0}) {
    p = hn::MulAdd(p, z, hn::Set(d, term));
  }
  const Real sin_x = hn::MulAdd(hn::Mul(p, z), x, x);
  Real q = hn::Set(d, 1.0 / 20922789888000.0);  // 16!
  for (double term : {-1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5}) {
    q = hn::MulAdd(q, z, hn::Set(d, term));
  }
  const Real cos_x = hn::MulAdd(q, z, hn::Set(d, 1.0));
  // Quadrant j mod 4: odd ones swap sin and cos; 2 and 3 negate sin, 1 and 2 negate cos.
  const Word quadrant = hn::BitCast(du, sum), two = hn::Set(du, uint64_t{2});
  const auto swap = hn::RebindMask(d, hn::TestBit(quadrant, hn::Set(du, uint64_t{1})));
  const Word sin_sign = hn::ShiftLeft<62>(hn::And(quadrant, two));
  const Word cos_sign = hn::ShiftLeft<62>(hn::And(hn::Add(quadrant, hn::Set(du, uint64_t{1})), two));
  sines = hn::Xor(hn::IfThenElse(swap, cos_x, sin_x), hn::BitCast(d, sin_sign));
  cosines = hn::Xor(hn::IfThenElse(swap, sin_x, cos_x), hn::BitCast(d, cos_sign));
}

// The normals of kBlocksAtOnce blocks.
void put_normals(const StreamKey& key, uint64_t block, float* HWY_RESTRICT out) {
  const Reals d;
  const Words du;
  const hn::Rebind<float, Reals> df;
  Word words[4] = {hn::Add(hn::Iota(du, 0), hn::Set(du, block)), hn::Set(du, uint64_t{key.layer}),
                   hn::Set(du, uint64_t{key.head}), hn::Set(du, uint64_t{key.draw})};
  philox(key, words);
  const Real first = uniforms(words[0], words[1]), second = uniforms(words[2], words[3]);
  const Real radius = hn::Sqrt(hn::Mul(hn::Set(d, -2.0), hn::Log(d, first)));
  const Real error = hn::Mul(radius, hn::Set(d, kError));
  Real sines, cosines;
  sin_cos_of_turns(second, sines, cosines);
  const Real normal = hn::Mul(radius, cosines), spare = hn::Mul(radius, sines);
  const auto lower = hn::DemoteTo(df, hn::Sub(normal, error)), spare_lower = hn::DemoteTo(df, hn::Sub(spare, error));
  const auto upper = hn::DemoteTo(df, hn::Add(normal, error)), spare_upper = hn::DemoteTo(df, hn::Add(spare, error));
  if (HWY_LIKELY(hn::AllTrue(df, hn::And(hn::Eq(lower, upper), hn::Eq(spare_lower, spare_upper))))) {
    hn::StoreInterleaved2(lower, spare_lower, df, out);
    return;
  }
  HWY_ALIGN double firsts[kBlocksAtOnce], seconds[kBlocksAtOnce];
  hn::Store(first, d, firsts);
  hn::Store(second, d, seconds);
  for (size_t lane = 0; lane < kBlocksAtOnce; ++lane) put_pair(firsts[lane], seconds[lane], out + 2 * lane);
}

#endif

void noise_of_blocks(const StreamKey& key, uint64_t block, size_t count, float* HWY_RESTRICT out) {
  constexpr size_t kAtOnce = 2 * kBlocksAtOnce;
  size_t i = 0;
  for (; i + kAtOnce <= count; i += kAtOnce, block += kBlocksAtOnce) put_normals(key, block, out + i);
  if (i == count) return;
  float rest[kAtOnce];
  put_normals(key, block, rest);
  std::copy_n(rest, count - i, out + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace raffia::internal {

HWY_EXPORT(noise_of_blocks);

void randomized_noise(const StreamKey& key, int64_t query, int64_t draws, int64_t draw, std::span<float> noise) {
  const uint64_t block = 1 + block_of_draw(query, draws, draw, static_cast<int64_t>(noise.size()));
  chosen(KernelOp::noise, HWY_DISPATCH_TABLE(noise_of_blocks))(key, block, noise.size(), noise.data());
}

}  // namespace raffia::internal
#endif
