#include "runtime/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/message.h"
#include "raffia/error.h"
#include "raffia/random.h"

namespace raffia::internal::runtime {

void require_finite(std::string_view function, std::string_view noun, std::span<const float> logits) {
  const auto bad = std::ranges::find_if_not(logits, [](float logit) { return std::isfinite(logit); });
  if (bad == logits.end()) return;
  throw Error(fmt::format("{}: the logit of {} {} is {}, expected a finite number: the weights of the model are damaged",
                          function, noun, bad - logits.begin(), not_finite_text(*bad)));
}

double log_sum(std::span<const float> logits) {
  const double max = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  const double result = max + std::log(sum);
  if (!std::isfinite(result)) require_finite("log probability", "token", logits);
  return result;
}

std::vector<int32_t> largest(std::span<const float> logits, int64_t count) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto kept = static_cast<ptrdiff_t>(std::clamp<int64_t>(count, 0, static_cast<int64_t>(ids.size())));
  const auto before = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    if (std::isnan(x) != std::isnan(y)) return std::isnan(y);
    return x > y || (!(x < y) && a < b);
  };
  std::partial_sort(ids.begin(), ids.begin() + kept, ids.end(), before);
  ids.resize(static_cast<size_t>(kept));
  return ids;
}

int32_t choose(std::span<const float> logits, std::span<const int32_t> recent, const SamplingOptions& options, uint64_t draw) {
  require_finite("sample", "token", logits);
  std::vector<float> penalised;
  if (options.repetition_penalty != 1 && !recent.empty()) {
    penalised.assign(logits.begin(), logits.end());
    const auto penalty = static_cast<float>(options.repetition_penalty);
    std::vector<int32_t> once(recent.begin(), recent.end());
    std::ranges::sort(once);
    once.erase(std::unique(once.begin(), once.end()), once.end());
    for (const int32_t id : once) {
      float& logit = penalised[static_cast<size_t>(id)];
      logit = logit > 0 ? logit / penalty : logit * penalty;
    }
    logits = penalised;
  }
  if (options.temperature == 0) {
    return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
  }
  // The candidates; sorted, most likely first, if an option needs the order.
  const bool is_cut = options.top_k > 0 || options.top_p < 1;
  std::vector<int32_t> ids;
  if (is_cut) {
    ids = largest(logits, options.top_k > 0 ? options.top_k : static_cast<int64_t>(logits.size()));
  } else {
    ids.resize(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
  }
  const double max = *std::ranges::max_element(logits);
  std::vector<double> weights(ids.size());
  double total = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    weights[i] = std::exp((logits[static_cast<size_t>(ids[i])] - max) / options.temperature);
    total += weights[i];
  }
  size_t count = ids.size();
  if (options.top_p < 1) {
    double sum = 0;
    count = 0;
    while (count < ids.size() && sum < options.top_p * total) sum += weights[count++];
    total = sum;
  }
  if (options.min_p > 0) {
    // The most likely token has weight 1.
    total = 0;
    for (size_t i = 0; i < count; ++i) {
      if (weights[i] < options.min_p) weights[i] = 0;
      total += weights[i];
    }
  }
  // Each draw has its own random stream, so that draw n costs the same as draw 0.
  RandomStream stream({.seed = options.seed, .layer = static_cast<uint32_t>(draw >> 32), .head = static_cast<uint32_t>(draw)});
  const double target = stream.next_uniform() * total;
  double sum = 0;
  size_t last = 0;
  for (size_t i = 0; i < count; ++i) {
    if (weights[i] == 0) continue;
    last = i;
    sum += weights[i];
    if (sum >= target) break;
  }
  return ids[last];
}

}  // namespace raffia::internal::runtime
