#include "bench/interleave.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace raffia::internal::bench {
namespace {

constexpr double kShortestSample = 2e-3;     // seconds; long compared with the clock resolution and an interrupt
constexpr double kLongerThanWarmth = 5;      // warming up takes less than a percent of this
constexpr double kSurelyLongEnough = 20e-3;  // a cold first run of this length needs no second one to know that one run suffices

double seconds_of(const std::function<void()>& run, int64_t times) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < times; ++i) run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Warms up; returns the number of runs per sample. A run so long that warming up does not matter is used as a sample itself.
int64_t runs_per_sample(Contender& contender) {
  const std::function<void()>& run = contender.run;
  if (contender.begin_turn) contender.begin_turn();
  const double cold = seconds_of(run, 1);
  if (cold >= kLongerThanWarmth) contender.seconds = cold;
  if (cold >= kSurelyLongEnough) return 1;
  int64_t runs = 1;
  for (double seconds; (seconds = seconds_of(run, runs)) < kShortestSample;) {
    const double needed = 1.2 * kShortestSample / std::max(seconds, 1e-9);
    runs = static_cast<int64_t>(std::ceil(static_cast<double>(runs) * std::clamp(needed, 1.2, 1000.0)));
  }
  return runs;
}

}  // namespace

void interleave(std::span<Contender> contenders, int repeats, Observer& observer) {
  std::vector<int64_t> runs;
  for (Contender& contender : contenders) {
    runs.push_back(runs_per_sample(contender));
    observer.advance(contender.work);
  }
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      if (repeat == 0 && contenders[i].seconds < std::numeric_limits<double>::infinity()) {
        observer.advance(contenders[i].work);
        continue;
      }
      if (contenders[i].begin_turn) contenders[i].begin_turn();
      const double seconds = seconds_of(contenders[i].run, runs[i]) / static_cast<double>(runs[i]);
      contenders[i].seconds = std::min(contenders[i].seconds, seconds);
      observer.advance(contenders[i].work);
    }
  }
}

}  // namespace raffia::internal::bench
