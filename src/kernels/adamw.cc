#include "kernels/adamw.h"

#include "core/check.h"
#include "core/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adamw.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off: foreach_target.h comes first
#include "kernels/layer_ops-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {

void adamw_run(const AdamwRun& run, const AdamwFactors& factors) {
  const Tag d;
  const auto all = [d](double factor) HWY_ATTR { return hn::Set(d, static_cast<float>(factor)); };
  const Vec scale = all(factors.scale), beta1 = all(factors.beta1), beta2 = all(factors.beta2);
  const Vec new1 = all(1 - factors.beta1), new2 = all(1 - factors.beta2);
  const Vec keep = all(factors.keep), rate = all(factors.rate), root = all(1 / factors.root), eps = all(factors.eps);
  float *p = run.parameters.data(), *mean = run.mean.data(), *square = run.square.data();
  const float* gradients = run.gradients.data();
  const size_t count = run.parameters.size();
  for (size_t i = 0; i < count; i += kLanes) {
    const size_t left = count - i;
    const Vec g = hn::Mul(load_some(gradients + i, left), scale);
    const Vec m = hn::MulAdd(beta1, load_some(mean + i, left), hn::Mul(new1, g));
    const Vec v = hn::MulAdd(beta2, load_some(square + i, left), hn::Mul(new2, hn::Mul(g, g)));
    store_some(m, mean + i, left);
    store_some(v, square + i, left);
    const Vec step = hn::Div(hn::Mul(rate, m), hn::MulAdd(hn::Sqrt(v), root, eps));
    store_some(hn::MulSub(keep, load_some(p + i, left), step), p + i, left);
  }
}

double sum_of_squares_of(std::span<const float> values) {
  constexpr size_t kBlock = 1024;
  double sum = 0;
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const float* block = values.data() + begin;
    sum += static_cast<double>(sum_columns(std::min(kBlock, values.size() - begin), [&](size_t i, size_t left) HWY_ATTR {
      const Vec v = load_some(block + i, left);
      return hn::Mul(v, v);
    }));
  }
  return sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace raffia::internal {

HWY_EXPORT(adamw_run);
HWY_EXPORT(sum_of_squares_of);

void adamw(const AdamwRun& run, const AdamwFactors& factors) {
  const size_t count = run.parameters.size();
  require(run.gradients.size() == count && run.mean.size() == count && run.square.size() == count,
          "adamw: {} gradients, {} means and {} squares, expected {} (parameters)", run.gradients.size(), run.mean.size(),
          run.square.size(), count);
  chosen(KernelOp::adamw, HWY_DISPATCH_TABLE(adamw_run))(run, factors);
}

double sum_of_squares(std::span<const float> values) {
  return chosen(KernelOp::adamw, HWY_DISPATCH_TABLE(sum_of_squares_of))(values);
}

}  // namespace raffia::internal
#endif  // HWY_ONCE
