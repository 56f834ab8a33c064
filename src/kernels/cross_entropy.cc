// A row is read three times, from L1 or L2: for the largest logit, for the sum of exponentials, which are left in their places,
// and to scale them.
#include "kernels/cross_entropy.h"

#include <limits>

#include "core/check.h"
#include "core/dispatch.h"
#include "kernels/float_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cross_entropy.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off: foreach_target.h comes first
#include "kernels/layer_ops-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {

inline float largest_of(const float* z, size_t columns) {
  const Tag d;
  Vec largest = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < columns; i += kLanes) {
    const size_t left = columns - i;
    const Vec v = load_some(z + i, left);
    largest = at_least(d, largest, left >= kLanes ? v : hn::IfThenElse(hn::FirstN(d, left), v, largest));
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// The loss of a row, and its gradient in its place.
float cross_entropy_row(float* z, size_t columns, size_t target, float smoothing, bool gradient) {
  const Tag d;
  const float count = static_cast<float>(columns), chosen_logit = z[target];
  const float mean =
      smoothing == 0 ? 0 : sum_columns(columns, [&](size_t i, size_t left) HWY_ATTR { return load_some(z + i, left); }) / count;
  const float largest = largest_of(z, columns);
  const Vec apart = hn::Set(d, largest);
  const float sum = sum_columns(columns, [&](size_t i, size_t left) HWY_ATTR {
    const Vec e = exp_of_nonpositive(d, hn::Sub(load_some(z + i, left), apart));
    if (gradient) store_some(e, z + i, left);
    return left >= kLanes ? e : hn::IfThenElseZero(hn::FirstN(d, left), e);
  });
  if (gradient) {
    const Vec inverse = hn::Set(d, 1.0f / sum), spread = hn::Set(d, smoothing / count);
    map_columns(columns, z, [&](size_t i, size_t left) HWY_ATTR { return hn::MulSub(load_some(z + i, left), inverse, spread); });
    z[target] -= 1.0f - smoothing;
  }
  const float log_sum = std::log(sum);
  // Differences from the largest logit: no digits are lost where all logits are far from 0.
  const float smoothed = smoothing == 0 ? 0 : smoothing * (largest - mean);
  return log_sum + (1.0f - smoothing) * (largest - chosen_logit) + smoothed;
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace raffia::internal {

HWY_EXPORT(cross_entropy_row);

void cross_entropy(MutView2 logits, const CrossEntropyTargets& targets, bool gradients, std::span<float> losses) {
  constexpr const char* kName = "cross_entropy";
  const int64_t rows = logits.extent(0), columns = logits.extent(1);
  require_rows(kName, "logits", logits, logits.shape(), "its own");
  require(std::ssize(targets.ids) == rows && std::ssize(losses) == rows,
          "{}: {} targets and {} losses, expected {} (rows of logits)", kName, targets.ids.size(), losses.size(), rows);
  for (int64_t t = 0; t < rows; ++t) {
    const auto at = static_cast<size_t>(t);
    const int64_t id = targets.ids[at];
    if (id == targets.ignored) losses[at] = 0;
    if (columns == 0 && id == targets.ignored) continue;  // there may be no memory
    float* row = static_cast<float*>(logits.data()) + t * logits.stride(0);
    if (id == targets.ignored) {
      if (gradients) std::fill_n(row, columns, 0.0f);
      continue;
    }
    require(id >= 0 && id < columns, "{}: target {} is {}, expected 0 to {} or {} (ignored)", kName, t, id, columns - 1,
            targets.ignored);
    losses[at] = chosen(KernelOp::cross_entropy, HWY_DISPATCH_TABLE(cross_entropy_row))(
        row, static_cast<size_t>(columns), static_cast<size_t>(id), static_cast<float>(targets.smoothing), gradients);
  }
}

}  // namespace raffia::internal
#endif  // HWY_ONCE
