#include "estimators/shared/sample_states.h"

#include <cmath>

namespace raffia::internal {
namespace {

// One sample of one head of weights, and the heads that share it.
struct Cell {
  Cell(const SampleStates& states, int64_t s, int64_t g)
      : width(states.values.extent(2) / states.log_weights.extent(2) * states.values.extent(3)),
        weights(static_cast<float*>(states.log_weights.data()) + s * states.log_weights.stride(1) + g),
        values(static_cast<float*>(states.values.data()) + s * states.values.stride(1) + g * width),
        weight_step(states.log_weights.stride(0)),
        value_step(states.values.stride(0)) {}

  float& weight(int64_t n) const { return weights[n * weight_step]; }
  float* value(int64_t n) const { return values + n * value_step; }

  int64_t width;  // floats of all values that share the weight
  float* weights;
  float* values;
  int64_t weight_step, value_step;
};

float log_add_exp(float a, float b) {
  if (std::isnan(a + b)) return a + b;  // max() and min() would drop it
  const float greatest = std::max(a, b);
  return greatest + std::log1p(std::exp(std::min(a, b) - greatest));
}

template <class Body>
void for_each_cell(const SampleStates& states, const Workers& workers, const Body& body) {
  const int64_t groups = states.log_weights.extent(2);
  workers.run(states.log_weights.extent(1), Scratch(workers.count(), 0), [&](int64_t s, float*) {
    for (int64_t g = 0; g < groups; ++g) body(s, g);
  });
}

}  // namespace

void merge_windows(const SampleStates& partials, float log_decay, const SampleStates& states, const Workers& workers) {
  const int64_t count = states.log_weights.extent(0) - 1;
  for_each_cell(states, workers, [&](int64_t s, int64_t g) {
    const Cell of(states, s, g), from(partials, s, g);
    for (int64_t n = 0; n < count; ++n) {
      const float before = of.weight(n) + log_decay, added = from.weight(n);
      const float* f1 = of.value(n);
      const float* f2 = from.value(n);
      float* f = of.value(n + 1);
      if (added == kNone) {
        of.weight(n + 1) = before;
        std::copy_n(f1, of.width, f);
      } else if (before == kNone) {
        of.weight(n + 1) = added;
        if (f != f2) std::copy_n(f2, of.width, f);
      } else {
        const float sum = log_add_exp(before, added);
        if (of.width == 0) {
          of.weight(n + 1) = sum;
          continue;
        }
        const float p1 = std::exp(before - sum), p2 = std::exp(added - sum);
        of.weight(n + 1) = sum;
        for (int64_t i = 0; i < of.width; ++i) f[i] = p1 * f1[i] + p2 * f2[i];
      }
    }
  });
}

}  // namespace raffia::internal
