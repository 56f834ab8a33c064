#include "estimators/work.h"

namespace raffia::internal {
namespace {

double both(Pass pass, double forward, double backward) {
  return (pass != Pass::backward ? forward : 0.0) + (pass != Pass::forward ? backward : 0.0);
}

// Of one token, all heads.
double token_flops(const WorkSizes& sizes, Pass pass, const TokenWork& work) {
  const auto d = static_cast<double>(sizes.head_dim), dv = static_cast<double>(sizes.value_dim);
  const auto heads = static_cast<double>(sizes.heads), kv_heads = static_cast<double>(sizes.kv_heads);
  double flops = heads * (work.keys * both(pass, 2 * (d + dv), 6 * d + 4 * dv) + work.drawn * both(pass, 2 * d, 2 * d));
  if (sizes.map != nullptr) {
    const double fold_or_read = 2 * static_cast<double>(sizes.map->features()) * (dv + 1);
    const bool projects = pass == Pass::forward && !sizes.has_features;
    const double projection = projects ? static_cast<double>(2 * sizes.map->dim() * sizes.map->rows()) : 0;
    flops += (heads + kv_heads) * both(pass, fold_or_read + projection, 2.5 * fold_or_read);
  }
  return flops;
}

}  // namespace

double attention_flops(const Estimator& estimator, const WorkSizes& sizes, bool causal, Pass pass, int64_t length) {
  return static_cast<double>(sizes.batch * length) *
         token_flops(sizes, pass, module_of(estimator).work(estimator, causal, length));
}

double step_flops(const Estimator& estimator, const WorkSizes& sizes, int64_t depth) {
  return static_cast<double>(sizes.batch) * token_flops(sizes, Pass::forward, module_of(estimator).step_work(estimator, depth));
}

}  // namespace raffia::internal
