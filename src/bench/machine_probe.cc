#include "bench/machine_probe.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/machine_probe.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "core/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace raffia::internal::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Returns the FLOP done. `result` depends on every multiply-add, so that none can be left out.
// Twelve independent chains: two units times a latency of 4 or 5 cycles need at most ten, and twelve with two constants fit in
// the 16 registers of AVX2. x -> x a + b stays near b / (1 - a), so values neither overflow nor become denormal.
double multiply_adds(int64_t rounds, float& result) {
  const hn::ScalableTag<float> d;
  const auto a = hn::Set(d, 0.999F);
  const auto b = hn::Set(d, 0.001F);
  auto x0 = hn::Iota(d, 0), x1 = hn::Iota(d, 1), x2 = hn::Iota(d, 2), x3 = hn::Iota(d, 3);
  auto x4 = hn::Iota(d, 4), x5 = hn::Iota(d, 5), x6 = hn::Iota(d, 6), x7 = hn::Iota(d, 7);
  auto x8 = hn::Iota(d, 8), x9 = hn::Iota(d, 9), x10 = hn::Iota(d, 10), x11 = hn::Iota(d, 11);
  for (int64_t i = 0; i < rounds; ++i) {
    x0 = hn::MulAdd(x0, a, b);
    x1 = hn::MulAdd(x1, a, b);
    x2 = hn::MulAdd(x2, a, b);
    x3 = hn::MulAdd(x3, a, b);
    x4 = hn::MulAdd(x4, a, b);
    x5 = hn::MulAdd(x5, a, b);
    x6 = hn::MulAdd(x6, a, b);
    x7 = hn::MulAdd(x7, a, b);
    x8 = hn::MulAdd(x8, a, b);
    x9 = hn::MulAdd(x9, a, b);
    x10 = hn::MulAdd(x10, a, b);
    x11 = hn::MulAdd(x11, a, b);
  }
  const auto low = hn::Add(hn::Add(hn::Add(x0, x1), hn::Add(x2, x3)), hn::Add(x4, x5));
  const auto high = hn::Add(hn::Add(hn::Add(x6, x7), hn::Add(x8, x9)), hn::Add(x10, x11));
  result = hn::GetLane(hn::SumOfLanes(d, hn::Add(low, high)));
  return 2.0 * 12.0 * static_cast<double>(rounds) * static_cast<double>(hn::Lanes(d));
}

// Eight streams side by side, a cache line of each in turn: hardware reads ahead of each, and one stream alone does not fill the
// path to memory.
uint32_t fold_words(const uint32_t* words, size_t count) {
  const hn::ScalableTag<uint32_t> d;
  const size_t lanes = hn::Lanes(d);
  constexpr size_t kLine = 64 / sizeof(uint32_t), kStreams = 8;
  const size_t apart = count / kStreams / kLine * kLine;
  auto x0 = hn::Zero(d), x1 = hn::Zero(d);
  for (size_t i = 0; i < apart; i += kLine) {
    for (size_t stream = 0; stream < kStreams; ++stream) {
      const uint32_t* line = words + stream * apart + i;
      for (size_t k = 0; k < kLine; k += 2 * lanes) {
        x0 = hn::Xor(x0, hn::LoadU(d, line + k));
        if (k + lanes < kLine) x1 = hn::Xor(x1, hn::LoadU(d, line + k + lanes));
      }
    }
  }
  uint32_t fold = hn::GetLane(hn::MaxOfLanes(d, hn::Xor(x0, x1)));
  for (size_t i = kStreams * apart; i < count; ++i) fold ^= words[i];
  return fold;
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace raffia::internal::bench {
namespace {

HWY_EXPORT(multiply_adds);
HWY_EXPORT(fold_words);

constexpr int64_t kRounds = 1'000'000;  // about 2 ms: long compared with the time that a thread takes to wake up

constexpr int kPasses = 7;  // of a read; the first also finds its pages

// Unused results are stored here so that the compiler cannot remove the work.
std::atomic<float> float_sink;
std::atomic<uint32_t> word_sink;

}  // namespace

double run_multiply_adds(Executor& executor, int threads) {
  const auto kernel = chosen(KernelOp::probe, HWY_DISPATCH_TABLE(multiply_adds));
  std::atomic<double> flops = 0;
  executor.run(threads, threads, [&](int64_t, int) {
    float result = 0;
    flops.fetch_add(kernel(kRounds, result), std::memory_order_relaxed);
    float_sink.store(result, std::memory_order_relaxed);
  });
  return flops;
}

void read_bytes(std::span<const std::byte> bytes, Executor& executor, int threads) {
  const auto kernel = chosen(KernelOp::probe, HWY_DISPATCH_TABLE(fold_words));
  const auto* words = reinterpret_cast<const uint32_t*>(bytes.data());
  const auto count = static_cast<int64_t>(bytes.size() / sizeof(uint32_t));
  const int64_t part = (count + threads - 1) / threads;
  executor.run(threads, threads, [&](int64_t index, int) {
    const int64_t begin = std::min(count, index * part);
    const int64_t end = std::min(count, begin + part);
    word_sink.store(kernel(words + begin, static_cast<size_t>(end - begin)), std::memory_order_relaxed);
  });
}

double read_bandwidth(Executor& executor, int threads) {
  const std::vector<std::byte> bytes(size_t{256} << 20);
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    read_bytes(bytes, executor, threads);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, static_cast<double>(bytes.size()) / seconds.count());
  }
  return best;
}

}  // namespace raffia::internal::bench
#endif  // HWY_ONCE
